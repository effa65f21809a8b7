/// Why there is no answer. That a step cannot be made to fit is an answer, not an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nowhere to run.
    #[error("world_size is 0; give at least 1")]
    NoDevices,
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
    /// Somebody wanted no answer any more.
    #[error("planning was cancelled; plan again for an answer")]
    Cancelled,
    /// A step of one rank is to be spread over others once more.
    #[error(
        "world_size is {world_size}; give 1: the trace is the step of one rank of several, with its own share of everything \
         already"
    )]
    ShardedAlready {
        /// What was asked for.
        world_size: u64,
    },
}
