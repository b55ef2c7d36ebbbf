//! The on-disk queue, so that nothing is lost between a crash and the next connection.
//!
//! It consists of envelopes in an [outbox](coroner_outbox::Outbox), and a state with rate limits,
//! sessions and counts.
//!
//! The session in an envelope's file name is the one whose update the envelope carries. It is
//! removed from the name before the envelope is sent, and restored if the envelope certainly did
//! not arrive, because a server counts a session each time it is received. The file `leaving`
//! records whether sessions that are sent separately have left this machine.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use coroner_outbox::files::{own_file, read_at, write_at};
use serde::{Deserialize, Serialize};

pub use coroner_outbox::{Entry, OutboxLimits, Pushed, Sending, SentIds};

use crate::client_report::{Discarded, Reason};
use crate::envelope::Envelope;
use crate::rate_limits::RateLimits;
use crate::session::PendingSessions;

const MAX_SESSIONS: usize = 1000;
/// Separates the event's id from the attachment's number in the id of an attachment's entry.
const ATTACHMENT: char = '+';

/// The state stored beside the envelopes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The server's project without keys, and a hash of the keys: limits and refusals apply to one
    /// DSN.
    pub dsn: String,
    /// Rate limits by category.
    pub rate_limits: RateLimits,
    /// Counts of discarded items, not yet reported.
    pub discarded: Discarded,
    /// Sessions waiting to be sent.
    pub sessions: PendingSessions,
    /// The time until which sessions wait after the server failed on them, in seconds since the
    /// Unix epoch.
    pub sessions_after: u64,
    /// Sessions whose first update was sent or waits in `sessions`.
    pub begun: Vec<String>,
    /// Ids of sent events and of sessions that have ended.
    pub done: SentIds,
    /// The installation's random id.
    pub installation: Option<String>,
    /// Entries of large envelopes, with the number of times that sending them was interrupted: by
    /// the network, or by the end of the process.
    pub interrupted: BTreeMap<String, u32>,
}

impl State {
    /// Whether the event was sent.
    pub fn is_done(&self, id: &str) -> bool {
        self.done.contains(id)
    }

    /// Whether the session's last update was sent or waits. An event may have the same id, because
    /// the run's id is also its session's.
    pub(crate) fn has_ended(&self, sid: &str) -> bool {
        self.done.contains(&ended(sid))
    }

    /// Records that a session has ended, so that its last update isn't sent twice.
    pub(crate) fn note_ended(&mut self, sid: &str) {
        self.done.note(&ended(sid));
    }

    /// Removes the user's data: sessions, counts, the installation's id.
    fn forget(&mut self) {
        self.sessions = PendingSessions::default();
        self.discarded = Discarded::default();
        self.begun.clear();
        self.installation = None;
    }

    /// Records the id of an event that must not be sent again.
    pub fn note_done(&mut self, id: &str) {
        self.done.note(id);
    }
}

/// Returns the id of the event whose attachment an entry contains; `None` for other entries.
pub(crate) fn event_of_attachment(entry: &Entry) -> Option<&str> {
    entry.event_id.split_once(ATTACHMENT).map(|(event_id, _)| event_id)
}

/// Returns a session's id as used in file names: 32 digits.
pub(crate) fn plain_sid(sid: &str) -> String {
    sid.chars().filter(char::is_ascii_hexdigit).collect()
}

/// Returns the key of an ended session among the ids in [`State::done`].
fn ended(sid: &str) -> String {
    format!("session {}", plain_sid(sid))
}

/// An open outbox of envelopes. Two in one process for the same directory share their state.
#[derive(Debug, Clone)]
pub struct Outbox {
    messages: coroner_outbox::Outbox,
    /// One byte: whether the sessions being sent have left this machine. It takes a single write,
    /// to minimise the time between that write and the first byte on the network.
    leaving: Arc<File>,
}

impl Outbox {
    /// Opens the outbox in the directory `path`, creating it if necessary.
    ///
    /// The directory is accessible only to its owner.
    ///
    /// # Errors
    /// An I/O error if the directory or its files can't be created or opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let messages = coroner_outbox::Outbox::open(path, "envelope")?;
        let leaving = Arc::new(own_file(&messages.path().join("leaving"))?);
        Ok(Self { messages, leaving })
    }

    /// Returns the outbox's directory.
    pub fn path(&self) -> &Path {
        self.messages.path()
    }

    /// Acquires the right to send; `None` while another process holds it.
    pub fn try_send(&self) -> Option<Sending<'_>> {
        self.messages.try_send()
    }

    /// Records whether the sessions being sent have left this machine. The caller must hold the
    /// right to send.
    pub(crate) fn set_leaving(&self, left: bool) -> io::Result<()> {
        write_at(&self.leaving, &[u8::from(left)], 0)
    }

    /// Whether the sessions being sent have left this machine.
    pub(crate) fn has_left(&self) -> bool {
        let mut byte = [0];
        read_at(&self.leaving, &mut byte, 0).is_ok() && byte != [0]
    }

    /// Changes the state under a lock. If the process is killed during the change, the previous
    /// state remains.
    ///
    /// # Errors
    /// An I/O error if the state can't be written.
    pub fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> io::Result<R> {
        self.messages.update(|state: &mut State| {
            let result = change(state);
            state.sessions.limit(MAX_SESSIONS);
            let excess = state.begun.len().saturating_sub(MAX_SESSIONS);
            state.begun.drain(..excess);
            // The user may have refused consent since the caller checked.
            if self.is_refused().unwrap_or(false) {
                state.forget();
            }
            result
        })
    }

    /// Reads the state. A damaged file counts as empty: counts and limits are lost, and events may
    /// be sent again with their old ids.
    pub fn read_state(&self) -> State {
        self.messages.read_state()
    }

    /// Returns the user's decision; `None` if the user has not been asked.
    ///
    /// # Errors
    /// An I/O error if the decision can't be read at present.
    pub fn consent(&self) -> io::Result<Option<bool>> {
        self.messages.consent()
    }

    /// Whether nothing may be sent or stored because the user has refused.
    ///
    /// # Errors
    /// An I/O error if the decision can't be read at present.
    pub fn is_refused(&self) -> io::Result<bool> {
        self.messages.is_refused()
    }

    /// Whether a report of that time must not be stored.
    ///
    /// # Errors
    /// An I/O error if the decision can't be read at present.
    pub fn is_declined(&self, time: SystemTime, is_required: bool) -> io::Result<bool> {
        self.messages.is_declined(time, is_required)
    }

    /// Fails unless the user has agreed or consent isn't required. Must be called before anything
    /// leaves this machine.
    ///
    /// # Errors
    /// An error if the user has refused or has not agreed yet, or if the decision can't be read at
    /// present.
    pub fn check_consent(&self, is_required: bool) -> io::Result<()> {
        self.messages.check_consent(is_required)
    }

    /// Stores the user's decision.
    ///
    /// # Errors
    /// An I/O error if it can't be written.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        self.messages.set_consent(given)
    }

    /// Durably queues an envelope, unless the user has refused. `session` is the session that the
    /// envelope ends.
    ///
    /// # Errors
    /// An I/O error if the envelope can't be written.
    pub fn push(&self, envelope: &Envelope, session: Option<&str>, now: SystemTime) -> io::Result<Pushed> {
        self.push_unless(envelope, session, now, || self.is_refused())
    }

    /// Like [`push`](Self::push), unless `is_declined`.
    pub(crate) fn push_unless(
        &self,
        envelope: &Envelope,
        session: Option<&str>,
        now: SystemTime,
        is_declined: impl Fn() -> io::Result<bool>,
    ) -> io::Result<Pushed> {
        let event_id = envelope.event_id().unwrap_or_default();
        if self.read_state().is_done(event_id) {
            return Ok(Pushed::Known);
        }
        let session = session.map(plain_sid).unwrap_or_default();
        self.messages.push_unless(event_id, &session, &envelope.to_bytes(), now, is_declined)
    }

    /// Durably queues an envelope of attachments, to be sent after their event, unless it is known
    /// or the user has refused. Several ones of an event have different numbers.
    ///
    /// # Errors
    /// An I/O error if the envelope can't be written.
    pub(crate) fn push_attachment(
        &self,
        envelope: &Envelope,
        number: usize,
        now: SystemTime,
        is_declined: impl Fn() -> io::Result<bool>,
    ) -> io::Result<Pushed> {
        let id = format!("{}{ATTACHMENT}{number}", envelope.event_id().unwrap_or_default());
        if self.read_state().is_done(&id) {
            return Ok(Pushed::Known);
        }
        self.messages.push_unless(&id, "", &envelope.to_bytes(), now, is_declined)
    }

    /// Returns the queued entries, oldest first.
    ///
    /// # Errors
    /// An I/O error if the directory can't be listed.
    pub fn queue(&self) -> io::Result<Vec<Entry>> {
        self.messages.queue()
    }

    /// Returns the entries that were given up, oldest first.
    ///
    /// # Errors
    /// An I/O error if the directory can't be listed.
    pub fn given_up(&self) -> io::Result<Vec<Entry>> {
        self.messages.given_up()
    }

    /// Reads an entry's envelope; `None` if it was removed.
    ///
    /// # Errors
    /// An I/O error if the file can't be read, or if it isn't a valid envelope (damaged by a
    /// failing disk or another program).
    pub fn read(&self, entry: &Entry) -> io::Result<Option<Envelope>> {
        let Some(bytes) = self.messages.read(entry)? else { return Ok(None) };
        Envelope::parse(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Postpones an entry. Returns the renamed entry.
    ///
    /// # Errors
    /// An I/O error if the file can't be renamed.
    pub fn put_off(&self, entry: &Entry, tries: u32, not_before: SystemTime) -> io::Result<Entry> {
        self.messages.put_off(entry, tries, not_before)
    }

    /// Sets the session whose update an entry's envelope carries; an empty text for none. Returns
    /// the renamed entry.
    ///
    /// # Errors
    /// An I/O error if the file can't be renamed.
    pub fn set_session(&self, entry: &Entry, session: &str) -> io::Result<Entry> {
        self.messages.set_session(entry, session)
    }

    /// Removes an entry that was sent, after recording its id. If the id can't be recorded because
    /// the disk is full, the entry is removed anyway; otherwise it would be sent again and again.
    ///
    /// # Errors
    /// An I/O error if the file can't be removed.
    pub fn sent(&self, entry: &Entry) -> io::Result<()> {
        let note = |state: &mut State| {
            state.note_done(&entry.event_id);
            if !entry.session.is_empty() {
                state.note_ended(&entry.session);
            }
        };
        let noted = self.update(note);
        self.messages.remove(entry)?;
        // Retry: removing the entry has freed disk space.
        if let Err(error) = noted.or_else(|_| self.update(note)) {
            log::warn!("coroner: can't record that event {} was sent: {error}", entry.event_id);
        }
        Ok(())
    }

    /// Sets an entry aside; it isn't retried automatically.
    ///
    /// # Errors
    /// An I/O error if the file can't be moved.
    pub fn give_up(&self, entry: &Entry) -> io::Result<()> {
        self.messages.give_up(entry)
    }

    /// Returns all entries that were given up to the queue.
    ///
    /// The server that refused them has been replaced.
    ///
    /// # Errors
    /// An I/O error if a file can't be moved.
    pub fn revive(&self) -> io::Result<()> {
        self.messages.revive()
    }

    /// Removes all envelopes, sessions and counts after the user has refused.
    ///
    /// # Errors
    /// An I/O error if something can't be removed.
    pub fn clear(&self) -> io::Result<()> {
        self.messages.clear()?;
        self.update(State::forget)
    }

    /// Removes the oldest entries until the rest is within the limits, starting with those given
    /// up.
    ///
    /// Counts the queued ones that were lost.
    ///
    /// # Errors
    /// An I/O error if something can't be listed or removed.
    pub fn enforce(&self, limits: &OutboxLimits, now: SystemTime) -> io::Result<usize> {
        let mut lost = Discarded::default();
        let mut ended = Vec::new();
        let gone = self.messages.enforce(limits, now, |entry, message| {
            if let Some(mut envelope) = message.and_then(|bytes| Envelope::parse(&bytes).ok()) {
                // The session has ended, whatever becomes of its event.
                ended.extend(envelope.take_session().filter(|_| !entry.session.is_empty()));
                lost.count_envelope(Reason::CacheOverflow, &envelope);
            }
        })?;
        if !lost.is_empty() {
            self.update(|state| {
                state.discarded.add(&lost);
                for update in ended {
                    state.sessions.push(update);
                }
            })?;
        }
        Ok(gone)
    }

    /// Returns the sessions that a queued envelope ends. Their updates must not be sent separately.
    ///
    /// # Errors
    /// An I/O error if the queue can't be listed.
    pub fn held_sessions(&self) -> io::Result<HashSet<String>> {
        Ok(self.queue()?.into_iter().map(|entry| entry.session).filter(|session| !session.is_empty()).collect())
    }
}
