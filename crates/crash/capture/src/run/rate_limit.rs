//! Rate limit for reports after which the process continues.

use core::sync::atomic::{AtomicU64, Ordering};

/// Budget of reports per hour (also the burst size): each stops all threads for a moment, and is
/// sent.
#[derive(Debug)]
pub struct Budget {
    /// Time at which everything taken will have been refilled, in nanoseconds of the monotonic
    /// clock (generic cell rate algorithm).
    refilled: AtomicU64,
}

impl Budget {
    /// Creates a full budget.
    #[allow(clippy::new_without_default, reason = "it is a static")]
    pub const fn new() -> Self {
        Self { refilled: AtomicU64::new(0) }
    }

    /// Resets the budget to full.
    pub fn begin(&self) {
        self.refilled.store(0, Ordering::Release);
    }

    /// Takes one report from a budget of `per_hour` at time `now` in nanoseconds; returns `false`
    /// if none is left.
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
