//! From what a watched thread shows of itself to hangs: no clock and no thread of its own.

use std::time::Duration;

/// What an observation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing new.
    Nothing,
    /// The thread has not answered for as long as the threshold says: it hangs.
    Hangs,
    /// A hang is over; it lasted so long.
    Answers(Duration),
}

/// A watched thread, as far as it is silent.
#[derive(Debug)]
pub(super) struct Silence {
    threshold: Duration,
    tick: Duration,
    /// What it last showed.
    seen: u64,
    /// For how long it has shown nothing else, in time that was watched.
    lasted: Duration,
    hangs: bool,
}

/// Whether a thread that shows this is at work, and so is to show something else soon.
pub(super) fn is_busy(shown: u64) -> bool {
    shown & 1 == 1
}

impl Silence {
    /// Of a thread that is looked at every `tick`, and hangs after `threshold`.
    pub(super) fn new(threshold: Duration, tick: Duration, shown: u64) -> Self {
        Self { threshold, tick, seen: shown, lasted: Duration::ZERO, hangs: false }
    }

    /// The thread shows `shown`; the last look was `elapsed` ago.
    ///
    /// Looks come every tick. One that comes late by a whole tick says that the watching thread did not run either: the process
    /// was stopped, or the machine slept or had no time for it. That time is nobody's silence.
    pub(super) fn look(&mut self, shown: u64, elapsed: Duration) -> Verdict {
        if shown != self.seen || !is_busy(shown) {
            self.seen = shown;
            let lasted = std::mem::take(&mut self.lasted);
            return if std::mem::take(&mut self.hangs) { Verdict::Answers(lasted) } else { Verdict::Nothing };
        }
        if elapsed <= self.tick.saturating_mul(2) {
            self.lasted = self.lasted.saturating_add(elapsed);
        }
        if !self.hangs && self.lasted >= self.threshold {
            self.hangs = true;
            return Verdict::Hangs;
        }
        Verdict::Nothing
    }

    /// What it showed at the last look.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// For how long it has been silent.
    pub(super) fn lasted(&self) -> Duration {
        self.lasted
    }
}

#[cfg(test)]
mod tests;
