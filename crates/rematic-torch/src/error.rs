use rematic_trace::Bytes;

/// Why there is no answer. That a budget cannot be met is an answer, not an error; and facts that come from a trace always
/// fit each other.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TorchError {
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
    /// A fraction that is not one.
    #[error("the share of memory to keep is {found}; give a number from 0 to 1")]
    Fraction {
        /// What was given.
        found: f64,
    },
    /// What must be saved does not fit.
    #[error(
        "a policy may keep {allowed} of the region's {total}, but {needed} must be kept in any case (random or in-place \
         operators); allow a share of at least {}", *.needed as f64 / *.total as f64
    )]
    PolicyTooSmall {
        /// Bytes that must be saved.
        needed: u64,
        /// Bytes that may be saved.
        allowed: u64,
        /// Bytes of all outputs.
        total: u64,
    },
    /// A setting out of its range.
    #[error("{setting} is {found}; give {needed}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What was given.
        found: String,
        /// What may be given.
        needed: &'static str,
    },
    /// A module that the model does not have.
    #[error("{setting} names `{name}`, but no module of that name runs in the step; `rematic stats` lists the modules")]
    UnknownModule {
        /// The setting.
        setting: &'static str,
        /// The name.
        name: String,
    },
    /// A module graph whose rows do not fit each other.
    #[error("module {index} (`{fqn}`): {rule}")]
    Graph {
        /// The row.
        index: usize,
        /// Its name.
        fqn: String,
        /// What it breaks.
        rule: &'static str,
    },
    /// Time ran out before any plan was found.
    #[error("no plan for {budget} was found within {seconds} s, nor a proof that there is none; allow more time")]
    TimeLimit {
        /// The budget.
        budget: Bytes,
        /// The limit.
        seconds: f64,
    },
    /// The solver gave up.
    #[error("the solver failed on {modules} modules: {reason}; try a slightly different budget, or another planner")]
    Solver {
        /// How many modules could be chosen.
        modules: usize,
        /// What it said.
        reason: String,
    },
    /// Somebody wanted no answer any more.
    #[error("planning was cancelled; plan again for an answer")]
    Cancelled,
}
