//! Which process it is: an identity that is not given to another process of the same boot, and whether that one lives.
//!
//! A process id alone is given again sooner or later. Together with the start time, the boot and the pid namespace it names one
//! process. On Linux everything here is async-signal-safe, so that a child made by `fork` can find out about itself when it
//! crashes; on Darwin nothing is.

pub use crate::process_identity::ProcessIdentity;

#[cfg(supported)]
impl ProcessIdentity {
    /// The identity of the calling process. Some ten system calls; needs a free descriptor.
    pub fn of_this_process() -> ProcessIdentity {
        crate::os::identity::of_this_process()
    }

    /// As [`of_this_process`](Self::of_this_process), whose process id is `pid`, without the boot, which costs three system calls
    /// more: a process of another boot that has the same id, and began as soon after it, can't be distinguished from it by this alone. Not
    /// async-signal-safe.
    pub fn in_this_boot(pid: i32) -> ProcessIdentity {
        crate::os::identity::in_this_boot(pid)
    }

    /// Whether the process lives, asked by the process `own` (the [calling](Self::of_this_process) one); `None` if that can't be
    /// known from there (another pid namespace, no `/proc`, a sandbox). A process that has ended and waits for its parent does
    /// not live. One that has executed another program since does.
    pub fn lives(&self, own: &ProcessIdentity) -> Option<bool> {
        crate::os::identity::lives(self, own)
    }

    /// [`start`](Self::start) of the calling process, whose identity this is, in nanoseconds since the epoch; `None` if the kernel does not
    /// say. Not async-signal-safe.
    pub fn started_at(&self) -> Option<u64> {
        crate::os::identity::started_at(self)
    }
}

/// When this process said that it begins, by whatever clock.
#[cfg(not(supported))]
static BEGAN: core::sync::atomic::AtomicU64 = core::sync::atomic::AtomicU64::new(0);

/// By the process id alone, and of the calling process by what it noted of itself: of others nothing is asked.
#[cfg(not(supported))]
impl ProcessIdentity {
    /// Notes when the calling process began, by the first call.
    pub fn begin(now: u64) {
        use core::sync::atomic::Ordering::Relaxed;
        let _ = BEGAN.compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// The identity of the calling process.
    pub fn of_this_process() -> ProcessIdentity {
        // SAFETY: it only asks.
        let pid = unsafe { libc::getpid() } as u32;
        let start = BEGAN.load(core::sync::atomic::Ordering::Relaxed);
        ProcessIdentity { pid, start, ..ProcessIdentity::default() }
    }

    /// Whether the process lives: known if it has the calling one's id.
    pub fn lives(&self, own: &ProcessIdentity) -> Option<bool> {
        let is_comparable = (self.pid, self.pid_namespace) == (own.pid, own.pid_namespace);
        is_comparable.then_some(self.start == own.start)
    }
}

#[cfg(all(supported, target_vendor = "apple"))]
pub use crate::os::identity::is_traced;
#[cfg(supported)]
pub use crate::os::identity::{program_path, start_and_memory};
