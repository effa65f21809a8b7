use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No input may keep the command busy for longer. A busy machine runs an unoptimised build in a fraction of it.
const TIME_CAP: Duration = Duration::from_secs(10);

/// What a run of the command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the command, and fails the test if it takes too long.
pub(crate) fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let (stdout, stderr) = (folder.path().join("stdout"), folder.path().join("stderr"));
    let mut child = Command::new(env!("CARGO_BIN_EXE_rematic"))
        .args(arguments)
        .env("RUST_BACKTRACE", "0")
        // Whatever is installed here, nothing is captured, and nothing is found in a cache.
        .env("REMATIC_PYTHON", "no-such-python")
        .env("HF_HUB_CACHE", folder.path())
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).unwrap())
        .stderr(File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > TIME_CAP {
            child.kill().unwrap();
            child.wait().unwrap();
            let arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
            panic!("{arguments:?} is not done after {TIME_CAP:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |path: &Path| String::from_utf8(std::fs::read(path).unwrap()).unwrap();
    Ran { code: status.code(), stdout: text(&stdout), stderr: text(&stderr) }
}

/// Runs the command, which must refuse its input with a message that has all of these parts.
#[track_caller]
pub(crate) fn refused<S: AsRef<OsStr>>(arguments: &[S], parts: &[&str]) {
    let ran = run(arguments);
    let shown: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
    assert_eq!(ran.code, Some(2), "{shown:?}: {ran:?}");
    assert_eq!(ran.stdout, "", "{shown:?}");
    assert!(ran.stderr.starts_with("error: "), "{shown:?}: {}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{shown:?}: {}", ran.stderr);
    for part in parts {
        assert!(ran.stderr.contains(part), "{shown:?}: no `{part}` in: {}", ran.stderr);
    }
}

/// As [`refused`], for `rematic stats` of one source.
#[track_caller]
pub(crate) fn refused_source(path: &Path, parts: &[&str]) {
    refused(&[OsStr::new("stats"), path.as_os_str()], parts);
}
