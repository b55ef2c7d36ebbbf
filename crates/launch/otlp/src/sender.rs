//! Decides what is sent when, and handles the server's answers.
//!
//! Source: *OTLP/HTTP Response* of the protocol's specification.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_outbox::{
    Entry, HttpClient, MAX_WAIT, Outbox, OutboxLimits, Response, Round, SendError, SentIds, backoff, parse_retry_after,
};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::options::Options;

/// The state stored beside the records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// A hash of the server's URL and headers: waits and refusals apply to one server.
    pub(crate) server: String,
    /// Time until which the server accepts nothing, in seconds since the Unix epoch.
    pub(crate) not_before: u64,
    /// Ids of reports whose records were sent.
    pub(crate) done: SentIds,
}

impl State {
    /// Returns how long the server still accepts nothing. A time more than [`MAX_WAIT`] ahead was
    /// written with a different clock and is ignored.
    fn wait(&self, now: SystemTime) -> Option<Duration> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let wait = Duration::from_secs(self.not_before).checked_sub(now)?;
        (!wait.is_zero() && wait <= MAX_WAIT).then_some(wait)
    }
}

pub(crate) struct Sender {
    pub(crate) outbox: Outbox,
    pub(crate) client: HttpClient,
    pub(crate) options: Options,
}

/// The meaning of an answer, or of its absence, for a record.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Sent,
    /// Retry later. `wait` is the server's wait for all requests.
    Later {
        wait: Option<Duration>,
        counts: bool,
    },
    /// Don't retry.
    Refused,
}

impl Sender {
    /// Sends what is due, oldest first.
    pub(crate) fn round(&self) -> Round {
        self.try_round().unwrap_or_else(|error| {
            log::warn!("coroner: can't use the outbox `{}`: {error}", self.outbox.path().display());
            Round { left: 1, again: None }
        })
    }

    fn state(&self) -> State {
        self.outbox.read_state()
    }

    fn try_round(&self) -> io::Result<Round> {
        // Entries that are too old are tried once more, because the clock may be wrong.
        self.enforce(&OutboxLimits { age: Duration::MAX, ..self.options.limits })?;
        let may_send = self.outbox.consent()?.unwrap_or(!self.options.require_consent);
        // If another process of the app is sending, it sends this process's entries too.
        let sending = if may_send { self.outbox.try_send() } else { None };
        if sending.is_some() && self.state().wait(SystemTime::now()).is_none() {
            let now = SystemTime::now();
            let queue = self.outbox.queue()?;
            let (waiting, due): (Vec<Entry>, Vec<Entry>) =
                queue.into_iter().partition(|entry| entry.wait(now).is_some());
            let (mut entries, mut waiting) = (VecDeque::from(due), Some(waiting));
            while let Some(entry) = entries.pop_front() {
                match self.send(&entry)? {
                    Outcome::Later { .. } => break,
                    Outcome::Sent => {
                        // The server is reachable: entries that were delayed because it wasn't need
                        // not wait any longer.
                        entries.extend(waiting.take().into_iter().flatten());
                    }
                    Outcome::Refused => {}
                }
            }
        }
        if sending.is_some() || !may_send {
            self.enforce(&self.options.limits)?;
        }
        drop(sending);
        let now = SystemTime::now();
        let queue = self.outbox.queue()?;
        let limited = self.state().wait(now).unwrap_or_default();
        let due = queue.iter().map(|entry| entry.wait(now).unwrap_or_default().max(limited)).min();
        // At least a second, so that a clock set back can't cause a busy loop.
        let again = due.filter(|_| may_send).map(|wait| wait.max(Duration::from_secs(1)));
        Ok(Round { left: queue.len(), again })
    }

    fn enforce(&self, limits: &OutboxLimits) -> io::Result<()> {
        let gone = self.outbox.enforce(limits, SystemTime::now(), |_, _| {})?;
        if gone > 0 {
            log::warn!("coroner: removed {gone} log records to meet the outbox's limits");
        }
        Ok(())
    }

    /// Sends one record.
    fn send(&self, entry: &Entry) -> io::Result<Outcome> {
        if self.state().done.contains(&entry.event_id) {
            // A process was killed after storing that the record was sent, before removing it. The
            // server would not detect a duplicate.
            self.outbox.remove(entry)?;
            return Ok(Outcome::Refused);
        }
        let message = match self.outbox.read(entry) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(Outcome::Refused),
            Err(error) => {
                log::warn!("coroner: set the log record of report {} aside: {error}", entry.event_id);
                self.outbox.give_up(entry)?;
                return Ok(Outcome::Refused);
            }
        };
        // The user may refuse during sending.
        let mut leaves = || self.outbox.check_consent(self.options.require_consent);
        let outcome = match self.client.post(&message, &mut leaves) {
            Ok(response) => judge(&entry.event_id, &response, SystemTime::now()),
            Err(error) => {
                log::warn!("coroner: can't send the log record of report {}: {error}", entry.event_id);
                // If the record did not leave this machine, this doesn't count as an attempt.
                Outcome::Later { wait: None, counts: !matches!(error, SendError::Offline(_)) }
            }
        };
        match &outcome {
            Outcome::Sent => {
                let noted = self.outbox.update(|state: &mut State| state.done.note(&entry.event_id));
                // Remove the record even if its id can't be stored; otherwise it would be sent
                // again and again. Removing it frees disk space for the id.
                self.outbox.remove(entry)?;
                let again = || self.outbox.update(|state: &mut State| state.done.note(&entry.event_id));
                if let Err(error) = noted.or_else(|_| again()) {
                    log::warn!("coroner: can't record that report {} was sent: {error}", entry.event_id);
                }
            }
            Outcome::Later { wait, counts } => {
                let delay = backoff(self.options.retry_after, self.options.tries, entry.tries);
                let until = SystemTime::now() + wait.unwrap_or(delay);
                if wait.is_some() {
                    // One second more, so that rounding doesn't shorten the server's wait.
                    let until = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() + 1;
                    if let Err(error) = self.outbox.update(|state: &mut State| state.not_before = until) {
                        log::warn!("coroner: can't record the server's wait time: {error}");
                    }
                }
                // After repeated failures the wait grows, whatever the server says.
                let more = if entry.tries == 0 {
                    Duration::ZERO
                } else {
                    backoff(self.options.retry_after, self.options.tries, entry.tries - 1)
                };
                let until = until.max(SystemTime::now() + more);
                self.outbox.put_off(entry, entry.tries.saturating_add(u32::from(*counts)), until)?;
            }
            Outcome::Refused => self.outbox.give_up(entry)?,
        }
        Ok(outcome)
    }
}

/// Interprets an answer.
fn judge(event_id: &str, response: &Response, now: SystemTime) -> Outcome {
    // 511 comes from a network that requires a login (RFC 6585).
    if response.is_portal() || response.status == 511 {
        log::warn!("coroner: a login page or proxy answered instead of the server, with status {}", response.status);
        return Outcome::Later { wait: None, counts: false };
    }
    match response.status {
        200..=299 => {
            let answer = ExportLogsServiceResponse::decode(&response.body[..]).unwrap_or_default();
            let partial = answer.partial_success.unwrap_or_default();
            if partial.rejected_log_records > 0 {
                // The specification forbids sending it again.
                log::warn!(
                    "coroner: the server rejected the log record of report {event_id}: {}",
                    partial.error_message
                );
                return Outcome::Refused;
            }
            if !partial.error_message.is_empty() {
                log::warn!(
                    "coroner: the server accepted the log record of report {event_id} with a warning: {}",
                    partial.error_message
                );
            }
            log::info!("coroner: sent the log record of report {event_id}");
            Outcome::Sent
        }
        429 | 502 | 503 | 504 => {
            let wait = response.header("Retry-After").and_then(|text| parse_retry_after(text, now));
            log::warn!(
                "coroner: the server can't accept the log record of report {event_id} now, with status {}",
                response.status
            );
            Outcome::Later { wait, counts: true }
        }
        status => {
            let text: String = response.text().chars().filter(|character| !character.is_control()).collect();
            log::warn!("coroner: the server rejected the log record of report {event_id} with status {status}: {text}");
            Outcome::Refused
        }
    }
}
