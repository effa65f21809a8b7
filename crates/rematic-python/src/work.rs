//! Long computations that Ctrl-C ends.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rematic::Cancel;

/// How often the calling thread looks for signals.
const POLL: Duration = Duration::from_millis(50);
/// What the main thread has on most systems; the computations are made for that.
const STACK: usize = 8 << 20;

/// Computes on a thread of its own, without the GIL, while the calling thread looks for signals. After one the caller
/// goes on at once with `KeyboardInterrupt`, and the work is cancelled; the thread holds no Python object.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    cancel: &Cancel,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = channel();
    Builder::new().name("rematic".to_owned()).stack_size(STACK).spawn(move || {
        // Nobody listens any more after a signal.
        let _ = sender.send(work());
    })?;
    // A channel may not be shared between threads, so it goes there and back.
    let mut receiver = Some(receiver);
    loop {
        let listening = receiver.take();
        let (answer, listening) = py.detach(move || {
            let answer = listening.as_ref().map(|receiver| receiver.recv_timeout(POLL));
            (answer, listening)
        });
        match answer {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(RecvTimeoutError::Timeout)) => py.check_signals().inspect_err(|_| cancel.cancel())?,
            Some(Err(RecvTimeoutError::Disconnected)) | None => {
                return Err(PyRuntimeError::new_err("rematic failed; the message above says where: please report it"));
            }
        }
        receiver = listening;
    }
}
