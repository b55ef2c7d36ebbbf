//! The names of directories and files in a store.

use std::ffi::{OsStr, OsString};

use coroner_report::model::Id;

/// The directory of runs.
pub(crate) const RUNS: &str = "runs";
/// What becomes of the directory of a run that ended by itself.
pub(crate) const CLEAN: &str = "clean";
/// In a run's directory: the minidump of its crash (Windows).
pub(crate) const MINIDUMP: &str = "minidump.dmp";
/// Behind a minidump that is whole. Readers go by the offsets of its streams, and not by the file's length.
pub(crate) const MINIDUMP_END: [u8; 8] = *b"\0whole\0\n";
/// Where the default folder sink writes.
pub(crate) const REPORTS: &str = "reports";
/// Name of the file that the run holds locked.
pub(crate) const LOCK: &str = "lock";
/// Name of the file with the crash report, reserved at install.
pub(crate) const REPORT: &str = "report";
/// Name of the file with the run state.
pub(crate) const STATE: &str = "state";

/// The name of a run's directory.
pub(crate) fn name_of(run: Id) -> OsString {
    run.to_string().into()
}

/// The run whose directory has this name. Of the ways to write an id only one is a name, so that no run has two.
pub(crate) fn run_of(name: &OsStr) -> Option<Id> {
    let id: Id = name.to_str()?.parse().ok()?;
    (name_of(id) == name).then_some(id)
}
