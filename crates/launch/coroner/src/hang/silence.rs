//! Derives hangs from a watched thread's beats, without using a clock or a thread.

use std::time::Duration;

/// Result of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing new.
    Nothing,
    /// The thread hangs: it has not responded for the threshold.
    Hangs,
    /// A hang of this length is over.
    Answers(Duration),
}

/// A watched thread's silence.
#[derive(Debug)]
pub(super) struct Silence {
    threshold: Duration,
    tick: Duration,
    /// The last value that the thread showed.
    seen: u64,
    /// Time since the thread's last beat, without time in which it was not watched.
    lasted: Duration,
    hangs: bool,
}

/// Whether a thread with this value is busy, and so must beat again soon.
pub(super) fn is_busy(shown: u64) -> bool {
    shown & 1 == 1
}

impl Silence {
    /// Creates the state for a thread that is checked every `tick`, and hangs after `threshold`.
    pub(super) fn new(threshold: Duration, tick: Duration, shown: u64) -> Self {
        Self { threshold, tick, seen: shown, lasted: Duration::ZERO, hangs: false }
    }

    /// Records that the thread shows `shown`; the last check was `elapsed` ago.
    ///
    /// Checks happen every tick. If one is late by a whole tick, the watchdog thread did not run
    /// either: the process was stopped, or the machine slept or was too busy. That time doesn't
    /// count as silence.
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

    /// Returns the value that the thread showed at the last check.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Returns how long the thread has been silent.
    pub(super) fn lasted(&self) -> Duration {
        self.lasted
    }
}

#[cfg(test)]
mod tests;
