use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the one who reads is in Python. A process has one face: the command, or the Python module.
static IN_PYTHON: AtomicBool = AtomicBool::new(false);

/// From now on options are named as in Python, or as on the command line. Gives what was before.
pub fn speak_python(in_python: bool) -> bool {
    IN_PYTHON.swap(in_python, Ordering::Relaxed)
}

/// An option, as messages name it: `--world-size` on the command line, `world_size` in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opt(pub &'static str);

/// An option with its value: `--planner milp`, or `planner="milp"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set<T>(pub Opt, pub T);

impl Opt {
    /// The option with a value.
    #[must_use]
    pub fn to<T: fmt::Display>(self, value: T) -> Set<T> {
        Set(self, value)
    }

    fn write(self, f: &mut fmt::Formatter<'_>, in_python: bool) -> fmt::Result {
        if in_python { f.write_str(&self.0.replace('-', "_")) } else { write!(f, "--{}", self.0) }
    }
}

impl<T: fmt::Display> Set<T> {
    fn write(&self, f: &mut fmt::Formatter<'_>, in_python: bool) -> fmt::Result {
        self.0.write(f, in_python)?;
        let value = self.1.to_string();
        match in_python {
            false => write!(f, " {value}"),
            true if value.parse::<f64>().is_ok() => write!(f, "={value}"),
            true => write!(f, "={value:?}"),
        }
    }
}

impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, IN_PYTHON.load(Ordering::Relaxed))
    }
}

impl<T: fmt::Display> fmt::Display for Set<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, IN_PYTHON.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not by the switch, which is the whole process's.
    struct Python<T>(Set<T>);

    impl<T: fmt::Display> fmt::Display for Python<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.write(f, true)
        }
    }

    #[test]
    fn each_face_has_its_words() {
        assert_eq!(Opt("world-size").to_string(), "--world-size");
        assert_eq!(Opt("planner").to("milp").to_string(), "--planner milp");
        assert_eq!(Python(Opt("planner").to("milp")).to_string(), "planner=\"milp\"");
        assert_eq!(Python(Opt("world-size").to(8)).to_string(), "world_size=8");
    }
}
