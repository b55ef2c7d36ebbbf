//! What waits to be sent, on the disk, so that nothing is lost between a crash and a server that is reached: envelopes in an
//! [outbox](coroner_outbox::Outbox), and beside them rate limits, sessions and counts.
//!
//! The session in an envelope's name is one that its envelope is to tell the server of: it is taken out of the name before the envelope is
//! sent, and put back if it surely did not arrive, because a server counts a session as often as it comes. `leaving` in the directory says
//! whether sessions that are being sent by themselves have left this machine.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use coroner_outbox::files::{Change, read_at, write_at};
use serde::{Deserialize, Serialize};

pub use coroner_outbox::{Entry, OutboxLimits, Pushed, Sending, SentIds};

use crate::client_report::{Discarded, Reason};
use crate::envelope::Envelope;
use crate::rate_limits::RateLimits;
use crate::session::PendingSessions;

const MAX_SESSIONS: usize = 1000;

/// What is kept beside the envelopes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// The server's project, without keys, and a hash of them: limits and refusals are of one DSN.
    pub dsn: String,
    /// Until when what may not be sent.
    pub rate_limits: RateLimits,
    /// Counts of what was not sent, to be reported.
    pub discarded: Discarded,
    /// Sessions to be sent.
    pub sessions: PendingSessions,
    /// Until when sessions wait since the server failed over them, seconds since the Unix epoch.
    pub sessions_after: u64,
    /// Sessions of which the beginning has been sent, or waits in `sessions`.
    pub begun: Vec<String>,
    /// Ids of events that were sent, and of sessions that have ended.
    pub done: SentIds,
    /// Which installation of the app it is: a random id.
    pub installation: Option<String>,
}

impl State {
    /// Whether the event has been sent.
    pub fn is_done(&self, id: &str) -> bool {
        self.done.contains(id)
    }

    /// Whether the session's end has been sent or waits. An event may have the same id: that of the run, which is its session's.
    pub(crate) fn has_ended(&self, sid: &str) -> bool {
        self.done.contains(&ended(sid))
    }

    /// Notes the end of a session, which must not come again.
    pub(crate) fn note_ended(&mut self, sid: &str) {
        self.done.note(&ended(sid));
    }

    /// Leaves nothing of the user here: no sessions, counts, installation.
    fn forget(&mut self) {
        self.sessions = PendingSessions::default();
        self.discarded = Discarded::default();
        self.begun.clear();
        self.installation = None;
    }

    /// Notes the id of an event that must not come again.
    pub fn note_done(&mut self, id: &str) {
        self.done.note(id);
    }
}

/// A session's id as it stands in names: 32 digits.
pub(crate) fn plain_sid(sid: &str) -> String {
    sid.chars().filter(char::is_ascii_hexdigit).collect()
}

/// What stands among the ids of events for a session that has ended.
fn ended(sid: &str) -> String {
    format!("session {}", plain_sid(sid))
}

/// An outbox of envelopes, held open. Two in one process for one directory are one.
#[derive(Debug, Clone)]
pub struct Outbox {
    messages: coroner_outbox::Outbox,
    /// One byte: whether the sessions that are being sent have left this machine. One write, so that hardly any time is between it and
    /// the first byte on the network.
    leaving: Arc<File>,
}

impl Outbox {
    /// Opens the outbox in the directory `path`, which is made where it does not exist, for its owner only.
    ///
    /// # Errors
    /// It can't be made or opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let messages = coroner_outbox::Outbox::open(path, "envelope")?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).private();
        let leaving = Arc::new(options.open(messages.path().join("leaving"))?);
        Ok(Self { messages, leaving })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        self.messages.path()
    }

    /// The right to send; `None` while another process has it.
    pub fn try_send(&self) -> Option<Sending<'_>> {
        self.messages.try_send()
    }

    /// Notes whether the sessions that are being sent have left. For who has the right to send.
    pub(crate) fn set_leaving(&self, left: bool) -> io::Result<()> {
        write_at(&self.leaving, &[u8::from(left)], 0)
    }

    /// Whether they have.
    pub(crate) fn has_left(&self) -> bool {
        let mut byte = [0];
        read_at(&self.leaving, &mut byte, 0).is_ok() && byte != [0]
    }

    /// Reads and changes what is kept beside the envelopes; nobody else does meanwhile. Of a process killed in it, the state
    /// before stands.
    ///
    /// # Errors
    /// The state can't be written.
    pub fn update<R>(&self, change: impl FnOnce(&mut State) -> R) -> io::Result<R> {
        self.messages.update(|state: &mut State| {
            let result = change(state);
            state.sessions.limit(MAX_SESSIONS);
            let excess = state.begun.len().saturating_sub(MAX_SESSIONS);
            state.begun.drain(..excess);
            // A refusal may have come since whoever asks for the change has looked.
            if self.is_refused().unwrap_or(false) {
                state.forget();
            }
            result
        })
    }

    /// What is kept beside the envelopes. A file that is damaged counts as none: what is lost with it are counts and limits,
    /// and what was sent may be sent again under its old id.
    pub fn read_state(&self) -> State {
        self.messages.read_state()
    }

    /// Whether the user has agreed; `None` while they have not been asked.
    ///
    /// # Errors
    /// It can't be read for now.
    pub fn consent(&self) -> io::Result<Option<bool>> {
        self.messages.consent()
    }

    /// Whether nothing may be sent or kept because the user has refused.
    ///
    /// # Errors
    /// It can't be read for now.
    pub fn is_refused(&self) -> io::Result<bool> {
        self.messages.is_refused()
    }

    /// An error unless the user has agreed, or need not be asked. To be asked before anything leaves this machine.
    ///
    /// # Errors
    /// The user has refused, or has not agreed yet; or that can't be read for now.
    pub fn check_consent(&self, is_required: bool) -> io::Result<()> {
        self.messages.check_consent(is_required)
    }

    /// Keeps what the user said.
    ///
    /// # Errors
    /// It can't be written.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        self.messages.set_consent(given)
    }

    /// Puts an envelope into the queue, durably, unless the user has refused. `session` is the one that it ends.
    ///
    /// # Errors
    /// It can't be written.
    pub fn push(&self, envelope: &Envelope, session: Option<&str>, now: SystemTime) -> io::Result<Pushed> {
        let event_id = envelope.event_id().unwrap_or_default();
        if self.read_state().is_done(event_id) {
            return Ok(Pushed::Known);
        }
        let session = session.map(plain_sid).unwrap_or_default();
        self.messages.push(event_id, &session, &envelope.to_bytes(), now)
    }

    /// What is in the queue, oldest first.
    ///
    /// # Errors
    /// It can't be listed.
    pub fn queue(&self) -> io::Result<Vec<Entry>> {
        self.messages.queue()
    }

    /// What was given up, oldest first.
    ///
    /// # Errors
    /// It can't be listed.
    pub fn given_up(&self) -> io::Result<Vec<Entry>> {
        self.messages.given_up()
    }

    /// The envelope of an entry; `None` if it is gone. One that is damaged (by a failing disk, or another program) is an error.
    ///
    /// # Errors
    /// It can't be read, or is no envelope.
    pub fn read(&self, entry: &Entry) -> io::Result<Option<Envelope>> {
        let Some(bytes) = self.messages.read(entry)? else { return Ok(None) };
        Envelope::parse(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Puts an entry off. Gives it as it is then.
    ///
    /// # Errors
    /// It can't be renamed.
    pub fn put_off(&self, entry: &Entry, tries: u32, not_before: SystemTime) -> io::Result<Entry> {
        self.messages.put_off(entry, tries, not_before)
    }

    /// Sets which session the envelope of an entry is to tell of; an empty text for none. Gives the entry as it is then.
    ///
    /// # Errors
    /// It can't be renamed.
    pub fn set_session(&self, entry: &Entry, session: &str) -> io::Result<Entry> {
        self.messages.set_session(entry, session)
    }

    /// Takes an entry out that has been sent. First it is noted that it was; where there is no room for a note (a full disk), it is taken
    /// out nonetheless, or it would be sent again and again.
    ///
    /// # Errors
    /// It can't be removed.
    pub fn sent(&self, entry: &Entry) -> io::Result<()> {
        let note = |state: &mut State| {
            state.note_done(&entry.event_id);
            if !entry.session.is_empty() {
                state.note_ended(&entry.session);
            }
        };
        let noted = self.update(note);
        self.messages.remove(entry)?;
        // Now there is the room that it had.
        if let Err(error) = noted.or_else(|_| self.update(note)) {
            log::warn!("coroner: it can't be noted that event {} is sent: {error}", entry.event_id);
        }
        Ok(())
    }

    /// Sets an entry aside that will not be sent again by itself.
    ///
    /// # Errors
    /// It can't be moved.
    pub fn give_up(&self, entry: &Entry) -> io::Result<()> {
        self.messages.give_up(entry)
    }

    /// Puts all that was given up back into the queue: the server that refused it is no longer the one that is asked.
    ///
    /// # Errors
    /// It can't be moved.
    pub fn revive(&self) -> io::Result<()> {
        self.messages.revive()
    }

    /// Removes all envelopes, sessions and counts: the user does not agree.
    ///
    /// # Errors
    /// Something can't be removed.
    pub fn clear(&self) -> io::Result<()> {
        self.messages.clear()?;
        self.update(State::forget)
    }

    /// Removes the oldest until what is left is within the limits, those that were given up first, and counts what was still
    /// to be sent.
    ///
    /// # Errors
    /// Something can't be listed or removed.
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

    /// The sessions that an envelope in the queue ends: no update of theirs may go out by itself.
    ///
    /// # Errors
    /// The queue can't be listed.
    pub fn held_sessions(&self) -> io::Result<HashSet<String>> {
        Ok(self.queue()?.into_iter().map(|entry| entry.session).filter(|session| !session.is_empty()).collect())
    }
}
