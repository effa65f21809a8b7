use rematic_trace::Bytes;
use rematic_tradeoff::TradeoffError;

/// Why there is no answer. That a step cannot be made to fit is an answer, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
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
    /// A pattern that nothing matches.
    #[error("{setting} {pattern} matches no module that can be checkpointed; {known}")]
    NoMatch {
        /// The option that it was given to.
        setting: &'static str,
        /// The pattern.
        pattern: String,
        /// What there is, on lines of their own.
        known: String,
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
    /// Facts about a region that do not fit each other.
    #[error(transparent)]
    Tradeoff(#[from] TradeoffError),
}

impl PlanError {
    pub(crate) fn sharded_already(world_size: u64) -> Self {
        let needed = "1: the trace is the step of one rank of several, with its own share of everything already";
        PlanError::Setting { setting: "world_size", found: world_size.to_string(), needed }
    }

    pub(crate) fn no_devices() -> Self {
        PlanError::Setting { setting: "world_size", found: "0".to_owned(), needed: "at least 1" }
    }
}
