//! From reports and runs to what is sent: events are made, sampled, shown to the app and kept; a thread sends them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use coroner_outbox::{SendingThread, locked};
use coroner_report::model::{CrashFlag, Report, RunFacts};
use coroner_report::run_state::ExitKind;
use coroner_report::wire::Monitor;

use crate::attachments;
use crate::client_report::Reason;
use crate::envelope::{Attachment, AttachmentKind, Envelope, Item, item_type};
use crate::event::Event;
use crate::minidump;
use crate::options::Options;
use crate::outbox::{Outbox, Pushed};
use crate::sender::Sender;
use crate::session::{Reports, SessionMode, SessionTeller, SessionUpdate, is_counted_by_client};
use crate::termination::{self, Conditions};
use crate::transport::{HttpTransport, Transport, TransportError, project};

/// Delivers to one server: keeps what it is given in an outbox on the disk, and sends it from a thread of its own.
///
/// It may be cloned; all clones are one.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    outbox: Outbox,
    sender: Arc<Sender>,
    thread: SendingThread,
    /// What this run is of, once that is known.
    current: Mutex<Option<Conditions>>,
}

/// A client can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The outbox can't be opened.
    #[error("the outbox can't be opened: {0}")]
    Outbox(io::Error),
    /// The server can't be reached as the options want it.
    #[error("{0}")]
    Transport(TransportError),
}

/// What became of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Captured {
    /// It is kept and will be sent.
    Kept,
    /// It has come before.
    Known,
    /// It is not among the sampled.
    Sampled,
    /// The app's `before_send` dropped it.
    Dropped,
    /// The user does not agree.
    Refused,
}

impl Client {
    /// A client with its outbox in `directory`, sending over HTTP.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: Options, directory: &Path) -> Result<Self, OpenError> {
        let transport = HttpTransport::new(&options.dsn, &options.transport).map_err(OpenError::Transport)?;
        Self::with_transport(options, directory, Box::new(transport))
    }

    /// A client that sends by a transport of the caller's.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn with_transport(
        options: Options,
        directory: &Path,
        transport: Box<dyn Transport>,
    ) -> Result<Self, OpenError> {
        let outbox = Outbox::open(directory).map_err(OpenError::Outbox)?;
        let identity = identity(&options);
        let is_other = |state: &crate::outbox::State| !state.dsn.is_empty() && state.dsn != identity;
        if is_other(&outbox.read_state()) {
            // Before the note: a process that is killed between the two does it again.
            outbox.revive().map_err(OpenError::Outbox)?;
        }
        let note = |state: &mut crate::outbox::State| {
            if is_other(state) {
                // What another server wanted is not this one's.
                state.rate_limits.clear();
                state.sessions_after = 0;
            }
            state.dsn.clone_from(&identity);
        };
        outbox.update(note).map_err(OpenError::Outbox)?;
        let sender = Arc::new(Sender::new(outbox.clone(), transport, options.clone()));
        let rounds = Arc::clone(&sender);
        let thread = SendingThread::new("coroner-sentry", move || rounds.round());
        let inner = Inner { options, outbox, sender, thread, current: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub(crate) fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Its outbox.
    pub fn outbox(&self) -> &Outbox {
        &self.inner.outbox
    }

    /// Takes a report: makes its event and keeps it to be sent. A fatal crash ends the run's session, and so does a hang in which
    /// the process was ended.
    ///
    /// # Errors
    /// It can't be kept (the disk is full). It may come again: an event that is kept or was sent already is known by its id.
    pub fn capture(&self, report: &Report) -> io::Result<Captured> {
        let options = &self.inner.options;
        if self.outbox().is_refused()? {
            return Ok(Captured::Refused);
        }
        let run = report.run.as_ref().filter(|run| is_fatal(report, run));
        let is_hang = report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
        let all = run.map_or(0, |run| run.lifecycle.reports_delivered as usize).saturating_add(1);
        let session = self.last_update(run, Reports { all, crashes: usize::from(!is_hang) });
        let event = Event::from_report(report, &options.event);
        self.keep(event, session, |event| self.attachments(report, event))
    }

    /// Puts an event into the outbox, with what goes with it, if it is to be sent.
    fn keep(
        &self,
        event: Event,
        session: Option<SessionUpdate>,
        attachments: impl FnOnce(&mut Event) -> io::Result<Vec<Attachment>>,
    ) -> io::Result<Captured> {
        let options = &self.inner.options;
        let event_id = event.event_id.clone();
        if !is_sampled(&event_id, options.sample_rate) {
            self.drop_event(Reason::SampleRate, session)?;
            return Ok(Captured::Sampled);
        }
        let event = match &options.before_send {
            Some(hook) => hook(event),
            None => Some(event),
        };
        let Some(mut event) = event else {
            self.drop_event(Reason::BeforeSend, session)?;
            return Ok(Captured::Dropped);
        };
        // It is by its id that a server recognises what comes again.
        event.event_id = event_id;
        let attachments = attachments(&mut event)?;
        let mut envelope = Envelope::of_event(&event);
        envelope.items.extend(attachments.into_iter().map(Item::attachment));
        // No update of this session may be on its way while its last one is put together.
        let _still = session.as_ref().and_then(|update| self.inner.sender.session_still(&update.sid));
        let session = match session {
            Some(update) => self.outbox().update(|state| join(state, update))?,
            None => None,
        };
        if let Some(update) = &session {
            envelope.items.push(Item::json(item_type::SESSION, update));
        }
        let sid = session.as_ref().map(|update| update.sid.as_str());
        let pushed = self.outbox().push(&envelope, sid, SystemTime::now())?;
        if pushed == Pushed::Refused {
            return Ok(Captured::Refused);
        }
        if let Some(sid) = sid {
            // From here on the envelope speaks for the session.
            self.outbox().update(|state| {
                state.note_ended(sid);
                state.begun.retain(|begun| begun != sid);
            })?;
        }
        self.wake();
        Ok(if pushed == Pushed::Added { Captured::Kept } else { Captured::Known })
    }

    /// Counts an event that is not sent. Its session's end is sent by itself.
    fn drop_event(&self, reason: Reason, session: Option<SessionUpdate>) -> io::Result<()> {
        self.outbox().update(|state| {
            state.discarded.count(reason, "error");
            if let Some(update) = session.and_then(|update| join(state, update)) {
                state.note_ended(&update.sid);
                state.begun.retain(|begun| *begun != update.sid);
                state.sessions.push(update);
            }
        })
    }

    /// Notes that the run of `run` has begun, so that it is counted.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn run_began(&self, run: &RunFacts) -> io::Result<()> {
        *locked(&self.inner.current) = Some(Conditions::of(run));
        if self.inner.options.sessions != SessionMode::Individual {
            return Ok(());
        }
        let Some(update) = self.teller().and_then(|teller| teller.began(run)) else { return Ok(()) };
        if self.outbox().is_refused()? {
            return Ok(());
        }
        self.outbox().update(|state| {
            if !state.begun.contains(&update.sid) && !state.has_ended(&update.sid) {
                state.begun.push(update.sid.clone());
                state.sessions.push(update);
            }
        })?;
        self.wake();
        Ok(())
    }

    /// Notes that the run of `run` has ended, and left these reports. Of a fatal crash [`capture`](Self::capture) has counted
    /// the end before, or could not.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn run_ended(&self, run: &RunFacts, reports: Reports) -> io::Result<()> {
        if self.outbox().is_refused()? {
            return Ok(());
        }
        let update = self.last_update(Some(run), reports);
        if self.is_watchdog_termination(run, reports) {
            let (id, time) = (termination::event_id(run), termination::last_sign(run));
            let event = Event::of_watchdog_termination(&id, time, run, &self.inner.options.event);
            return self.keep(event, update, |_| Ok(Vec::new())).map(drop);
        }
        let Some(update) = update else { return Ok(()) };
        self.outbox().update(|state| {
            if let Some(update) = join(state, update) {
                state.note_ended(&update.sid);
                state.begun.retain(|begun| *begun != update.sid);
                state.sessions.push(update);
            }
        })?;
        self.wake();
        Ok(())
    }

    /// Whether the end of a run is reported as an event of its own; that of one that was reported before is not again.
    fn is_watchdog_termination(&self, run: &RunFacts, reports: Reports) -> bool {
        // A hang in which it was ended has a report that says so.
        let reported = reports.crashes > 0 || (run.lifecycle.hang_since.is_some() && reports.all > 0);
        let wanted = self.inner.options.watchdog_terminations && !reported;
        let current = locked(&self.inner.current);
        wanted
            && current.as_ref().is_some_and(|current| termination::is_watchdog(run, current))
            && !self.outbox().read_state().is_done(&termination::event_id(run))
    }

    /// Counts reports that were lost before they came here, for want of room.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn count_lost(&self, reports: u64) -> io::Result<()> {
        self.outbox().update(|state| state.discarded.count_many(Reason::CacheOverflow, "error", reports))
    }

    /// Counts reports that were never made, because there were too many in too short a time.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn count_left_out(&self, reports: u64) -> io::Result<()> {
        self.outbox().update(|state| state.discarded.count_many(Reason::QueueOverflow, "error", reports))
    }

    fn last_update(&self, run: Option<&RunFacts>, reports: Reports) -> Option<SessionUpdate> {
        let mode = self.inner.options.sessions;
        let run = run?;
        let update = self.teller()?.ended(run, reports).filter(|update| mode.takes(update))?;
        Some(SessionUpdate { init: mode != SessionMode::CrashesOnly || !is_counted_by_client(run), ..update })
    }

    /// `None` where no sessions are reported.
    fn teller(&self) -> Option<SessionTeller> {
        let Options { event, sessions, installation_id, .. } = &self.inner.options;
        if *sessions == SessionMode::Off {
            return None;
        }
        // Beside a client that counts the runs that end well, without such an id: only those that crash would be users.
        let counts_all = *installation_id && *sessions != SessionMode::CrashesOnly;
        let installation = counts_all.then(|| self.installation()).flatten();
        Some(SessionTeller { release: event.release.clone(), environment: event.environment.clone(), installation })
    }

    /// The id of this installation of the app, made where there is none.
    fn installation(&self) -> Option<String> {
        let known = self.outbox().read_state().installation;
        known.or_else(|| {
            let mut new = [0; 16];
            getrandom::fill(&mut new).ok()?;
            // A UUID of version 4.
            new[6] = new[6] & 0x0f | 0x40;
            new[8] = new[8] & 0x3f | 0x80;
            let new = || coroner_report::model::Id(new).to_string();
            self.outbox().update(|state| state.installation.get_or_insert_with(new).clone()).ok()
        })
    }

    /// The files that go with an event, within the limit.
    fn attachments(&self, report: &Report, event: &mut Event) -> io::Result<Vec<Attachment>> {
        let options = &self.inner.options;
        let mut attachments = options.attach.as_ref().map(|attach| attach(report)).unwrap_or_default();
        if options.minidump && minidump::is_wanted(report) {
            match minidump::attachment(report, &options.event) {
                Ok(attachment) => attachments.push(attachment),
                Err(error) => log::warn!("coroner: event {} goes without a minidump: {error}", event.event_id),
            }
        }
        let mut too_large = Vec::new();
        for path in &options.attachments {
            let filename = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match attachments::read_file(path, options.max_attachment_bytes) {
                Ok(Some(bytes)) => {
                    attachments.push(Attachment { filename, content_type: None, kind: AttachmentKind::File, bytes });
                }
                Ok(None) => too_large.push(filename),
                Err(error) => log::warn!("coroner: attachment `{}` can't be read: {error}", path.display()),
            }
        }
        let (of_run, left_out) = attachments::of_run(report, event, options.max_attachment_bytes);
        attachments.extend(of_run);
        too_large.extend(left_out);
        // What the outbox has no room for would be removed with its event.
        let room = usize::try_from(options.limits.bytes / 2).unwrap_or(usize::MAX);
        let left_out = attachments::limit(&mut attachments, options.max_attachment_bytes.min(room), too_large, event);
        if !left_out.is_empty() {
            self.outbox().update(|state| {
                state.discarded.count_many(Reason::InternalSdkError, "attachment", left_out.len() as u64);
            })?;
        }
        Ok(attachments)
    }

    /// What the user said: from `true` on what waits is sent, with `false` all that waits is removed and nothing more is kept.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        self.outbox().set_consent(given)?;
        if given {
            self.wake();
            return Ok(());
        }
        self.outbox().clear()
    }

    /// Starts sending in the background, if it isn't going on.
    pub fn wake(&self) {
        self.inner.thread.wake();
    }

    /// Sends what may be sent now, and waits for it, at most `timeout`. Says whether nothing is left.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.inner.thread.flush(timeout)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Client")
            .field("options", &self.inner.options)
            .field("outbox", &self.inner.outbox.path())
            .finish()
    }
}

/// The last update of a session, `init` if the first was not sent; `None` if it was sent itself.
fn join(state: &mut crate::outbox::State, update: SessionUpdate) -> Option<SessionUpdate> {
    if state.has_ended(&update.sid) {
        return None;
    }
    // A beginning that was never sent goes with the end. It is taken at once, so that no other process of the app sends it meanwhile;
    // and if this one is killed before the end is kept, the session is one that was never begun.
    let unsent = state.sessions.take(&update.sid).is_some();
    let sent = state.begun.contains(&update.sid) && !unsent;
    if !sent {
        state.begun.retain(|begun| *begun != update.sid);
    }
    Some(SessionUpdate { init: update.init && !sent, ..update })
}

/// Whether the run ended by what the report is of: not that of a child made by fork, which has its parent's session.
fn is_fatal(report: &Report, run: &RunFacts) -> bool {
    let ended = run.lifecycle.exit == ExitKind::CRASHED || run.lifecycle.crashed_by.is_none();
    let crash = report.crash.as_ref();
    ended
        && crash.is_some_and(|crash| {
            !crash.has(CrashFlag::NotFatal) && !crash.has(CrashFlag::ForkChild) && crash.monitor != Monitor::USER
        })
}

/// Whether an event is among the sampled: a share of all ids.
fn is_sampled(event_id: &str, rate: f64) -> bool {
    let digits = event_id.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0);
    f64::from(digits) / 4_294_967_296.0 < rate || rate >= 1.0
}

/// What distinguishes one DSN from another without saying its keys.
fn identity(options: &Options) -> String {
    let mut hasher = DefaultHasher::new();
    options.dsn.to_string().hash(&mut hasher);
    format!("{} {:016x}", project(&options.dsn), hasher.finish())
}

#[cfg(test)]
mod tests;
