//! Limits that more than one file needs.

use crate::InstallOptions;

/// Reports of crashes that one run may write, in a process that continues after each. The last one's file is used again, so that
/// the last crash always has one. Non-fatal reports have the numbers after it, so that they take no crash's place.
pub(crate) const MAX_REPORTS: u32 = 8;

/// The number of a run's first non-fatal report: `report-9`.
pub const FIRST_NON_FATAL: u32 = MAX_REPORTS + 1;

/// Bytes kept of the stack of the crashed or hung thread, where the stacks of all threads are wanted.
pub(crate) const CRASHED_STACK: usize = 64 << 10;

/// Bytes kept of all other stacks together: with more threads than it is enough for, each has an equal part.
pub(crate) const OTHER_STACKS: usize = 448 << 10;

/// Bytes of disk for the report's file: the reserve, and where the stacks of all threads are wanted, their bytes and sections.
pub(crate) fn report_size(options: &InstallOptions) -> u32 {
    const ALL_STACKS: u32 = ((CRASHED_STACK + OTHER_STACKS) as u32) + (64 << 10);
    options.reserve.saturating_add(if options.stack_memory_all { ALL_STACKS } else { 0 })
}

/// Addresses that one pass over an image's symbols can name.
pub(crate) const ADDRESSES_PER_SCAN: usize = 128;

/// Symbols read from one image. A program of a gigabyte has as many; they are read in tens of milliseconds.
pub(crate) const MAX_SYMBOLS: u32 = 2_000_000;
