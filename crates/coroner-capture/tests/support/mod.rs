//! What the tests share whose cases are deaths of processes on Darwin: each case is the test program itself, started again.

use std::ffi::CStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The case that a process is to run, and its store.
pub(crate) const CASE: &str = "CORONER_TEST_CASE";
pub(crate) const STORE: &str = "CORONER_TEST_STORE";

/// A case that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Ends a check with what is wrong.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}
pub(crate) use ensure;

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By a signal, Darwin's number.
    Signal(i32),
    Status(i32),
}

/// Checks all cases, or those whose name contains the first of libtest's arguments that is no option, prints a line each, and
/// ends the process: with 1 if one failed, or there was none.
pub(crate) fn check_all<C>(cases: &[C], name: fn(&C) -> &str, check: fn(&C) -> Result<(), String>) -> ! {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let wanted = |case: &&C| only.as_ref().is_none_or(|only| name(case).contains(only.as_str()));
    let (mut count, mut failed) = (0, 0);
    for case in cases.iter().filter(wanted) {
        count += 1;
        match check(case) {
            Ok(()) => println!("{:<28} ok", name(case)),
            Err(error) => {
                failed += 1;
                println!("{:<28} FAILED: {error}", name(case));
            }
        }
    }
    println!("{count} deaths, {failed} failed");
    std::process::exit(i32::from(failed > 0 || count == 0));
}

/// Runs this program as a case, and says how it ended. With `CORONER_TEST_LOUD` its output is shown.
pub(crate) fn start(case: &str, store: &Path, environment: Option<(&str, &str)>) -> Result<Ending, String> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let quiet = || if std::env::var_os("CORONER_TEST_LOUD").is_some() { Stdio::inherit() } else { Stdio::null() };
    let mut child = Command::new(this)
        .env(CASE, case)
        .env(STORE, store)
        .envs(environment)
        .stdout(quiet())
        .stderr(quiet())
        .spawn()
        .map_err(|error| error.to_string())?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            return match (status.signal(), status.code()) {
                (Some(signal), _) => Ok(Ending::Signal(signal)),
                (_, Some(code)) => Ok(Ending::Status(code)),
                _ => Err(format!("no ending: {status:?}")),
            };
        }
        if began.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it still ran after {TIMEOUT:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The folder of the one run that a store has, with no more than one report of a death.
pub(crate) fn the_run(store: &Path) -> Result<PathBuf, String> {
    let runs: Vec<_> = std::fs::read_dir(store.join("runs"))
        .map_err(|error| format!("no runs: {error}"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let [run] = &runs[..] else { return Err(format!("one run and not {runs:?}")) };
    ensure!(!run.join("report-2").exists(), "one death, one report");
    Ok(run.clone())
}

/// The name of what is at an offset in the image that holds the function at `within`, by the image's own symbols. The image must
/// stay loaded.
pub(crate) fn name_at(within: usize, offset: u64) -> Option<String> {
    // SAFETY: an address in an image that is loaded; the strings that dladdr gives live as long as it.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        libc::dladdr(within as *const libc::c_void, &raw mut info);
        let here = info.dli_fbase as u64 + offset;
        if libc::dladdr(here as *const libc::c_void, &raw mut info) == 0 || info.dli_sname.is_null() {
            return None;
        }
        Some(CStr::from_ptr(info.dli_sname).to_string_lossy().into_owned())
    }
}
