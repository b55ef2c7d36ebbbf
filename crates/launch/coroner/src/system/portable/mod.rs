//! Systems where faults are not caught (except on Windows, by `windows_crash`).
//!
//! Everything that doesn't need crash time is available. A run has its directory, lock and mapped
//! state, and panics and handled errors become reports, written with the standard library.

pub(crate) mod capture;
pub(crate) mod exception;
pub(crate) mod process;
mod report;
mod run;
pub(crate) mod walk;
#[cfg(windows_crashes)]
mod windows_crash;

use std::path::Path;

pub(crate) use run::Reason;
pub(crate) use walk::Stack;

/// Begins a run in the store at `directory`.
pub(crate) fn begin_run(directory: &Path, options: &capture::InstallOptions) -> Result<capture::Run, Reason> {
    let current = run::install(directory, options)?;
    let mut limits = capture::InstallLimits::default();
    #[cfg(windows_crashes)]
    let is_armed = windows_crash::install(current, options, run::random_id());
    #[cfg(not(windows_crashes))]
    let is_armed = false;
    limits.no_faults = !is_armed;
    let run::Current { id, pid, state, .. } = *current;
    Ok(capture::Run { id, pid, state, limits, previous: None, pid_namespace: 0 })
}
