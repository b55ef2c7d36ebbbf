//! How much a store or a folder of reports may hold, and what has to go first.

use std::time::{Duration, SystemTime};

/// What may be kept: numbers, an age and a size. Runs without a report go first, then reports that are not whole, then whole
/// ones; and of each kind the oldest first, whichever limit is passed.
///
/// ```
/// use std::time::Duration;
/// let limits = coroner::Limits { number: 10, ..coroner::Limits::default() };
/// assert_eq!(limits.age, Duration::from_hours(90 * 24));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most reports kept. Default: 100.
    pub number: usize,
    /// Most ended runs kept that left no report: they wait where reports are not delivered. Default: 100.
    pub runs: usize,
    /// Oldest report kept, by the start of the run that it is of. Default: 90 days.
    pub age: Duration,
    /// Most bytes on the disk, all reports together. Default: 64 MiB.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { number: 100, runs: 100, age: Duration::from_hours(90 * 24), bytes: 64 << 20 }
    }
}

/// What would be lost with an item, from the least on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// How a run ended, but no report.
    Run,
    /// A report that is not whole, or can't be read.
    Partial,
    /// A whole report.
    Report,
}

/// One thing that a limit counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept<T> {
    pub(crate) item: T,
    pub(crate) worth: Worth,
    pub(crate) since: SystemTime,
    pub(crate) bytes: u64,
}

impl Limits {
    /// Divides what is there into what stays and what has to go, in the order in which it goes.
    ///
    /// A time in the future (a clock set back) counts as now: such an item is neither too old nor immortal, since it is
    /// the newest and goes by number and size as the others do.
    pub(crate) fn divide<T>(&self, mut items: Vec<Kept<T>>, now: SystemTime) -> (Vec<Kept<T>>, Vec<Kept<T>>) {
        items.sort_by_key(|kept| (kept.worth, kept.since));
        let mut bytes: u64 = items.iter().fold(0, |sum, kept| sum.saturating_add(kept.bytes));
        let mut runs = items.iter().filter(|kept| kept.worth == Worth::Run).count();
        let mut reports = items.len() - runs;
        let mut stays = Vec::with_capacity(items.len());
        let mut goes = Vec::new();
        for kept in items {
            let age = now.duration_since(kept.since).unwrap_or(Duration::ZERO);
            let (number, limit) =
                if kept.worth == Worth::Run { (&mut runs, self.runs) } else { (&mut reports, self.number) };
            if *number > limit || bytes > self.bytes || age > self.age {
                *number -= 1;
                bytes = bytes.saturating_sub(kept.bytes);
                goes.push(kept);
            } else {
                stays.push(kept);
            }
        }
        (stays, goes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(list: &[(u64, u64)]) -> Vec<Kept<u64>> {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        list.iter()
            .map(|&(seconds, bytes)| Kept { item: seconds, worth: Worth::Report, since: at(seconds), bytes })
            .collect()
    }

    fn gone(limits: Limits, list: &[(u64, u64)], now: u64) -> Vec<u64> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
        limits.divide(items(list), now).1.into_iter().map(|kept| kept.item).collect()
    }

    const ROOMY: Limits = Limits { number: 100, runs: 100, age: Duration::from_secs(1_000_000), bytes: 1_000_000 };

    #[test]
    fn the_oldest_goes_first_by_number() {
        assert_eq!(gone(Limits { number: 2, ..ROOMY }, &[(30, 1), (10, 1), (20, 1)], 40), [10]);
        assert_eq!(gone(Limits { number: 0, ..ROOMY }, &[(30, 1), (10, 1)], 40), [10, 30]);
    }

    #[test]
    fn the_oldest_goes_first_by_size() {
        assert_eq!(gone(Limits { bytes: 100, ..ROOMY }, &[(1, 60), (2, 60), (3, 30)], 4), [1]);
        // One that is too large alone goes, but only after everything older.
        assert_eq!(gone(Limits { bytes: 100, ..ROOMY }, &[(1, 10), (2, 500), (3, 30)], 4), [1, 2]);
    }

    #[test]
    fn runs_without_a_report_go_first_and_do_not_count_as_reports() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let kept = |item, worth| Kept { item, worth, since: at(item), bytes: 10 };
        let items = || vec![kept(1, Worth::Report), kept(2, Worth::Partial), kept(3, Worth::Run), kept(4, Worth::Run)];
        let gone = |limits: Limits| {
            let (_, goes) = limits.divide(items(), at(5));
            goes.into_iter().map(|kept| kept.item).collect::<Vec<u64>>()
        };
        assert_eq!(gone(Limits { number: 2, runs: 2, ..ROOMY }), [0_u64; 0]);
        assert_eq!(gone(Limits { number: 2, runs: 1, ..ROOMY }), [3]);
        assert_eq!(gone(Limits { number: 1, ..ROOMY }), [2]);
        assert_eq!(gone(Limits { bytes: 25, ..ROOMY }), [3, 4]);
        assert_eq!(gone(Limits { bytes: 15, ..ROOMY }), [3, 4, 2]);
    }

    #[test]
    fn what_is_too_old_goes_and_a_clock_set_back_loses_nothing() {
        assert_eq!(gone(Limits { age: Duration::from_secs(50), ..ROOMY }, &[(10, 1), (60, 1)], 100), [10]);
        assert_eq!(gone(Limits { age: Duration::from_secs(50), ..ROOMY }, &[(10, 1), (60, 1)], 5), [0_u64; 0]);
    }
}
