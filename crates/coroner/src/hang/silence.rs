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

    /// For how long it has been silent.
    pub(super) fn lasted(&self) -> Duration {
        self.lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);
    const BUSY: u64 = 7;

    fn silence() -> Silence {
        Silence::new(5 * TICK, TICK, BUSY)
    }

    #[test]
    fn a_hang_begins_once_and_ends_once() {
        let mut silence = silence();
        for _ in 0..4 {
            assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing);
        }
        assert_eq!(silence.look(BUSY, TICK), Verdict::Hangs);
        assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing, "it is reported once");
        assert_eq!((silence.hangs, silence.lasted()), (true, 6 * TICK));
        assert_eq!(silence.look(BUSY + 2, TICK), Verdict::Answers(6 * TICK));
        assert_eq!(silence.look(BUSY + 2, TICK), Verdict::Nothing);
        assert_eq!((silence.hangs, silence.lasted()), (false, TICK));
    }

    #[test]
    fn who_answers_in_time_or_is_idle_does_not_hang() {
        let mut silence = silence();
        for beat in 1..50 {
            for _ in 0..4 {
                assert_eq!(silence.look(BUSY + 2 * beat, TICK), Verdict::Nothing);
            }
        }
        for _ in 0..50 {
            assert_eq!(silence.look(BUSY + 101, TICK), Verdict::Nothing, "idle: the number is even");
        }
    }

    #[test]
    fn time_that_nobody_watched_is_no_silence() {
        let mut silence = silence();
        for _ in 0..4 {
            assert_eq!(silence.look(BUSY, TICK), Verdict::Nothing);
        }
        // Stopped for an hour, or asleep; and slow machines are late now and then.
        assert_eq!(silence.look(BUSY, Duration::from_hours(1)), Verdict::Nothing);
        assert_eq!(silence.lasted(), 4 * TICK);
        assert_eq!(silence.look(BUSY, TICK * 3 / 2), Verdict::Hangs, "that it was silent before still counts");
        assert_eq!(silence.look(BUSY, Duration::from_hours(1)), Verdict::Nothing);
        assert_eq!(silence.look(BUSY + 1, TICK), Verdict::Answers(TICK * 11 / 2));
    }
}
