//! The sinks of an install. Each is asked and notified independently of the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use coroner_report::model::{Id, Report};

use crate::feedback::Feedback;
use crate::own_run::SETTLE;
use crate::sink::{Sink, SinkAnswer, Submission};
use crate::store::RawRun;
use crate::store::progress::{Answers, SinkState};

/// The sinks, in the order in which the app added them.
#[derive(Debug, Clone)]
pub(super) struct Sinks(pub(super) Vec<Arc<dyn Sink>>);

impl Sinks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a sink follows runs.
    pub(super) fn follow_runs(&self) -> bool {
        self.0.iter().any(|sink| sink.follows_runs())
    }

    /// Notifies every sink, even if one panics.
    pub(super) fn notify(&self, notify: impl Fn(&dyn Sink)) {
        for sink in &self.0 {
            if catch_unwind(AssertUnwindSafe(|| notify(sink.as_ref()))).is_err() {
                log::warn!("coroner: sink `{}` panicked", sink.name());
            }
        }
    }

    /// Passes user feedback to the sinks. Returns whether one accepted it.
    pub(super) fn take_feedback(&self, feedback: &Feedback) -> bool {
        let take = |sink: &Arc<dyn Sink>| catch_unwind(AssertUnwindSafe(|| sink.feedback(feedback))).unwrap_or(false);
        self.0.iter().filter(|sink| take(sink)).count() > 0
    }

    /// Waits for all sinks, at most for `timeout` in total. Returns whether all accepted reports
    /// have arrived.
    pub(super) fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        self.0.iter().filter(|sink| !sink.flush(left())).count() == 0
    }

    /// Passes a report in its original form to the sinks. Returns whether all have stored it.
    pub(super) fn store_early(&self, submission: &Submission<'_>) -> bool {
        let store = |sink: &Arc<dyn Sink>| catch_unwind(AssertUnwindSafe(|| sink.store_early(submission)));
        self.0.iter().filter(|sink| !store(sink).unwrap_or(false)).count() == 0
    }

    /// Whether every sink has given a final answer.
    pub(super) fn have_answered(&self, answers: Option<&Answers>) -> bool {
        self.0.iter().all(|sink| answers.and_then(|answers| answers.get(sink.name())).is_some_and(SinkState::is_final))
    }

    /// Whether a sink may be asked at `now`.
    pub(super) fn is_any_due(&self, answers: Option<&Answers>, now: SystemTime) -> bool {
        let state = |sink: &Arc<dyn Sink>| answers.and_then(|answers| answers.get(sink.name()));
        self.0.iter().any(|sink| state(sink).is_none_or(|state| state.may_be_asked(now)))
    }

    /// Returns the time until a sink without a final answer may be asked.
    ///
    /// After `attempts` attempts a sink is asked once per hour.
    pub(super) fn wait_before_next_attempt(
        &self,
        answers: &Answers,
        now: SystemTime,
        attempts: u32,
    ) -> Option<Duration> {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let waits = self.0.iter().map(|sink| match answers.get(sink.name()) {
            Some(state) if state.is_final() => Duration::MAX,
            Some(state @ SinkState::Retry { not_before, .. }) if !state.may_be_asked(now) => {
                Duration::from_secs(*not_before).saturating_sub(since_epoch)
            }
            // A sink that panics or wants to be asked immediately is asked a little later.
            Some(SinkState::Retry { tries, .. }) if *tries >= attempts => Duration::from_hours(1),
            _ => Duration::ZERO,
        });
        waits.min().filter(|wait| !wait.is_zero()).map(|wait| wait.clamp(SETTLE, Duration::from_hours(24)))
    }

    /// Asks each sink without a final answer about a run's report `index`.
    ///
    /// Each answer is recorded before the next sink is asked. `report` is `None` if the hook
    /// dropped it. Returns whether no sink panicked.
    pub(super) fn ask(
        &self,
        run: Id,
        answers: &mut Answers,
        (raw, index, report): (&RawRun, usize, Option<&Report>),
        now: SystemTime,
        mut note: impl FnMut(&Answers),
    ) -> bool {
        let mut healthy = true;
        for sink in &self.0 {
            let tries = match answers.get(sink.name()) {
                Some(state) if !state.may_be_asked(now) => continue,
                Some(SinkState::Retry { tries, .. }) => *tries,
                _ => 0,
            };
            let answer = match report {
                None => SinkAnswer::Rejected { reason: "dropped by the before_deliver hook".into() },
                Some(report) => {
                    let submission = Submission { run, report, index, raw, tries, launches: 0 };
                    catch_unwind(AssertUnwindSafe(|| sink.deliver(&submission))).unwrap_or_else(|_| {
                        healthy = false;
                        SinkAnswer::Retry { after: Duration::ZERO, reason: "the sink panicked".into() }
                    })
                }
            };
            let state = match answer {
                SinkAnswer::Delivered => SinkState::Delivered,
                SinkAnswer::Rejected { reason } => {
                    log::info!("coroner: sink `{}` rejected report {index} of run {run}: {reason}", sink.name());
                    SinkState::Rejected { reason }
                }
                SinkAnswer::Retry { after, reason } => {
                    log::warn!("coroner: sink `{}` can't take report {index} of run {run} now: {reason}", sink.name());
                    let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                    // A sink that may be asked immediately must not be delayed if the clock is set
                    // back.
                    let not_before = if after.is_zero() { 0 } else { since_epoch.saturating_add(after).as_secs() };
                    SinkState::Retry { not_before, tries: tries.saturating_add(1), reason }
                }
            };
            answers.insert(sink.name().to_owned(), state);
            note(answers);
        }
        healthy
    }
}
