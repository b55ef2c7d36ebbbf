//! How many reports a process writes that it goes on after.

use core::sync::atomic::{AtomicU64, Ordering};

/// So many reports an hour, as many of them at once: each stops all threads for a moment, and is sent.
#[derive(Debug)]
pub struct Budget {
    /// The generic cell rate algorithm: when, by the monotonic clock, all that was taken will have been refilled.
    refilled: AtomicU64,
}

impl Budget {
    /// Nothing is taken yet.
    #[allow(clippy::new_without_default, reason = "it is a static")]
    pub const fn new() -> Self {
        Self { refilled: AtomicU64::new(0) }
    }

    /// Nothing is taken yet, again.
    pub fn begin(&self) {
        self.refilled.store(0, Ordering::Release);
    }

    /// Takes one report of `per_hour` at `now`, nanoseconds; false if there is none left.
    #[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
    pub fn take(&self, per_hour: u32, now: u64) -> bool {
        const HOUR: u64 = 3_600_000_000_000;
        let Some(each) = HOUR.checked_div(per_hour.into()) else { return false };
        let taken = self.refilled.fetch_update(Ordering::AcqRel, Ordering::Acquire, |refilled| {
            let refilled = refilled.max(now).saturating_add(each);
            (refilled <= now.saturating_add(HOUR)).then_some(refilled)
        });
        taken.is_ok()
    }
}
