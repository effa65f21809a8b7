//! Checks of what lies between ranks and streams.

use std::collections::HashSet;

use crate::error::Spot;
use crate::place::{AXES_JOINED_BY, MOST_AXES};
use crate::{Collective, CollectiveKind, Fault, InvalidTrace, Place, StepTrace};

/// A message must be smaller than this, as all storages together are.
const MESSAGE_LIMIT: u64 = 1 << 62;

impl StepTrace {
    /// The rank's place, the streams and the collectives.
    pub(crate) fn check_mesh(&self) -> Result<(), InvalidTrace> {
        let at =
            |table: &'static str| move |row: usize, fault: Fault| InvalidTrace { at: Spot::Row(table, row), fault };
        let mut names = HashSet::new();
        for (row, axis) in self.place.axes.iter().enumerate() {
            check_name(&axis.name, &mut names).map_err(|fault| at("place")(row, fault))?;
            if axis.coordinate >= axis.size {
                let (coordinate, size) = (axis.coordinate, axis.size);
                return Err(at("place")(row, Fault::Coordinate { axis: axis.name.clone(), coordinate, size }));
            }
        }
        let axes = self.place.axes.len();
        if axes > MOST_AXES {
            return Err(at("place")(MOST_AXES, Fault::TooManyAxes { axes, limit: MOST_AXES }));
        }
        if self.place.ranks().is_none() {
            return Err(at("place")(axes - 1, Fault::MeshTooLarge));
        }
        let mut names = HashSet::new();
        for (row, name) in self.streams.iter().enumerate() {
            check_name(name, &mut names).map_err(|fault| at("streams")(row, fault))?;
        }
        for (row, collective) in self.collectives.iter().enumerate() {
            check_collective(&self.place, collective).map_err(|fault| at("collectives")(row, fault))?;
        }
        Ok(())
    }
}

fn check_name<'a>(name: &'a str, names: &mut HashSet<&'a str>) -> Result<(), Fault> {
    let rule = if name.is_empty() {
        "give it one"
    } else if name.contains(AXES_JOINED_BY) {
        "`+` stands between the names of several axes"
    } else if !names.insert(name) {
        "another row has it already"
    } else {
        return Ok(());
    };
    Err(Fault::Name { name: name.to_owned(), rule })
}

fn check_collective(place: &Place, collective: &Collective) -> Result<(), Fault> {
    let Collective { kind, group, axis, bytes } = collective;
    let detail = |rule| {
        let axis = axis.clone();
        Err(Fault::CollectiveDetail { kind: *kind, group: *group, axis, rule })
    };
    let says_nothing = *group == 0 && axis.is_empty();
    match kind {
        CollectiveKind::Unknown if says_nothing => return Ok(()),
        CollectiveKind::Unknown => return detail("say of an unknown kind nothing more: 0 ranks and an empty axis"),
        _ if *group == 0 || axis.is_empty() => return detail("give the size of the group and the axis of the mesh"),
        _ => {}
    }
    if *bytes >= MESSAGE_LIMIT {
        return Err(Fault::MessageTooLarge { bytes: *bytes });
    }
    let Some(size) = place.group(axis) else {
        return Err(Fault::UnknownAxis { axis: axis.clone(), known: known_axes(place) });
    };
    if u64::from(*group) != size {
        return Err(Fault::GroupSize { axis: axis.clone(), group: *group, size });
    }
    Ok(())
}

fn known_axes(place: &Place) -> String {
    let names: Vec<&str> = place.axes.iter().map(|axis| axis.name.as_str()).collect();
    match names.is_empty() {
        true => "it has none: name the mesh in `place`".to_owned(),
        false => format!("there are {}", names.join(", ")),
    }
}
