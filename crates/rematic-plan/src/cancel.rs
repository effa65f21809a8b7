use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::PlanError;

/// Ends planning from another thread: who plans and who cancels hold clones of it.
///
/// Planners look at it before every replay and every run of their programme, which is every few milliseconds. A
/// cancelled one has no answer, so it does not return: it unwinds, without any message, up to [`Cancel::catch`].
///
/// ```
/// use rematic_plan::Cancel;
///
/// let cancel = Cancel::default();
/// assert_eq!(cancel.catch(|| 1 + 1).unwrap(), 2);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

/// What unwinds.
struct Cancelled;

impl Cancel {
    /// Ends what runs now, and what begins later.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Runs something that may be cancelled.
    ///
    /// # Errors
    /// [`PlanError::Cancelled`] if it was.
    pub fn catch<T>(&self, work: impl FnOnce() -> T) -> Result<T, PlanError> {
        // What a cancelled planner leaves behind is its own, and is gone.
        catch_unwind(AssertUnwindSafe(work)).or_else(|payload| match payload.downcast::<Cancelled>() {
            Ok(_) => Err(PlanError::Cancelled),
            Err(panic) => resume_unwind(panic),
        })
    }

    /// What is set once it is cancelled, for work that looks at it by itself and does not unwind.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Unwinds if it is cancelled.
    pub(crate) fn check(&self) {
        if self.is_cancelled() {
            resume_unwind(Box::new(Cancelled));
        }
    }
}
