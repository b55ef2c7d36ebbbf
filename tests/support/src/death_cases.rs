//! Test programs whose cases are deaths of processes on Darwin: each case is the test program
//! itself, started again.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Environment variable: the case that a process is to run.
pub const CASE: &str = "CORONER_TEST_CASE";
/// Environment variable: the case's store.
pub const STORE: &str = "CORONER_TEST_STORE";

/// A case that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns an error with this message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => {
        if !$condition {
            return Err(format!($($message)*));
        }
    };
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By a signal, with Darwin's number.
    Signal(i32),
    /// By an exit, with this status.
    Status(i32),
}

/// Checks all cases, or those whose name contains the first of libtest's arguments that is not an
/// option, prints a line each, and ends the process: with 1 if one failed, or there was none.
pub fn check_all<C>(cases: &[C], name: fn(&C) -> &str, check: fn(&C) -> Result<(), String>) -> ! {
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

/// Runs this program as a case and returns how it ended. `CORONER_TEST_LOUD` shows its output.
///
/// # Errors
/// The process can't be started, or is still running after two minutes.
pub fn start(case: &str, store: &Path, environment: Option<(&str, &str)>) -> Result<Ending, String> {
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

/// The folder of a store's only run, which has one report at most.
///
/// # Errors
/// The store has no run or several, or the run has several reports.
pub fn the_run(store: &Path) -> Result<PathBuf, String> {
    let runs: Vec<_> = std::fs::read_dir(store.join("runs"))
        .map_err(|error| format!("no runs: {error}"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    let [run] = &runs[..] else { return Err(format!("one run and not {runs:?}")) };
    ensure!(!run.join("report-2").exists(), "one death, one report");
    Ok(run.clone())
}

/// `Dl_info` of <dlfcn.h>.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    name: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// The name of what is at an offset in the image that holds the function at `within`, by the
/// image's own symbols. The image must stay loaded.
pub fn name_at(within: usize, offset: u64) -> Option<String> {
    // SAFETY: an address in an image that is loaded; the strings that dladdr gives live as long as
    // it.
    unsafe {
        let mut info: DlInfo = std::mem::zeroed();
        dladdr(within as *const c_void, &raw mut info);
        let here = info.base as u64 + offset;
        if dladdr(here as *const c_void, &raw mut info) == 0 || info.name.is_null() {
            return None;
        }
        Some(CStr::from_ptr(info.name).to_string_lossy().into_owned())
    }
}
