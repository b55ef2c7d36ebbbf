//! Limits that are used by more than one file.

use crate::InstallOptions;

/// Maximum number of crash reports per run, in a process that continues after each. The last one's
/// file is reused, so that the last crash always has a report. Non-fatal reports have higher
/// numbers, so that they take no crash's place.
pub(crate) const MAX_REPORTS: u32 = 8;

/// Number of a run's first non-fatal report: `report-9`.
pub const FIRST_NON_FATAL: u32 = MAX_REPORTS + 1;

/// Bytes kept of the crashed or hung thread's stack, if the stacks of all threads are included.
pub(crate) const CRASHED_STACK: usize = 64 << 10;

/// Bytes kept of all other stacks together: with more threads than this is enough for, each gets an
/// equal part.
pub(crate) const OTHER_STACKS: usize = 448 << 10;

/// Returns the disk space for the report file in bytes: the reserve, plus the bytes and sections of
/// all threads' stacks, if included.
pub(crate) fn report_size(options: &InstallOptions) -> u32 {
    const ALL_STACKS: u32 = ((CRASHED_STACK + OTHER_STACKS) as u32) + (64 << 10);
    options.reserve.saturating_add(if options.stack_memory_all { ALL_STACKS } else { 0 })
}

/// Maximum number of addresses that one pass over an image's symbols can name.
pub(crate) const ADDRESSES_PER_SCAN: usize = 128;

/// Maximum number of symbols read from one image. A program of a gigabyte has this many; they are
/// read in tens of milliseconds.
pub(crate) const MAX_SYMBOLS: u32 = 2_000_000;
