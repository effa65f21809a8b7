use std::path::PathBuf;

use rematic_trace::{Bytes, FileAction};

use super::{PLAN_FORMAT, PLAN_VERSION};

/// A plan file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The operating system refuses.
    #[error("cannot {action} {}: {source}; {}", path.display(), action.advice())]
    Io {
        /// What was tried.
        action: FileAction,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Nothing in it.
    #[error("{} is empty; make a plan with `rematic plan … -o FILE`", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// More text than any real plan.
    #[error("{} has more than {limit} bytes; that is no plan", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read.
        limit: u64,
    },
    /// The text ends too early.
    #[error("{} ends in the middle (line {line}, column {column}): the file was cut off; plan again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// Where.
        column: usize,
    },
    /// Not a plan.
    #[error(
        "{} is not a plan: {place}{}{source}; make one with `rematic plan … -o FILE`", path.display(),
        if place.is_empty() { "" } else { ": " }
    )]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The field; empty for the whole.
        place: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// Another kind of file.
    #[error("{} says that it is `{found}`, not `{PLAN_FORMAT}`; make a plan with `rematic plan … -o FILE`", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
    },
    /// A version that does not exist yet, or never did.
    #[error("{} has format version {found}; this rematic reads 1 to {PLAN_VERSION}: update rematic, or plan again", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u64,
    },
    /// A number out of its range.
    #[error("{} is not valid: {place} is {found}, but must be {needed}; plan again", path.display())]
    Number {
        /// The file.
        path: PathBuf,
        /// The field.
        place: String,
        /// What it says.
        found: f64,
        /// What may be there.
        needed: &'static str,
    },
    /// Operators that are not numbered one after the other.
    #[error(
        "{} is not valid: operator {expected} of `{module}` is numbered {found}; a policy names all operators of a module \
         in order, from 0: plan again", path.display()
    )]
    OpNumber {
        /// The file.
        path: PathBuf,
        /// The module.
        module: String,
        /// The operator's position.
        expected: usize,
        /// What it says.
        found: usize,
    },
    /// An output that is moved to the host, where the document does not allow it.
    #[error(
        "{} is not valid: it moves the output of operator {index} (`{op}`) of `{module}` to the host (offload), but {why}; \
         plan again", path.display()
    )]
    Offload {
        /// The file.
        path: PathBuf,
        /// The module.
        module: String,
        /// The operator's position.
        index: usize,
        /// Its name.
        op: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A chunked loss that cannot be meant.
    #[error("{} is not valid: it computes the loss in chunks (`loss`), but {why}; plan again", path.display())]
    Loss {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// An output that cannot be moved to the host in this step.
    #[error(
        "the plan, of {planned}, moves the output of operator {index} (`{op}`) of `{module}` to the host, which cannot be done in \
         this step: {why}; plan again for this one"
    )]
    CannotOffload {
        /// The model that the plan says it is for.
        planned: String,
        /// The module.
        module: String,
        /// Position in its forward.
        index: usize,
        /// Its name.
        op: String,
        /// Why not.
        why: String,
    },
    /// Other bytes or moments than the plan says.
    #[error(
        "the plan is for another step, of {planned}: it moves {} bytes of `{module}` to the host and back, and in this step that \
         would be {}, or at another moment; plan again for this one", bytes.0, expected.0
    )]
    OtherMoves {
        /// The model that the plan says it is for.
        planned: String,
        /// The module.
        module: String,
        /// What the plan says.
        bytes: Bytes,
        /// What it is here.
        expected: Bytes,
    },
    /// A region that is there twice.
    #[error("{} is not valid: it checkpoints call {call} of `{module}` twice; keep one of them", path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The module.
        module: String,
        /// Which call.
        call: usize,
    },
    /// Variants in a version that has none.
    #[error("{} is not valid: it has variants, which version {found} of the format has not; plan again", path.display())]
    VariantsVersion {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u32,
    },
    /// Runs in a version that has none.
    #[error("{} is not valid: it has runs of calls, which version {found} of the format has not; plan again", path.display())]
    RunsVersion {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: u32,
    },
    /// Operators that are skipped in a version that has none.
    #[error(
        "{} is not valid: it skips operators of `{module}`, which version {found} of the format has not; plan again", path.display()
    )]
    SkipVersion {
        /// The file.
        path: PathBuf,
        /// The module.
        module: String,
        /// What it says.
        found: u32,
    },
    /// An operator is skipped whose result is read.
    #[error(
        "the plan, of {planned}, does not run operator {index} (`{op}`) of `{module}` again, but in this step what it makes is read \
         again; plan again for this one"
    )]
    CannotSkip {
        /// The model that the plan says it is for.
        planned: String,
        /// The module.
        module: String,
        /// Position in its forward.
        index: usize,
        /// Its name.
        op: String,
    },
    /// Runs beside variants.
    #[error(
        "{} is not valid: it has variants and checkpoints `{module}` as one; plan without runs (runs=False)", path.display()
    )]
    RunsInVariants {
        /// The file.
        path: PathBuf,
        /// The first and the last module of the run.
        module: String,
    },
    /// Two variants of one name.
    #[error("{} is not valid: two of its variants are called `{name}`; plan again", path.display())]
    SameName {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// Several variants, where one is followed.
    #[error(
        "the plan has several variants, {names}, and a Python file follows one; train with rematic.apply, or plan for one \
         of them alone"
    )]
    Variants {
        /// Their names.
        names: String,
    },
    /// A step that none of the variants is for.
    #[error(
        "the plan is for other steps, of {planned}: this one is none of its variants, {names}{why}; plan again with this one"
    )]
    NoVariant {
        /// The model that the plan says it is for.
        planned: String,
        /// Their names.
        names: String,
        /// What differs from the first; may be empty.
        why: String,
    },
    /// A module that the model does not have, or that cannot be checkpointed.
    #[error(
        "the plan is for another step, of {planned}: it checkpoints call {call} (from 0) of `{module}`, of which this step has \
         {calls} that can be checkpointed; plan again for this one"
    )]
    UnknownRegion {
        /// The model that the plan says it is for.
        planned: String,
        /// The module.
        module: String,
        /// Which call.
        call: usize,
        /// How many calls there are.
        calls: usize,
    },
    /// Calls that do not follow one another.
    #[error(
        "the plan is for another step, of {planned}: it checkpoints `{run}` as one, but in this step `{module}` is not called right \
         after the one before it, with what that returned; plan again for this one"
    )]
    NotARun {
        /// The model that the plan says it is for.
        planned: String,
        /// The first and the last module of the run.
        run: String,
        /// The call that does not follow.
        module: String,
    },
    /// Another operator than the plan expects.
    #[error(
        "the plan is for another step, of {planned}: operator {index} of `{module}` is {} in the plan, but {} in this step; \
         plan again for this one",
        expected.as_deref().unwrap_or("not there"),
        found.as_deref().unwrap_or("not there")
    )]
    OtherOperator {
        /// The model that the plan says it is for.
        planned: String,
        /// The module.
        module: String,
        /// Position in its forward.
        index: usize,
        /// What the plan says; `None` if it has fewer operators.
        expected: Option<String>,
        /// What the step has; `None` if it has fewer operators.
        found: Option<String>,
    },
    /// A step of another batch, type, optimizer or layout.
    #[error(
        "the plan is for another step, of {planned}: {fact} is {} in the plan, but {} in this step; plan again for this one, or \
         give the step as it was planned",
        expected.as_deref().unwrap_or("not set"),
        found.as_deref().unwrap_or("not set")
    )]
    OtherFact {
        /// The model that the plan says it is for.
        planned: String,
        /// What differs.
        fact: String,
        /// What the plan says.
        expected: Option<String>,
        /// What the step says.
        found: Option<String>,
    },
    /// A step that takes other memory, although it says the same of itself.
    #[error(
        "the plan is for another step, of {planned}: without a plan that one peaks at {expected} ({} bytes), this one at {found} \
         ({} bytes); plan again for this one, or give the step as it was planned, with the same layers and sizes", expected.0, found.0
    )]
    OtherPeak {
        /// The model that the plan says it is for.
        planned: String,
        /// The peak that the plan says the step has without it.
        expected: Bytes,
        /// The peak that it has.
        found: Bytes,
    },
    /// Two regions of the plan contain each other.
    #[error("the plan checkpoints both `{outer}` and `{inner}` inside it; keep one of them")]
    Nested {
        /// The outer module.
        outer: String,
        /// The inner module.
        inner: String,
    },
}
