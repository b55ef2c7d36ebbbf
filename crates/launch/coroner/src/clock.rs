//! The clocks of this crate.

use std::time::{Duration, SystemTime};

use coroner_report::model::Timestamp;

/// Returns the time in nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> u64 {
    Timestamp::from(SystemTime::now()).0
}

/// Returns zero: thread times can't be read on this system.
#[cfg(not(unix))]
pub(crate) fn thread_time() -> Duration {
    Duration::ZERO
}

/// Returns the CPU time that the calling thread has used.
#[cfg(unix)]
pub(crate) fn thread_time() -> Duration {
    // SAFETY: zeros are a valid time; the library writes one, outside a signal handler.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
