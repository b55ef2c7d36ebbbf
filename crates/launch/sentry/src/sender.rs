//! Decides what is sent when, and handles the server's answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, SystemTime};

use coroner_outbox::{MAX_WAIT, Round, backoff, locked, parse_retry_after};

use crate::client_report::{Discarded, Reason};
use crate::envelope::{Envelope, Item, item_type};
use crate::event::shrink;
use crate::options::Options;
use crate::outbox::{Entry, Outbox, OutboxLimits, State, event_of_attachment, plain_sid};
use crate::rate_limits::seconds;
use crate::session::{SessionMode, SessionUpdate, items};
use crate::transport::{Answer, SendError, Transport};

/// Size from which an envelope is large: sending it may take longer than a process lives.
const LARGE: usize = 256 << 10;
/// Number of interrupted attempts to send a large envelope after which its attachments are left
/// out.
const MAX_INTERRUPTED: u32 = 2;
/// Maximum number of entries whose interruptions are counted.
const MAX_COUNTED: usize = 100;
/// Time that an attachment waits for its event at least.
const AFTER_EVENT: Duration = Duration::from_mins(1);
/// Maximum number of times that an envelope is shrunk for a server that rejects it as too large.
const MAX_SHRINKS: usize = 12;
/// Number of attachments that are left out one by one; then all others are left out at once.
///
/// An event with dozens of attachments arrives in this way.
const ONE_BY_ONE: usize = 4;

pub(crate) struct Sender {
    outbox: Outbox,
    transport: Box<dyn Transport>,
    options: Options,
    /// Held while sessions are being sent.
    sessions: Mutex<()>,
    /// The sessions being sent; `None` while the batch is being selected, or if there are none.
    on_the_way: Mutex<Option<Vec<String>>>,
    /// Whether counts were sent but couldn't be removed from the state: they must not be sent
    /// again.
    counts_are_sent: AtomicBool,
}

enum Outcome {
    Sent,
    /// Retry after this time. `stop` if the same applies to all queued items.
    Later {
        after: Duration,
        tries: u32,
        stop: bool,
        /// Whether the server may have received it anyway.
        arrived: bool,
    },
    /// Don't retry.
    Refused(Reason),
}

/// The effect of an entry's outcome on the entries after it.
#[derive(PartialEq)]
enum Next {
    /// The server accepts events.
    Taken,
    /// Nothing is known.
    Unknown,
    /// Nothing more can be sent now.
    Stop,
}

impl Sender {
    pub(crate) fn new(outbox: Outbox, transport: Box<dyn Transport>, options: Options) -> Self {
        Self {
            outbox,
            transport,
            options,
            sessions: Mutex::default(),
            on_the_way: Mutex::default(),
            counts_are_sent: AtomicBool::new(false),
        }
    }

    /// Waits until this session is not being sent, and blocks the next batch. Doesn't wait for
    /// batches of other sessions, because storing a report, and the sinks after this one, must not
    /// depend on a hanging server.
    pub(crate) fn session_still(&self, sid: &str) -> Option<MutexGuard<'_, ()>> {
        loop {
            match self.sessions.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
            let on_the_way = locked(&self.on_the_way).as_ref().map(|sids| sids.iter().any(|other| other == sid));
            if on_the_way == Some(false) {
                return None;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends what is due, oldest first.
    pub(crate) fn round(&self) -> Round {
        match self.try_round() {
            Ok(round) => round,
            Err(error) => {
                log::warn!("coroner: can't use the outbox `{}`: {error}", self.outbox.path().display());
                Round { left: 1, again: None }
            }
        }
    }

    fn try_round(&self) -> std::io::Result<Round> {
        // Entries that are too old are tried once more, because the clock may be wrong.
        self.enforce(&OutboxLimits { age: Duration::MAX, ..self.options.limits })?;
        let may_send = self.outbox.consent()?.unwrap_or(!self.options.require_consent);
        // If another process of the app is sending, it sends this process's entries too.
        let sending = if may_send { self.outbox.try_send() } else { None };
        let mut stopped = false;
        if sending.is_some() {
            let now = SystemTime::now();
            let (waiting, due) = self.outbox.queue()?.into_iter().partition(|entry| entry.wait(now).is_some());
            let mut next = self.send_entries(due, Next::Unknown)?;
            if next != Next::Stop {
                match self.send_sessions(next == Next::Taken) {
                    Ok(true) => next = Next::Taken,
                    Ok(false) => {}
                    // The sessions stay queued; queued events must not wait for them.
                    Err(error) => log::warn!("coroner: can't send sessions now: {error}"),
                }
            }
            // The server is reachable: entries that were delayed because it wasn't need not wait
            // any longer.
            if next == Next::Taken {
                next = self.send_entries(waiting, next)?;
            }
            stopped = next == Next::Stop;
        }
        if sending.is_some() || !may_send {
            self.enforce(&self.options.limits)?;
        }
        drop(sending);
        self.what_is_left(may_send, stopped)
    }

    fn enforce(&self, limits: &OutboxLimits) -> std::io::Result<()> {
        let gone = self.outbox.enforce(limits, SystemTime::now())?;
        if gone > 0 {
            log::warn!("coroner: removed {gone} envelopes to meet the outbox's limits");
        }
        Ok(())
    }

    /// Checks consent again, because the user may refuse while something is being sent.
    fn check_consent(&self) -> std::io::Result<()> {
        self.outbox.check_consent(self.options.require_consent)
    }

    /// Sends those of `entries` that may be sent. `next` is what is known so far.
    fn send_entries(&self, entries: Vec<Entry>, mut next: Next) -> std::io::Result<Next> {
        for (place, entry) in entries.into_iter().enumerate() {
            if self.is_limited(SystemTime::now()).is_some() {
                continue;
            }
            if place > 0 {
                std::thread::sleep(self.options.pause);
            }
            match self.send_entry(entry)? {
                Next::Unknown => {}
                other => next = other,
            }
            if next == Next::Stop {
                break;
            }
        }
        Ok(next)
    }

    /// Updates counts and limits in the state. Failures are only logged: sending must not fail
    /// because the disk is full.
    fn note(&self, change: impl FnOnce(&mut State)) -> bool {
        let noted = self.outbox.update(change);
        if let Err(error) = &noted {
            log::warn!("coroner: can't write to the outbox `{}`: {error}", self.outbox.path().display());
        }
        noted.is_ok()
    }

    fn wait(&self, category: &str, now: SystemTime) -> Option<Duration> {
        self.outbox.read_state().rate_limits.wait(category, now)
    }

    /// Returns how long neither events nor feedback may be sent.
    fn is_limited(&self, now: SystemTime) -> Option<Duration> {
        Some(self.wait("error", now)?.min(self.wait("feedback", now)?))
    }

    /// Returns how many items wait and when to try again. After the server accepted nothing
    /// (`stopped`), it isn't contacted for each entry at once.
    fn what_is_left(&self, may_send: bool, stopped: bool) -> std::io::Result<Round> {
        let now = SystemTime::now();
        let queue = self.outbox.queue()?;
        let state = self.outbox.read_state();
        let limited = self.is_limited(now).unwrap_or_default();
        let due = queue.iter().map(|entry| entry.wait(now).unwrap_or_default().max(limited)).min();
        let waiting = match self.options.sessions {
            SessionMode::Individual | SessionMode::CrashesOnly => state.sessions.len(),
            _ => 0,
        };
        // At least a second, so that a clock set back can't cause a busy loop.
        let least = if stopped && limited.is_zero() { self.delay(0) } else { Duration::ZERO };
        let again = due.filter(|_| may_send).map(|wait| wait.max(least).max(Duration::from_secs(1)));
        Ok(Round { left: queue.len() + waiting, again })
    }

    /// Sends one queued envelope.
    fn send_entry(&self, mut entry: Entry) -> std::io::Result<Next> {
        if self.outbox.read_state().is_done(&entry.event_id) {
            // A process was killed after storing that the entry was sent, before removing it.
            self.outbox.sent(&entry)?;
            return Ok(Next::Unknown);
        }
        if let Some(event_id) = event_of_attachment(&entry)
            && !self.outbox.read_state().is_done(event_id)
        {
            if let Some(event) = self.outbox.queue()?.iter().find(|other| other.event_id == event_id) {
                let wait = event.wait(SystemTime::now()).unwrap_or_default().max(AFTER_EVENT);
                self.outbox.put_off(&entry, entry.tries, SystemTime::now() + wait)?;
            } else {
                // The server refused the event, or the limits removed it.
                self.note(|state| state.discarded.count(Reason::SendError, "attachment"));
                self.outbox.give_up(&entry)?;
            }
            return Ok(Next::Unknown);
        }
        let mut envelope = match self.outbox.read(&entry) {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return Ok(Next::Unknown),
            Err(error) => {
                log::warn!("coroner: set the envelope of event {} aside: {error}", entry.event_id);
                self.note(|state| state.discarded.count(Reason::InternalSdkError, "error"));
                self.outbox.give_up(&entry)?;
                return Ok(Next::Unknown);
            }
        };
        let now = SystemTime::now();
        if let Some(wait) = self.wait(envelope.category(), now) {
            self.outbox.put_off(&entry, entry.tries, now + wait)?;
            return Ok(Next::Unknown);
        }
        self.leave_out_limited(&mut envelope);
        // If a process is killed before the answer arrives, it is unknown whether the session was
        // counted. The next process sends the event again, which a server recognises by its id, but
        // not the session, which the server would count twice.
        let limited = self.wait("session", SystemTime::now()).is_some();
        let session = if entry.session.is_empty() || limited { None } else { envelope.session() };
        if session.is_none() {
            let waits = envelope.take_session().filter(|_| !entry.session.is_empty());
            if waits.is_some() {
                entry = self.outbox.set_session(&entry, "")?;
            }
            self.end_session(waits)?;
        }
        let before = entry.session.clone();
        match self.send_shrinking(&mut entry, envelope.clone())? {
            Outcome::Sent => {
                self.outbox.sent(&entry)?;
                Ok(Next::Taken)
            }
            Outcome::Later { after, tries, stop, arrived } => {
                let later = self.outbox.put_off(&entry, tries, SystemTime::now() + after)?;
                if later.session != before && !arrived {
                    self.outbox.set_session(&later, &before)?;
                }
                Ok(if stop { Next::Stop } else { Next::Unknown })
            }
            Outcome::Refused(reason) => {
                if !entry.session.is_empty() {
                    entry = self.outbox.set_session(&entry, "")?;
                }
                self.end_session(session)?;
                envelope.take_session();
                self.note(|state| state.discarded.count_envelope(reason, &envelope));
                self.outbox.give_up(&entry)?;
                Ok(Next::Unknown)
            }
        }
    }

    /// Queues a session's last update separately from its event.
    fn end_session(&self, update: Option<SessionUpdate>) -> std::io::Result<()> {
        update.map_or(Ok(()), |update| self.outbox.update(|state| state.sessions.push(update)))
    }

    /// Removes attachments if the server currently limits them, so that their event doesn't have to
    /// wait.
    fn leave_out_limited(&self, envelope: &mut Envelope) {
        if self.wait("attachment", SystemTime::now()).is_none() {
            return;
        }
        let before = envelope.items.len();
        envelope.items.retain(|item| item.kind() != item_type::ATTACHMENT);
        let gone = before - envelope.items.len();
        if gone > 0 {
            self.note(|state| state.discarded.count_many(Reason::RatelimitBackoff, "attachment", gone as u64));
        }
    }

    /// Sends an envelope; if the server rejects it as too large, retries without the least
    /// important data.
    fn send_shrinking(&self, entry: &mut Entry, mut envelope: Envelope) -> std::io::Result<Outcome> {
        let id = entry.event_id.clone();
        let interrupted = self.outbox.read_state().interrupted.get(&id).copied().unwrap_or(0);
        if interrupted >= MAX_INTERRUPTED {
            log::warn!("coroner: sending event {id} was interrupted {interrupted} times; leaving out its attachments");
            self.note(|state| _ = state.interrupted.remove(&id));
            self.leave_out_attachments(&mut envelope);
        }
        for shrunk in 0..MAX_SHRINKS {
            if envelope.items.is_empty() {
                return Ok(Outcome::Refused(Reason::SendError));
            }
            let is_large = envelope.items.iter().map(|item| item.payload.len()).sum::<usize>() > LARGE;
            let mut has_left = false;
            let mut leaves = || {
                self.check_consent()?;
                if is_large && !has_left {
                    self.note(|state| {
                        if state.interrupted.len() >= MAX_COUNTED {
                            state.interrupted.clear();
                        }
                        *state.interrupted.entry(id.clone()).or_default() += 1;
                    });
                }
                has_left = true;
                if !entry.session.is_empty() {
                    *entry = self.outbox.set_session(entry, "")?;
                }
                Ok(())
            };
            let answer = self.send(&envelope, &mut leaves);
            if is_large && has_left && !matches!(answer, Err(SendError::Network(_))) {
                self.note(|state| _ = state.interrupted.remove(&id));
            }
            match answer {
                Ok(answer) if answer.status == 413 && envelope.category() == "attachment" => {
                    log::warn!("coroner: the server rejected an attachment of event {id} as too large");
                    return Ok(Outcome::Refused(Reason::SendError));
                }
                Ok(answer) if answer.status == 413 => {
                    log::warn!(
                        "coroner: the server rejected event {} as too large; retrying without the least important data",
                        entry.event_id
                    );
                    let Some(dropped) = drop_least(&mut envelope, shrunk >= ONE_BY_ONE) else {
                        return Ok(Outcome::Refused(Reason::SendError));
                    };
                    self.note(|state| state.discarded.add(&dropped));
                }
                Ok(answer) => return Ok(self.judge(entry, envelope.category(), &answer)),
                Err(error) => return Ok(self.judge_failure(entry, &error)),
            }
        }
        Ok(Outcome::Refused(Reason::SendError))
    }

    /// Removes all attachments. The envelope's event, if any, records their names.
    fn leave_out_attachments(&self, envelope: &mut Envelope) {
        let is_attachment = |item: &Item| item.kind() == item_type::ATTACHMENT;
        let (left_out, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut envelope.items).into_iter().partition(is_attachment);
        envelope.items = kept;
        let names = left_out.iter().filter_map(|item| item.header.get("filename").cloned());
        if let Some(event) = envelope.items.iter_mut().find(|item| item.kind() == item_type::EVENT)
            && let Ok(mut json) = serde_json::from_slice::<serde_json::Value>(&event.payload)
        {
            let names: Vec<_> = names.collect();
            json["contexts"]["coroner"]["attachments_left_out"] = names.into();
            event.payload = json.to_string().into_bytes();
        }
        // Those of an envelope without an event are counted when it is refused.
        if !envelope.items.is_empty() {
            self.note(|state| state.discarded.count_many(Reason::SendError, "attachment", left_out.len() as u64));
        }
    }

    /// Sends an envelope with the pending counts, and stores the limits from the answer. `leaves`
    /// is called before the first byte is sent.
    fn send(&self, envelope: &Envelope, leaves: &mut dyn FnMut() -> std::io::Result<()>) -> Result<Answer, SendError> {
        let now = SystemTime::now();
        let discarded = self.outbox.read_state().discarded;
        let may_report = self.options.client_reports && !self.counts_are_sent.load(Ordering::Relaxed);
        let reports = may_report && !discarded.is_empty();
        let sent = if reports { envelope.clone().with(discarded.item(now)) } else { envelope.clone() };
        let answer = self.transport.send_noting(&sent.to_bytes_sent_at(now), leaves);
        if let Ok(answer) = &answer {
            let now = SystemTime::now();
            let noted = self.note(|state| {
                state.rate_limits.update(
                    envelope.category(),
                    answer.status,
                    answer.rate_limits.as_deref(),
                    answer.retry_after.as_deref(),
                    now,
                );
                if answer.is_success() && reports {
                    state.discarded.subtract(&discarded);
                }
            });
            if !noted && answer.is_success() && reports {
                self.counts_are_sent.store(true, Ordering::Relaxed);
            }
        }
        answer
    }

    fn judge(&self, entry: &Entry, category: &str, answer: &Answer) -> Outcome {
        let later = |after, tries| Outcome::Later { after, tries, stop: true, arrived: false };
        if answer.is_success() {
            log::info!("coroner: sent event {}", entry.event_id);
            return Outcome::Sent;
        }
        if answer.is_portal() {
            log::warn!("coroner: a login page or proxy answered instead of the server, with status {}", answer.status);
            return later(self.delay(entry.tries), entry.tries);
        }
        if answer.status == 429 {
            // The server has counted the drop, so no client report does. The event is kept: crashes
            // are rare, and the limit may end in a minute. After each further 429 it waits longer.
            let limit = self.wait(category, SystemTime::now()).unwrap_or(Duration::from_mins(1));
            let what = if category == "error" { "events" } else { category };
            log::warn!("coroner: the server accepts no {what} for {} s", limit.as_secs());
            let more = if entry.tries == 0 { Duration::ZERO } else { self.delay(entry.tries - 1) };
            return later(limit.max(more), entry.tries.saturating_add(1));
        }
        // A server that fails on this event, or denies access, may do so for ever; an unreachable
        // server is treated as a network failure.
        let fails = answer.status >= 500 || answer.refuses_access();
        if answer.is_not_now() || fails && entry.tries < self.options.tries {
            log::warn!(
                "coroner: the server can't accept event {} now, with status {}: {}",
                entry.event_id,
                answer.status,
                answer.body
            );
            let requested = answer.retry_after.as_deref().and_then(|text| parse_retry_after(text, SystemTime::now()));
            return Outcome::Later {
                after: self.delay(entry.tries).max(requested.unwrap_or_default()),
                tries: entry.tries.saturating_add(1),
                stop: answer.is_not_now() || answer.refuses_access(),
                arrived: answer.may_have_arrived(),
            };
        }
        log::warn!(
            "coroner: the server rejected event {} with status {}: {}",
            entry.event_id,
            answer.status,
            answer.body
        );
        Outcome::Refused(Reason::SendError)
    }

    fn judge_failure(&self, entry: &Entry, error: &SendError) -> Outcome {
        log::warn!("coroner: can't send event {}: {error}", entry.event_id);
        // A network failure never discards an event: the outbox's limits decide how long it is
        // kept.
        let (arrived, tries) = match error {
            // The envelope did not leave this machine, so this doesn't count as an attempt.
            SendError::Offline(_) => (false, entry.tries),
            SendError::Network(_) => (true, entry.tries.saturating_add(1)),
        };
        Outcome::Later { after: self.delay(entry.tries), tries, stop: true, arrived }
    }

    /// Returns the wait after `tries` failed attempts.
    fn delay(&self, tries: u32) -> Duration {
        backoff(self.options.retry_after, self.options.tries, tries)
    }

    /// Sends the sessions that may be sent. Returns whether the server accepted some. If the server
    /// has just accepted something (`is_there`), an earlier failure doesn't delay them.
    fn send_sessions(&self, is_there: bool) -> std::io::Result<bool> {
        let mut taken = false;
        let wait = self.outbox.read_state().sessions_after.saturating_sub(seconds(SystemTime::now()));
        if !is_there && (1..=MAX_WAIT.as_secs()).contains(&wait) {
            return Ok(taken);
        }
        let left = self.outbox.has_left();
        let mut lost = self.outbox.update(|state| state.sessions.settle(left, self.options.sessions))?;
        while self.wait("session", SystemTime::now()).is_none() {
            let _still = locked(&self.sessions);
            *locked(&self.on_the_way) = None;
            let held = self.outbox.held_sessions()?;
            let mode = self.options.sessions;
            let next = |state: &mut State| state.sessions.next_batch(mode, |sid| held.contains(&plain_sid(sid)));
            self.outbox.set_leaving(false)?;
            let batch = self.outbox.update(next)?;
            if batch.is_empty() {
                break;
            }
            *locked(&self.on_the_way) = Some(batch.iter().map(|update| update.sid()).collect());
            let envelope = Envelope { items: items(&batch, mode), ..Envelope::new() };
            let mut leaves = || {
                self.check_consent()?;
                self.outbox.set_leaving(true)
            };
            match self.send(&envelope, &mut leaves) {
                Ok(answer) if answer.is_success() => {
                    self.outbox.update(|state| state.sessions.remove(&batch))?;
                    taken = true;
                }
                // The updates may have arrived: those that must not be sent twice are lost.
                Ok(answer) if answer.is_not_now() && answer.may_have_arrived() => {
                    lost += self.outbox.update(|state| state.sessions.settle(true, self.options.sessions))?;
                    break;
                }
                // Kept until the limit ends, or until the server itself answers again.
                Ok(answer)
                    if matches!(answer.status, 429 | 500..)
                        || answer.is_portal()
                        || answer.is_not_now()
                        || answer.refuses_access() =>
                {
                    let now = SystemTime::now();
                    let requested = answer.retry_after.as_deref().and_then(|text| parse_retry_after(text, now));
                    let after = seconds(now) + self.delay(0).max(requested.unwrap_or_default()).as_secs();
                    self.outbox.update(|state| {
                        state.sessions.put_back(&batch);
                        // The wait after a 429 is part of the rate limits.
                        state.sessions_after = if answer.status == 429 { 0 } else { after };
                    })?;
                    break;
                }
                Ok(answer) => {
                    log::warn!("coroner: the server rejected sessions with status {}: {}", answer.status, answer.body);
                    let mut refused = Discarded::default();
                    refused.count_envelope(Reason::SendError, &envelope);
                    self.outbox.update(|state| {
                        state.discarded.add(&refused);
                        state.sessions.remove(&batch);
                    })?;
                }
                Err(error @ SendError::Offline(_)) => {
                    log::info!("coroner: can't send sessions: {error}");
                    self.outbox.update(|state| state.sessions.put_back(&batch))?;
                    break;
                }
                Err(error) => {
                    log::info!("coroner: can't send sessions: {error}");
                    let left = self.outbox.has_left();
                    lost += self.outbox.update(|state| state.sessions.settle(left, self.options.sessions))?;
                    break;
                }
            }
        }
        if lost > 0 {
            self.outbox.update(|state| state.discarded.count_many(Reason::NetworkError, "session", lost as u64))?;
        }
        Ok(taken)
    }
}

/// Removes the least important data of an envelope.
///
/// Removes the largest attachment or all attachments, then parts of the event. Returns the counts
/// of removed items; `None` if nothing can be removed.
fn drop_least(envelope: &mut Envelope, all_attachments: bool) -> Option<Discarded> {
    let mut dropped = Discarded::default();
    let before = envelope.items.len();
    if all_attachments {
        envelope.items.retain(|item| item.kind() != item_type::ATTACHMENT);
        let gone = (before - envelope.items.len()) as u64;
        if gone > 0 {
            dropped.count_many(Reason::SendError, "attachment", gone);
            return Some(dropped);
        }
    }
    let attachments = envelope.items.iter().enumerate().filter(|(_, item)| item.kind() == item_type::ATTACHMENT);
    if let Some(largest) = attachments.max_by_key(|(_, item)| item.payload.len()).map(|(place, _)| place) {
        envelope.items.remove(largest);
        dropped.count(Reason::SendError, "attachment");
        return Some(dropped);
    }
    let item = envelope.items.iter_mut().find(|item| item.kind() == item_type::EVENT)?;
    item.payload = shrink(&item.payload)?;
    Some(dropped)
}
