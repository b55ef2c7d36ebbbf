//! Code ranges without unwind data whose rule the app registered: JITs, interpreters, trampolines.
//!
//! The ranges belong to the process, not to an install: a range may be registered before, and stays
//! registered when Coroner is uninstalled.

use coroner_unwind::RangeTable;

/// Maximum number of registered ranges: a JIT registers what it maps, not each function.
pub const MAX_RANGES: usize = 512;

/// The ranges, for every walk of this process.
pub static RANGES: RangeTable<MAX_RANGES> = RangeTable::new();
