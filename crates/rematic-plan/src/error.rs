use rematic_layout::EvenShards;
use rematic_trace::Opt;

/// Why there is no answer. That a step cannot be made to fit is an answer, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A step that cannot be spread over so many ranks.
    #[error("{} is {ranks}; give {}", Opt("world-size"), needed(*.why))]
    Ranks {
        /// How many were asked for.
        ranks: u64,
        /// Why it cannot.
        why: EvenShards,
    },
    /// A pattern that nothing matches.
    #[error("{} matches no module that can be checkpointed; {known}", .setting.to(.pattern))]
    NoMatch {
        /// The option that it was given to.
        setting: Opt,
        /// The pattern.
        pattern: String,
        /// What there is, on lines of their own.
        known: String,
    },
    /// Somebody wanted no answer any more.
    #[error("planning was cancelled; plan again for an answer")]
    Cancelled,
}

fn needed(why: EvenShards) -> &'static str {
    match why {
        EvenShards::NoRanks => "at least 1",
        EvenShards::TooManyRanks => "at most 4294967295",
        EvenShards::ShardedAlready => {
            "1: the trace is the step of one rank of several, with its own share of everything already"
        }
    }
}
