/// Where among the devices the step's rank stands: its coordinate on every axis of the mesh. Without axes there is one
/// device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The axes of the mesh, the outermost first.
    pub axes: Vec<Axis>,
}

/// One axis of the mesh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name (`dp_shard`, `tp`).
    pub name: String,
    /// How many ranks stand along it.
    pub size: u32,
    /// The rank's own coordinate, from 0.
    pub coordinate: u32,
}

/// The most axes that a mesh has. Real ones have six: pipeline, replicate, shard, context, expert, tensor.
pub(crate) const MOST_AXES: usize = 16;
/// Stands between the names of axes where a group reaches over several.
pub(crate) const AXES_JOINED_BY: char = '+';

impl Place {
    /// How many ranks the mesh has; `None` if 64 bits do not hold their number, which
    /// [`StepTrace::validate`](crate::StepTrace::validate) refuses.
    #[must_use]
    pub fn ranks(&self) -> Option<u64> {
        self.axes.iter().try_fold(1, |ranks: u64, axis| ranks.checked_mul(u64::from(axis.size)))
    }

    /// How many ranks stand along an axis, or along several whose names are joined by `+`; `None` if there is no
    /// such axis, or it is named twice.
    #[must_use]
    pub fn group(&self, axis: &str) -> Option<u64> {
        let mut left: Vec<&Axis> = self.axes.iter().collect();
        axis.split(AXES_JOINED_BY).try_fold(1, |group: u64, name| {
            let axis = left.remove(left.iter().position(|axis| axis.name == name)?);
            group.checked_mul(u64::from(axis.size))
        })
    }
}
