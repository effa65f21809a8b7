use rematic_trace::{Bytes, Millis};
use serde::{Deserialize, Serialize};

use crate::TorchError;

/// What is known about the forward operators of one region, under the names of torch's `SACStats`.
///
/// Operators are numbered within the region, from 0, in the order of execution. Operators that selective checkpointing
/// never sees ([`ALWAYS_SKIPPED`](crate::ALWAYS_SKIPPED)) are not among them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SacStats {
    /// Names without overload (`mm`).
    pub func_names: Vec<String>,
    /// Time of each operator.
    pub runtimes: Vec<Millis>,
    /// Bytes of the storages among each operator's outputs. Views have none, and neither has the last operator that is
    /// neither a view nor in place: its output is the region's, which exists anyway.
    pub memory: Vec<Bytes>,
    /// Operators whose output is a view of an input.
    pub view_like_ops: Vec<usize>,
    /// Operators that draw random numbers.
    pub rand_ops: Vec<usize>,
    /// Operators all of whose output storages autograd has saved by the time the region returns.
    pub saved_autograd_ops: Vec<usize>,
    /// In-place operators, each with the first operator of the region that has the same storage among its outputs; with
    /// itself if the storage comes from outside the region.
    pub inplace_ops: Vec<(usize, usize)>,
    /// Whether random operators must be saved: the region has no tensor among its positional inputs.
    pub force_store_random: bool,
}

impl SacStats {
    /// The number of operators.
    #[must_use]
    pub fn len(&self) -> usize {
        self.func_names.len()
    }

    /// Whether there are no operators.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.func_names.is_empty()
    }

    /// Bytes of all operators together, torch's `sac_memory`; saturates.
    #[must_use]
    pub fn total_memory(&self) -> Bytes {
        Bytes(self.memory.iter().fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
    }

    /// Time of all operators together, torch's `sac_runtime`.
    #[must_use]
    pub fn total_runtime(&self) -> Millis {
        self.runtimes.iter().copied().sum()
    }

    /// Checks what the types do not: lengths, indices and ranges.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self) -> Result<(), TorchError> {
        let ops = self.len();
        for (column, found) in [("runtimes", self.runtimes.len()), ("memory", self.memory.len())] {
            if found != ops {
                return Err(TorchError::Length { ops, column, found });
            }
        }
        let indices = [
            ("view_like_ops", &self.view_like_ops),
            ("rand_ops", &self.rand_ops),
            ("saved_autograd_ops", &self.saved_autograd_ops),
        ];
        let in_place = self.inplace_ops.iter().flat_map(|&(op, parent)| [("inplace_ops", op), ("inplace_ops", parent)]);
        let named = indices.iter().flat_map(|(column, list)| list.iter().map(move |&index| (*column, index)));
        if let Some((column, index)) = named.chain(in_place).find(|(_, index)| *index >= ops) {
            return Err(TorchError::NoSuchOp { column, index, ops });
        }
        if let Some(index) = self.runtimes.iter().position(|time| !time.0.is_finite() || time.0 < 0.0) {
            let name = self.func_names[index].clone();
            return Err(TorchError::Runtime { index, name, found: self.runtimes[index].0 });
        }
        self.memory
            .iter()
            .try_fold(0_u64, |sum, bytes| sum.checked_add(bytes.0))
            .map(|_| ())
            .ok_or(TorchError::TooLarge { ops })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_ops() -> SacStats {
        SacStats {
            func_names: vec!["mm".into(), "relu".into()],
            runtimes: vec![Millis(1.0), Millis(2.0)],
            memory: vec![Bytes(10), Bytes(0)],
            ..SacStats::default()
        }
    }

    #[test]
    fn sums() {
        let stats = two_ops();
        assert_eq!((stats.total_memory(), stats.total_runtime()), (Bytes(10), Millis(3.0)));
        assert_eq!(stats.check(), Ok(()));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        type Damage = fn(&mut SacStats);
        let cases: [(Damage, &str); 5] = [
            (|stats| stats.memory.push(Bytes(1)), "func_names has 2 operators, but memory has 3 entries"),
            (|stats| stats.rand_ops.push(2), "rand_ops names operator 2, but there are only 2"),
            (|stats| stats.inplace_ops.push((1, 7)), "inplace_ops names operator 7"),
            (|stats| stats.runtimes[1] = Millis(f64::NAN), "operator 1 (relu) has a runtime of NaN ms"),
            (|stats| stats.memory[1] = Bytes(u64::MAX), "adds up to more than 2^64 bytes"),
        ];
        for (damage, wording) in cases {
            let mut stats = two_ops();
            damage(&mut stats);
            let error = stats.check().unwrap_err().to_string();
            assert!(error.contains(wording), "{error}");
        }
    }
}
