//! Table of the threads that a report has suspended.

use coroner_process::files;
use coroner_process::syscall::Result;
use coroner_process::threads::Tid;
use mach2::port::mach_port_t;

/// Maximum number of threads in one report besides the crashed one.
const CAPACITY: usize = 4096;

/// A suspended thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct SuspendedThread {
    pub(super) port: mach_port_t,
    /// The thread's state before it was suspended, in the report's form; 0 for unknown.
    pub(super) state: u8,
    pub(super) tid: Tid,
    pub(super) queue_at: u64,
    pub(super) specific: u64,
}

/// The suspended threads. All zero is a valid empty table.
#[derive(Debug)]
pub(crate) struct SuspendedThreads {
    pub(super) entries: [SuspendedThread; CAPACITY],
    pub(super) count: usize,
}

impl SuspendedThreads {
    /// Maps an empty table (not async-signal-safe): it is too large for the stack of the installing
    /// thread.
    pub(crate) fn map() -> Result<*mut SuspendedThreads> {
        // Zeros are an empty table.
        files::map(size_of::<SuspendedThreads>()).map(|at| at as *mut SuspendedThreads)
    }

    /// Unmaps the table (not async-signal-safe).
    ///
    /// # Safety
    /// `table` must be from [`SuspendedThreads::map`], and nobody may use it any more.
    pub(crate) unsafe fn unmap(table: *mut SuspendedThreads) {
        // SAFETY: by the contract.
        unsafe { files::unmap(table as usize, size_of::<SuspendedThreads>()) };
    }
}
