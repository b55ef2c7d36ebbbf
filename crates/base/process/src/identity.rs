//! Process identity: unique within a boot, with a check whether the process is alive.
//!
//! A process id alone is eventually reused. Together with the start time, the boot and the pid
//! namespace it identifies one process. On Linux everything here is async-signal-safe, so that a
//! child created by `fork` can find its own identity when it crashes; on Darwin nothing is.

pub use crate::process_identity::ProcessIdentity;

#[cfg(supported)]
impl ProcessIdentity {
    /// Returns the identity of the calling process. Some ten system calls; needs a free descriptor.
    pub fn of_this_process() -> ProcessIdentity {
        crate::os::identity::of_this_process()
    }

    /// Returns the identity of the calling process, with process id `pid`, without the boot id.
    ///
    /// Saves three system calls compared with [`of_this_process`](Self::of_this_process). This
    /// identity alone doesn't distinguish a process in another boot with the same id and start
    /// time. Not async-signal-safe.
    pub fn in_this_boot(pid: i32) -> ProcessIdentity {
        crate::os::identity::in_this_boot(pid)
    }

    /// Whether the process is alive, seen from the [calling](Self::of_this_process) process `own`.
    ///
    /// `None` if that can't be determined (another pid namespace, no `/proc`, a sandbox). A
    /// terminated process that waits for its parent is not alive. One that has since executed
    /// another program is.
    pub fn lives(&self, own: &ProcessIdentity) -> Option<bool> {
        crate::os::identity::lives(self, own)
    }

    /// Converts [`start`](Self::start) to nanoseconds since the epoch.
    ///
    /// For the identity of the calling process; `None` if the kernel doesn't report it. Not
    /// async-signal-safe.
    pub fn started_at(&self) -> Option<u64> {
        crate::os::identity::started_at(self)
    }
}

/// Start time of this process as recorded by [`ProcessIdentity::begin`], by any clock.
#[cfg(not(supported))]
static BEGAN: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// By the process id alone, plus the calling process's own record. Other processes are not queried.
#[cfg(not(supported))]
impl ProcessIdentity {
    /// Records the start time of the calling process, in the first call.
    pub fn begin(now: u64) {
        use core::sync::atomic::Ordering::Relaxed;
        let _ = BEGAN.compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Returns the identity of the calling process.
    pub fn of_this_process() -> ProcessIdentity {
        // SAFETY: it only asks.
        let pid = unsafe { libc::getpid() } as u32;
        let start = BEGAN.load(core::sync::atomic::Ordering::Relaxed);
        ProcessIdentity { pid, start, ..ProcessIdentity::default() }
    }

    /// Whether the process is alive: known if it has the calling process's id.
    pub fn lives(&self, own: &ProcessIdentity) -> Option<bool> {
        let is_comparable = (self.pid, self.pid_namespace) == (own.pid, own.pid_namespace);
        is_comparable.then_some(self.start == own.start)
    }
}

#[cfg(all(supported, target_vendor = "apple"))]
pub use crate::os::identity::is_traced;
#[cfg(supported)]
pub use crate::os::identity::{program_path, start_and_memory};
