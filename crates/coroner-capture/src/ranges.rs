//! The app's own code: ranges whose frames unwind by a rule that the app registered.
//!
//! They belong to the process, not to an install: a range may be registered before, and stays when Coroner is uninstalled.

use coroner_unwind::RangeTable;

/// Ranges that may be registered at once: a JIT registers what it maps, not each function.
pub const MOST_RANGES: usize = 512;

/// The ranges, for every walk of this process: of a crash, of a throw, of a live backtrace.
pub static RANGES: RangeTable<MOST_RANGES> = RangeTable::new();
