//! Ctrl-C and the like while a script runs: the script ends, then the command, and no files stay behind.

/// A signal that ends the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interruption {
    /// Its number.
    pub(crate) signal: i32,
    /// What it is called.
    pub(crate) name: &'static str,
}

#[cfg(unix)]
pub(crate) use unix::Listener;

#[cfg(unix)]
mod unix {
    use std::fs;
    use std::io;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;
    use std::process::{Child, ExitStatus};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::iterator::Signals;

    use super::Interruption;
    use crate::run::REPORTS;

    const NAMES: [(i32, &str, Signal); 3] =
        [(SIGINT, "SIGINT (Ctrl-C)", Signal::INT), (SIGTERM, "SIGTERM", Signal::TERM), (SIGHUP, "SIGHUP", Signal::HUP)];
    /// How often it is looked whether the script has ended.
    const POLL: Duration = Duration::from_millis(20);
    /// A terminal sends Ctrl-C to the script too, which a second one would disturb as it ends.
    const BY_ITSELF: Duration = Duration::from_secs(1);
    /// How long a script may take to end.
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Listens for signals from its beginning on. They do not end the command any more.
    pub(crate) struct Listener {
        signals: Signals,
    }

    impl Listener {
        pub(crate) fn new() -> io::Result<Listener> {
            Ok(Listener { signals: Signals::new(NAMES.map(|(number, ..)| number))? })
        }

        /// Waits for the script, and after a signal, for all that it started. Says how it ended, and the signal if there was
        /// one.
        pub(crate) fn wait(
            mut self,
            child: &mut Child,
            reports: &Path,
        ) -> io::Result<(ExitStatus, Option<Interruption>)> {
            let mut ending: Option<Ending> = None;
            loop {
                let status = child.try_wait()?;
                for number in self.signals.pending() {
                    match &mut ending {
                        None => ending = Ending::new(number),
                        // Somebody has no more patience.
                        Some(ending) => ending.at_once = true,
                    }
                }
                match (&mut ending, status) {
                    (None, Some(status)) => return Ok((status, None)),
                    (None, None) => {}
                    (Some(ending), status) => {
                        let left = processes(reports);
                        if let (Some(status), true) = (status, left.is_empty()) {
                            return Ok((status, Some(ending.interruption)));
                        }
                        ending.go_on(child, &left);
                    }
                }
                thread::sleep(POLL);
            }
        }
    }

    /// A script that is being ended.
    struct Ending {
        interruption: Interruption,
        signal: Signal,
        since: Instant,
        told: bool,
        at_once: bool,
    }

    impl Ending {
        fn new(number: i32) -> Option<Ending> {
            let (number, name, signal) = NAMES.into_iter().find(|(known, ..)| *known == number)?;
            let interruption = Interruption { signal: number, name };
            Some(Ending { interruption, signal, since: Instant::now(), told: false, at_once: false })
        }

        /// Tells the processes that are left, once; in the end it does not ask them.
        fn go_on(&mut self, child: &mut Child, left: &[Pid]) {
            let waited = self.since.elapsed();
            if self.at_once || waited >= PATIENCE {
                let _ = child.kill();
                tell(left, Signal::KILL);
            } else if !self.told && (self.signal != Signal::INT || waited >= BY_ITSELF) {
                self.told = true;
                tell(left, self.signal);
            }
        }
    }

    fn tell(processes: &[Pid], signal: Signal) {
        for process in processes {
            // One that ended just now cannot be told: so much the better.
            let _ = kill_process(*process, signal);
        }
    }

    /// The processes of a rehearsal: those whose environment names its folder of reports. A shell that starts the script is one
    /// of them.
    fn processes(reports: &Path) -> Vec<Pid> {
        let wanted = [REPORTS.as_bytes(), b"=", reports.as_os_str().as_bytes()].concat();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = numbers.filter(|number| {
            // One that has ended has no environment any more; one of another user cannot be read.
            fs::read(format!("/proc/{number}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|variable| variable == wanted))
        });
        ours.filter_map(Pid::from_raw).collect()
    }
}

/// Without signals there is nothing to listen for.
#[cfg(not(unix))]
pub(crate) struct Listener;

#[cfg(not(unix))]
impl Listener {
    pub(crate) fn new() -> std::io::Result<Listener> {
        Ok(Listener)
    }

    pub(crate) fn wait(
        self,
        child: &mut std::process::Child,
        _reports: &std::path::Path,
    ) -> std::io::Result<(std::process::ExitStatus, Option<Interruption>)> {
        Ok((child.wait()?, None))
    }
}
