//! A system on which no fault is caught (but on Windows, by `windows_crash`): what needs no crash time is there all the same. A run has its directory, its lock and its mapped
//! state, and what the process says of itself (a panic, an error that it handled) becomes a report, by the standard library.

pub(crate) mod capture;
pub(crate) mod process;
mod report;
mod run;
pub(crate) mod walk;
#[cfg(windows_crashes)]
mod windows_crash;

use std::path::Path;

use crate::install_error::InstallError;

pub(crate) use run::Reason;
pub(crate) use walk::Stack;

/// Begins a run in the store at `directory`.
pub(crate) fn begin_run(directory: &Path, options: &capture::InstallOptions) -> Result<capture::Run, InstallError> {
    run::install(directory, options)
}
