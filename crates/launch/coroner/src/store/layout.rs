//! Names of a store's directories and files.

use std::ffi::{OsStr, OsString};

use coroner_report::model::Id;

/// The directory of the runs.
pub(crate) const RUNS: &str = "runs";
/// The name to which a cleanly ended run's directory is renamed.
pub(crate) const CLEAN: &str = "clean";
/// Name of the file with the crash's minidump (Windows).
pub(crate) const MINIDUMP: &str = "minidump.dmp";
/// Appended to a complete minidump. Readers of minidumps ignore it, because they use the streams'
/// offsets and not the file's length.
pub(crate) const MINIDUMP_END: [u8; 8] = *b"\0whole\0\n";
/// The default folder sink's folder.
pub(crate) const REPORTS: &str = "reports";
/// Name of the file that the run keeps locked.
pub(crate) const LOCK: &str = "lock";
/// Name of the file with the crash report, reserved at install.
pub(crate) const REPORT: &str = "report";
/// Name of the file with the run state.
pub(crate) const STATE: &str = "state";

/// Returns the name of a run's directory.
pub(crate) fn name_of(run: Id) -> OsString {
    run.to_string().into()
}

/// Returns the run whose directory has this name.
///
/// Only one form of an id is valid, so that a run can't have two names.
pub(crate) fn run_of(name: &OsStr) -> Option<Id> {
    let id: Id = name.to_str()?.parse().ok()?;
    (name_of(id) == name).then_some(id)
}
