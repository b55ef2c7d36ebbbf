//! Stops another thread of this process, and lists its threads (not async-signal-safe).

use coroner_process::threads::Tid;

#[cfg(target_vendor = "apple")]
pub use darwin::{NotCaptured, stop};
#[cfg(not(target_vendor = "apple"))]
pub use linux::{NotCaptured, blocks_stop_signal, set_stopper, stop, trace};

#[cfg(not(target_vendor = "apple"))]
mod linux {
    use core::sync::atomic::{AtomicPtr, Ordering};

    use coroner_process::registers::Registers;
    use coroner_process::signals::bit;
    pub use coroner_process::stop_the_world::NotCaptured;
    use coroner_process::stop_the_world::{Interrupted, ThreadStopper};
    use coroner_process::threads::{TaskDirectory, Tid};

    static STOPPER: AtomicPtr<ThreadStopper> = AtomicPtr::new(core::ptr::null_mut());

    /// Sets the thread stopper to use from now on; `None` if there is none.
    pub fn set_stopper(stopper: Option<&'static ThreadStopper>) {
        let at = stopper.map_or(core::ptr::null_mut(), |stopper| core::ptr::from_ref(stopper).cast_mut());
        STOPPER.store(at, Ordering::Release);
    }

    fn stopper() -> Option<&'static ThreadStopper> {
        // SAFETY: null, or what `set_stopper` was given, which lives forever.
        unsafe { STOPPER.load(Ordering::Acquire).as_ref() }
    }

    /// Stops another thread of this process until the result is dropped. Be brief, and call nothing
    /// that may take a lock: the thread may hold it.
    ///
    /// # Errors
    /// [`NotCaptured::NoAnswer`] after `timeout` nanoseconds or while Coroner is not installed; for
    /// the others see [`ThreadStopper::interrupt`].
    pub fn stop(tid: Tid, timeout: u64) -> Result<Interrupted<'static>, NotCaptured> {
        stopper().ok_or(NotCaptured::NoAnswer)?.interrupt(tid, timeout)
    }

    /// Returns `true` if a thread of this process, with this `status` in its `/proc` directory
    /// (proc_pid_status(5)), blocks the signal that stops threads.
    pub fn blocks_stop_signal(status: &str) -> bool {
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        let blocked = blocked.and_then(|blocked| u64::from_str_radix(blocked.trim(), 16).ok());
        stopper().is_some_and(|stopper| blocked.unwrap_or(0) & bit(stopper.signal()) != 0)
    }

    /// Same as [`stop`], but by ptrace, so that no system call of the thread is interrupted: calls
    /// `with` with the thread's registers while it is stopped.
    ///
    /// # Errors
    /// [`NotCaptured::TraceDeadline`] after `timeout` nanoseconds, [`NotCaptured::NoAnswer`] while
    /// Coroner is not installed; for the others see [`ThreadStopper::trace`].
    pub fn trace<R>(tid: Tid, timeout: u64, with: impl FnOnce(&Registers) -> R) -> Result<R, NotCaptured> {
        stopper().ok_or(NotCaptured::NoAnswer)?.trace(tid, timeout, with)
    }

    pub(super) fn for_each(each: &mut impl FnMut(Tid)) -> bool {
        let Some(tasks) = stopper().and_then(|_| TaskDirectory::open().ok()) else { return false };
        let is_listed = tasks.list(each).error.is_none();
        tasks.close();
        is_listed
    }
}

#[cfg(target_vendor = "apple")]
mod darwin {
    use coroner_process::interrupted_thread::Interrupted;
    use coroner_process::threads::{ThreadList, Tid, facts, is_left_out};

    /// Reason why another thread was not captured.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum NotCaptured {
        /// The thread doesn't exist: it ended.
        ThreadGone,
        /// The thread was stopped, but its registers could not be read.
        RegistersUnreadable,
    }

    impl core::fmt::Display for NotCaptured {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            f.write_str(match self {
                NotCaptured::ThreadGone => "the thread has ended",
                NotCaptured::RegistersUnreadable => "its registers can't be read",
            })
        }
    }

    impl core::error::Error for NotCaptured {}

    /// Stops another thread of this process until the result is dropped. Be brief, and call nothing
    /// that may take a lock: the thread may hold it. The kernel stops the thread whatever it does,
    /// without a timeout.
    ///
    /// # Errors
    /// [`NotCaptured::ThreadGone`] if there is no such thread, it is the calling one, or one that
    /// recovers guarded loads.
    pub fn stop(tid: Tid) -> Result<Interrupted, NotCaptured> {
        Interrupted::stop(tid).ok_or(NotCaptured::ThreadGone)
    }

    pub(super) fn for_each(each: &mut impl FnMut(Tid)) -> bool {
        let Ok(list) = ThreadList::take() else { return false };
        let tids = list.ports().iter().filter_map(|port| facts(*port)).map(|facts| facts.tid);
        tids.filter(|tid| !is_left_out(*tid)).for_each(each);
        true
    }
}

/// Calls `each` with the ID of every thread of this process except those that [`stop`] never stops.
/// Returns `false` if the kernel provides no list, and on Linux while Coroner is not installed.
pub fn for_each_thread(each: &mut impl FnMut(Tid)) -> bool {
    #[cfg(target_vendor = "apple")]
    return darwin::for_each(each);
    #[cfg(not(target_vendor = "apple"))]
    linux::for_each(each)
}
