//! What is sent when, and what follows from the answer.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::client_report::{Discarded, Reason};
use crate::envelope::{Envelope, item_type};
use crate::event::shrink;
use crate::options::Options;
use crate::outbox::{Entry, Outbox, State, plain_sid};
use crate::session::{SessionMode, items};
use crate::transport::{Answer, SendError, Transport};

/// No wait is longer than this, whatever a clock says.
const MAX_WAIT: Duration = Duration::from_hours(24);
/// How often an envelope is made smaller for a server that finds it too large.
const MAX_SHRINKS: usize = 12;

pub(crate) struct Sender {
    outbox: Outbox,
    transport: Box<dyn Transport>,
    options: Options,
    /// Held while sessions are on their way.
    sessions: Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Round {
    /// Envelopes and sessions that wait.
    pub(crate) left: usize,
    /// When it is worth to try again.
    pub(crate) again: Option<Duration>,
}

enum Outcome {
    Sent,
    /// Not now, but after that long. `stop` where it says as much of all that waits.
    Later {
        after: Duration,
        tries: u32,
        stop: bool,
    },
    /// Never.
    Refused(Reason),
}

impl Sender {
    pub(crate) fn new(outbox: Outbox, transport: Box<dyn Transport>, options: Options) -> Self {
        Self { outbox, transport, options, sessions: Mutex::default() }
    }

    /// Waits until no session is on its way, and holds the next back.
    pub(crate) fn sessions_still(&self) -> MutexGuard<'_, ()> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is due, oldest first.
    pub(crate) fn round(&self) -> Round {
        match self.try_round() {
            Ok(round) => round,
            Err(error) => {
                log::warn!("coroner: the outbox `{}` can't be used: {error}", self.outbox.path().display());
                Round { left: 1, again: None }
            }
        }
    }

    fn try_round(&self) -> std::io::Result<Round> {
        let gone = self.outbox.enforce(&self.options.limits, SystemTime::now())?;
        if gone > 0 {
            log::warn!("coroner: {gone} envelopes were removed to keep the outbox within its limits");
        }
        let may_send = self.outbox.read_state().consent.unwrap_or(!self.options.require_consent);
        // Another process of the app is at it: it sends this one's, too.
        let sending = if may_send { self.outbox.try_send() } else { None };
        if sending.is_some() {
            let mut first = true;
            let mut online = true;
            for entry in self.outbox.queue()? {
                let now = SystemTime::now();
                if wait_of(&entry, now).is_some() || self.wait("error", now).is_some() {
                    continue;
                }
                if !first {
                    std::thread::sleep(self.options.pause);
                }
                first = false;
                if !self.send_entry(&entry)? {
                    online = false;
                    break;
                }
            }
            if online {
                self.send_sessions()?;
            }
        }
        drop(sending);
        self.what_is_left(may_send)
    }

    fn wait(&self, category: &str, now: SystemTime) -> Option<Duration> {
        self.outbox.read_state().rate_limits.wait(category, now)
    }

    fn what_is_left(&self, may_send: bool) -> std::io::Result<Round> {
        let now = SystemTime::now();
        let queue = self.outbox.queue()?;
        let state = self.outbox.read_state();
        let limited = state.rate_limits.wait("error", now).unwrap_or_default();
        let due = queue.iter().map(|entry| wait_of(entry, now).unwrap_or_default().max(limited)).min();
        let waiting = match self.options.sessions {
            SessionMode::Individual => state.sessions.len(),
            _ => 0,
        };
        // At least a second, so that a clock that goes backwards makes no loop.
        let again = due.filter(|_| may_send).map(|wait| wait.max(Duration::from_secs(1)));
        Ok(Round { left: queue.len() + waiting, again })
    }

    /// Sends one envelope of the queue. `false` where nothing more can be sent now.
    fn send_entry(&self, entry: &Entry) -> std::io::Result<bool> {
        let envelope = match self.outbox.read(entry) {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return Ok(true),
            Err(error) => {
                log::warn!("coroner: the envelope of event {} is set aside: {error}", entry.event_id);
                self.outbox.update(|state| state.discarded.count(Reason::InternalSdkError, "error"))?;
                self.outbox.give_up(entry)?;
                return Ok(true);
            }
        };
        match self.send_shrinking(entry, envelope.clone())? {
            Outcome::Sent => {
                self.outbox.sent(entry)?;
                Ok(true)
            }
            Outcome::Later { after, tries, stop } => {
                self.outbox.put_off(entry, tries, SystemTime::now() + after)?;
                Ok(!stop)
            }
            Outcome::Refused(reason) => {
                self.outbox.update(|state| {
                    state.discarded.count_envelope(reason, &envelope);
                    if !entry.session.is_empty() {
                        state.note_done(&entry.session);
                    }
                })?;
                self.outbox.give_up(entry)?;
                Ok(true)
            }
        }
    }

    /// Sends an envelope; where the server finds it too large, again with what is worth least left out.
    fn send_shrinking(&self, entry: &Entry, mut envelope: Envelope) -> std::io::Result<Outcome> {
        for _ in 0..MAX_SHRINKS {
            match self.send(&envelope)? {
                Ok(answer) if answer.status == 413 => {
                    log::warn!(
                        "coroner: the server finds event {} too large; what is worth least is left out",
                        entry.event_id
                    );
                    let Some(dropped) = drop_least(&mut envelope) else {
                        return Ok(Outcome::Refused(Reason::SendError));
                    };
                    self.outbox.update(|state| state.discarded.add(&dropped))?;
                }
                Ok(answer) => return Ok(self.judge(entry, &answer)),
                Err(error) => return Ok(self.judge_failure(entry, &error)),
            }
        }
        Ok(Outcome::Refused(Reason::SendError))
    }

    /// Sends an envelope with the counts that wait, and takes note of what the answer says of limits.
    fn send(&self, envelope: &Envelope) -> std::io::Result<Result<Answer, SendError>> {
        let now = SystemTime::now();
        let discarded = self.outbox.read_state().discarded;
        let reports = self.options.client_reports && !discarded.is_empty();
        let sent = if reports { envelope.clone().with(discarded.item(now)) } else { envelope.clone() };
        let answer = self.transport.send(&sent.to_bytes_sent_at(now));
        if let Ok(answer) = &answer {
            let now = SystemTime::now();
            self.outbox.update(|state| {
                state.rate_limits.update(
                    answer.status,
                    answer.rate_limits.as_deref(),
                    answer.retry_after.as_deref(),
                    now,
                );
                if answer.is_success() && reports {
                    state.discarded.subtract(&discarded);
                }
            })?;
        }
        Ok(answer)
    }

    fn judge(&self, entry: &Entry, answer: &Answer) -> Outcome {
        if answer.is_success() {
            log::info!("coroner: event {} is sent", entry.event_id);
            return Outcome::Sent;
        }
        if (300..400).contains(&answer.status) {
            // No server of this protocol redirects: a portal of the network answers in its place.
            log::warn!("coroner: something between here and the server answers with a redirect ({})", answer.status);
            return Outcome::Later { after: self.delay(entry.tries), tries: entry.tries, stop: true };
        }
        if answer.status == 429 {
            // The server has counted it, and so no client report does. It is kept: crashes are few, and the limit may be over
            // in a minute. One that is refused in this way again and again waits longer each time.
            let limit = self.wait("error", SystemTime::now()).unwrap_or(Duration::from_mins(1));
            log::warn!("coroner: the server takes no events for {} s", limit.as_secs());
            let more = if entry.tries == 0 { Duration::ZERO } else { self.delay(entry.tries - 1) };
            return self
                .later(entry, limit.max(more), true, false)
                .unwrap_or(Outcome::Refused(Reason::RatelimitBackoff));
        }
        log::warn!("coroner: the server refused event {} with {}: {}", entry.event_id, answer.status, answer.body);
        Outcome::Refused(Reason::SendError)
    }

    fn judge_failure(&self, entry: &Entry, error: &SendError) -> Outcome {
        log::warn!("coroner: event {} could not be sent: {error}", entry.event_id);
        match error {
            // The envelope did not leave this machine: that is no try.
            SendError::Offline(_) => Outcome::Later { after: self.delay(entry.tries), tries: entry.tries, stop: true },
            SendError::Network(_) => {
                self.later(entry, self.delay(entry.tries), true, true).unwrap_or(Outcome::Refused(Reason::NetworkError))
            }
        }
    }

    /// One more try, if there is one left.
    fn later(&self, entry: &Entry, after: Duration, stop: bool, counts: bool) -> Option<Outcome> {
        let tries = entry.tries.saturating_add(1);
        // A server that says "not now" is there: those waits are limited by the outbox's age, not by their number.
        (tries < self.options.tries || !counts).then_some(Outcome::Later { after, tries, stop })
    }

    /// How long to wait after so many tries have failed before.
    fn delay(&self, tries: u32) -> Duration {
        let most = self.options.tries.saturating_sub(1).min(16);
        self.options.retry_after.saturating_mul(1 << tries.min(most)).min(MAX_WAIT)
    }

    fn send_sessions(&self) -> std::io::Result<()> {
        while self.wait("session", SystemTime::now()).is_none() {
            let _still = self.sessions_still();
            let held = self.outbox.held_sessions()?;
            let mode = self.options.sessions;
            // Noted before it is done: of a process killed meanwhile it is not known whether they were sent.
            let next = |state: &mut State| state.sessions.next_batch(mode, |sid| held.contains(&plain_sid(sid)));
            let batch = self.outbox.update(next)?;
            if batch.is_empty() {
                break;
            }
            let envelope = Envelope { items: items(&batch, mode), ..Envelope::new() };
            match self.send(&envelope)? {
                Ok(answer) if answer.is_success() => self.outbox.update(|state| state.sessions.remove(&batch))?,
                // Kept until the limit is over.
                Ok(answer) if answer.status == 429 => break,
                Ok(answer) => {
                    log::warn!("coroner: the server refused sessions with {}: {}", answer.status, answer.body);
                    let mut refused = Discarded::default();
                    refused.count_envelope(Reason::SendError, &envelope);
                    self.outbox.update(|state| {
                        state.discarded.add(&refused);
                        state.sessions.remove(&batch);
                    })?;
                }
                Err(error) => {
                    log::info!("coroner: sessions could not be sent and wait: {error}");
                    break;
                }
            }
        }
        Ok(())
    }
}

/// How long an entry has to wait still. A time that is days away was written under another clock.
fn wait_of(entry: &Entry, now: SystemTime) -> Option<Duration> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let wait = Duration::from_secs(entry.not_before).checked_sub(now)?;
    (!wait.is_zero() && wait <= MAX_WAIT).then_some(wait)
}

/// Leaves out what is worth least: the largest attachment, then parts of the event. Says what went; `None` if there is nothing.
fn drop_least(envelope: &mut Envelope) -> Option<Discarded> {
    let mut dropped = Discarded::default();
    let attachments = envelope.items.iter().enumerate().filter(|(_, item)| item.kind() == item_type::ATTACHMENT);
    if let Some(largest) = attachments.max_by_key(|(_, item)| item.payload.len()).map(|(place, _)| place) {
        envelope.items.remove(largest);
        dropped.count(Reason::SendError, "attachment");
        return Some(dropped);
    }
    let mut event = envelope.event()?;
    if !shrink(&mut event) {
        return None;
    }
    let item = envelope.items.iter_mut().find(|item| item.kind() == item_type::EVENT)?;
    item.payload = event.to_json();
    Some(dropped)
}
