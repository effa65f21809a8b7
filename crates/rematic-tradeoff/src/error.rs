/// Why the facts about a region's operators cannot be used. Facts that come from a trace always can.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TradeoffError {
    /// The columns have different lengths.
    #[error("func_names has {ops} operators, but {column} has {found} entries; give one entry per operator")]
    Length {
        /// How many operators there are.
        ops: usize,
        /// The column that differs.
        column: &'static str,
        /// Its length.
        found: usize,
    },
    /// An index points behind the last operator.
    #[error("{column} names operator {index}, but there are only {ops}; count from 0")]
    NoSuchOp {
        /// The column.
        column: &'static str,
        /// What stands there.
        index: usize,
        /// How many operators there are.
        ops: usize,
    },
    /// A time that is negative or not a number.
    #[error("operator {index} ({name}) has a runtime of {found} ms; give a finite time that is not negative")]
    Runtime {
        /// The operator.
        index: usize,
        /// Its name.
        name: String,
        /// The time.
        found: f64,
    },
    /// Sizes whose sum does not fit.
    #[error("the memory of the {ops} operators adds up to more than 2^64 bytes; give sizes in bytes")]
    TooLarge {
        /// How many operators there are.
        ops: usize,
    },
}
