//! Ranges of code without unwind data whose rule the app registered: JITs, interpreters, trampolines.
//!
//! They belong to the process, not to an install: a range may be registered before, and stays when Coroner is uninstalled.

use coroner_unwind::RangeTable;

/// Ranges that may be registered at once: a JIT registers what it maps, not each function.
pub const MAX_RANGES: usize = 512;

/// The ranges, for every walk of this process.
pub static RANGES: RangeTable<MAX_RANGES> = RangeTable::new();
