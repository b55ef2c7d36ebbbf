//! How much a store or a folder of reports may hold, and what has to go first.

use std::time::{Duration, SystemTime};

/// What may be kept: numbers, an age and a size. Runs without a report go first, then reports that are not whole, then whole
/// ones; and of each kind the oldest first, whichever limit is passed.
///
/// ```
/// use std::time::Duration;
/// let retention = coroner::Retention::default().number(10);
/// assert_eq!(retention.age, Duration::from_hours(90 * 24));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retention {
    /// Most reports kept. Default: 100.
    pub number: usize,
    /// Most ended runs kept that left no report: they wait where reports are not delivered. Default: 100.
    pub runs: usize,
    /// Oldest report kept, by the start of the run that it is of. Default: 90 days.
    pub age: Duration,
    /// Most bytes on the disk, all reports together. Default: 64 MiB.
    pub bytes: u64,
}

impl Retention {
    /// Most reports kept.
    #[must_use]
    pub fn number(self, number: usize) -> Self {
        Self { number, ..self }
    }

    /// Most ended runs kept that left no report.
    #[must_use]
    pub fn runs(self, runs: usize) -> Self {
        Self { runs, ..self }
    }

    /// Oldest report kept, by the start of the run that it is of.
    #[must_use]
    pub fn age(self, age: Duration) -> Self {
        Self { age, ..self }
    }

    /// Most bytes on the disk, all reports together.
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

/// What would be lost with an item, from the least on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// How a run ended, but no report.
    Run,
    /// A run whose reports all sinks have stored as the crash left them.
    Stored,
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

impl Retention {
    /// What has to go of what is there, in the order in which it goes.
    ///
    /// A time in the future (a clock set back) counts as now: such an item is neither too old nor immortal, since it is
    /// the newest and goes by number and size as the others do.
    pub(crate) fn beyond<T>(&self, items: Vec<Kept<T>>, now: SystemTime) -> Vec<Kept<T>> {
        let places = items.iter().enumerate();
        let places = places.map(|(item, kept)| Kept { item, worth: kept.worth, since: kept.since, bytes: kept.bytes });
        let goes = self.places_beyond(places.collect(), now);
        let mut items: Vec<_> = items.into_iter().map(Some).collect();
        goes.into_iter().filter_map(|place| items[place].take()).collect()
    }

    /// The places of what has to go in a list of all.
    pub(crate) fn places_beyond(&self, mut items: Vec<Kept<usize>>, now: SystemTime) -> Vec<usize> {
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
