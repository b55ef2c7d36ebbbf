//! The table of the threads that a report has suspended.

use coroner_process::files;
use coroner_process::syscall::Result;
use coroner_process::threads::Tid;
use mach2::port::mach_port_t;

/// Threads that one report holds besides the crashed one.
const CAPACITY: usize = 4096;

/// A suspended thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendedThread {
    pub(super) port: mach_port_t,
    /// What it was doing before it was suspended, as the report has it; 0 for unknown.
    pub(super) state: u8,
    pub(super) tid: Tid,
    pub(super) queue_at: u64,
    pub(super) specific: u64,
}

/// The suspended threads. All zero is empty.
#[derive(Debug)]
pub(crate) struct SuspendedThreads {
    pub(super) entries: [SuspendedThread; CAPACITY],
    pub(super) count: usize,
}

impl SuspendedThreads {
    /// An empty table in memory of its own (not async-signal-safe): it is too large for the stack of who installs.
    pub(crate) fn map() -> Result<*mut SuspendedThreads> {
        // Zeros are an empty table.
        files::map(size_of::<SuspendedThreads>()).map(|at| at as *mut SuspendedThreads)
    }

    /// Gives the memory back (not async-signal-safe).
    ///
    /// # Safety
    /// It is from [`SuspendedThreads::map`], and nobody uses it any more.
    pub(crate) unsafe fn unmap(table: *mut SuspendedThreads) {
        // SAFETY: by the contract.
        unsafe { files::unmap(table as usize, size_of::<SuspendedThreads>()) };
    }
}
