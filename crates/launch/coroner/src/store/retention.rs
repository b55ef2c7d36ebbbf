//! Limits of a store or a folder of reports, and the order in which items are removed.

use std::time::{Duration, SystemTime};

/// Limits on stored reports and runs: number, age and size.
///
/// If a limit is exceeded, runs without a report are removed first, then incomplete reports, then
/// complete ones, and of each kind the oldest first.
///
/// ```
/// use std::time::Duration;
/// let retention = coroner::Retention::default().number(10);
/// assert_eq!(retention.age, Duration::from_hours(90 * 24));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// Maximum number of reports. Default: 100.
    pub number: usize,
    /// Maximum number of ended runs without a report. Default: 100.
    ///
    /// They wait in the store like undelivered reports.
    pub runs: usize,
    /// Maximum age of a report, from the start of its run. Default: 90 days.
    pub age: Duration,
    /// Maximum space on disk of all reports, in bytes. Default: 64 MiB.
    pub bytes: u64,
}

impl Retention {
    /// Sets the maximum number of reports.
    #[must_use]
    pub fn number(self, number: usize) -> Self {
        Self { number, ..self }
    }

    /// Sets the maximum number of ended runs without a report.
    #[must_use]
    pub fn runs(self, runs: usize) -> Self {
        Self { runs, ..self }
    }

    /// Sets the maximum age of a report, from the start of its run.
    #[must_use]
    pub fn age(self, age: Duration) -> Self {
        Self { age, ..self }
    }

    /// Sets the maximum space on disk of all reports, in bytes.
    #[must_use]
    pub fn bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { number: 100, runs: 100, age: Duration::from_hours(90 * 24), bytes: 64 << 20 }
    }
}

/// The value of what would be lost with an item, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// The run's outcome, without a report.
    Run,
    /// A run whose reports all sinks have stored early.
    Stored,
    /// An incomplete or unreadable report.
    Partial,
    /// A complete report.
    Report,
}

/// An item that counts towards a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kept<T> {
    pub(crate) item: T,
    pub(crate) worth: Worth,
    pub(crate) since: SystemTime,
    pub(crate) bytes: u64,
}

impl Retention {
    /// Returns the items that exceed the limits, in the order in which they should be removed.
    ///
    /// A time in the future (the clock was set back) counts as now: such an item counts as the
    /// newest and is removed by number and size like the others.
    pub(crate) fn beyond<T>(&self, items: Vec<Kept<T>>, now: SystemTime) -> Vec<Kept<T>> {
        let places = items.iter().enumerate();
        let places = places.map(|(item, kept)| Kept { item, worth: kept.worth, since: kept.since, bytes: kept.bytes });
        let goes = self.indexes_beyond(places.collect(), now);
        let mut items: Vec<_> = items.into_iter().map(Some).collect();
        goes.into_iter().filter_map(|place| items[place].take()).collect()
    }

    /// Returns the indexes of the items that exceed the limits.
    pub(crate) fn indexes_beyond(&self, mut items: Vec<Kept<usize>>, now: SystemTime) -> Vec<usize> {
        items.sort_unstable_by_key(|kept| (kept.worth, kept.since, kept.item));
        let mut bytes: u64 = items.iter().fold(0, |sum, kept| sum.saturating_add(kept.bytes));
        let mut runs = items.iter().filter(|kept| kept.worth == Worth::Run).count();
        let mut reports = items.len() - runs;
        let mut goes = Vec::new();
        for kept in items {
            let age = now.duration_since(kept.since).unwrap_or(Duration::ZERO);
            let (number, limit) =
                if kept.worth == Worth::Run { (&mut runs, self.runs) } else { (&mut reports, self.number) };
            if *number > limit || bytes > self.bytes || age > self.age {
                *number -= 1;
                bytes = bytes.saturating_sub(kept.bytes);
                goes.push(kept.item);
            }
        }
        goes
    }
}

#[cfg(test)]
mod tests;
