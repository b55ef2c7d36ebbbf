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
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
