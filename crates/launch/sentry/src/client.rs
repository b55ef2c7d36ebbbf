//! The client: turns reports and runs into queued events and sessions; a background thread sends
//! them.

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
use sentry_types::protocol::v7::User;

use crate::attachments;
use crate::client_report::Reason;
use crate::envelope::{Attachment, AttachmentType, Envelope, Item, item_type};
use crate::event::Event;
use crate::minidump;
use crate::options::Options;
use crate::outbox::{Outbox, Pushed};
use crate::sender::Sender;
use crate::session::{Reports, SessionMode, SessionTeller, SessionUpdate, is_counted_by_client};
use crate::termination::{self, Conditions};
use crate::transport::{HttpTransport, Transport, TransportError, project};

/// Size in bytes above which an attachment is sent after its event, and not with it. On a slow
/// uplink the event would otherwise arrive minutes later, or never.
const SEPARATE: usize = 256 << 10;

/// Delivers reports to one server from a background thread.
///
/// Events are stored in an on-disk outbox until they are sent.
///
/// Clones share the same state.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    outbox: Outbox,
    sender: Arc<Sender>,
    thread: SendingThread,
    /// The conditions of the current run, once known.
    current: Mutex<Option<Conditions>>,
}

/// An error from opening a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The outbox can't be opened.
    #[error("can't open the outbox: {0}")]
    Outbox(io::Error),
    /// The transport's options can't be used.
    #[error("{0}")]
    Transport(TransportError),
}

/// The outcome of capturing a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Captured {
    /// Queued for sending.
    Kept,
    /// Already queued or sent.
    Known,
    /// Dropped by sampling.
    Sampled,
    /// Dropped by the app's `before_send`.
    Dropped,
    /// Dropped because the user has refused consent.
    Refused,
}

impl Client {
    /// Opens a client with its outbox in `directory` that sends over HTTP.
    ///
    /// # Errors
    /// [`OpenError`] if the outbox can't be opened or the transport's options can't be used.
    pub fn open(options: Options, directory: &Path) -> Result<Self, OpenError> {
        let transport = HttpTransport::new(&options.dsn, &options.transport).map_err(OpenError::Transport)?;
        Self::with_transport(options, directory, Box::new(transport))
    }

    /// Opens a client that sends with the given transport.
    ///
    /// # Errors
    /// [`OpenError`] if the outbox can't be opened.
    pub fn with_transport(
        options: Options,
        directory: &Path,
        transport: Box<dyn Transport>,
    ) -> Result<Self, OpenError> {
        let outbox = Outbox::open(directory).map_err(OpenError::Outbox)?;
        let identity = identity(&options);
        let is_other = |state: &crate::outbox::State| !state.dsn.is_empty() && state.dsn != identity;
        if is_other(&outbox.read_state()) {
            // Revive the entries before storing the new identity: if the process is killed in
            // between, the next run repeats both steps.
            outbox.revive().map_err(OpenError::Outbox)?;
        }
        let note = |state: &mut crate::outbox::State| {
            if is_other(state) {
                // Limits of another server don't apply to this one.
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

    /// Returns the client's outbox.
    pub fn outbox(&self) -> &Outbox {
        &self.inner.outbox
    }

    /// Captures a report: creates its event and queues it.
    ///
    /// A fatal crash, or a hang during which the process was killed, also ends the run's session.
    ///
    /// # Errors
    /// An I/O error if the event can't be stored, for example because the disk is full. The report
    /// may be captured again: an event that is queued or already sent is recognised by its id.
    pub fn capture(&self, report: &Report) -> io::Result<Captured> {
        let options = &self.inner.options;
        let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time).into();
        if self.outbox().is_declined(time, options.require_consent)? {
            return Ok(Captured::Refused);
        }
        let run = report.run.as_ref().filter(|run| is_fatal(report, run));
        let is_hang = report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
        let all = run.map_or(0, |run| run.lifecycle.reports_delivered as usize).saturating_add(1);
        let session = self.last_update(run, Reports { all, crashes: usize::from(!is_hang) });
        let mut event = Event::from_report(report, &options.event);
        self.name_user(&mut event);
        self.keep(event, time, session, |event| self.attachments(report, event))
    }

    /// Sets the installation as the user of an event whose app set none, so that a server can count
    /// the users that an issue affects.
    fn name_user(&self, event: &mut Event) {
        if self.inner.options.installation_id && event.user.is_none() {
            event.user = self.installation().map(|id| User { id: Some(id), ..User::default() });
        }
    }

    /// Queues an event with its attachments and its session update.
    ///
    /// Sampling or `before_send` may drop the event.
    fn keep(
        &self,
        event: Event,
        time: SystemTime,
        session: Option<SessionUpdate>,
        attachments: impl FnOnce(&mut Event) -> io::Result<Vec<Attachment>>,
    ) -> io::Result<Captured> {
        let options = &self.inner.options;
        let event_id = event.event_id;
        if !is_sampled(&event.id(), options.sample_rate) {
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
        // Servers recognise duplicates by the id, so a hook can't change it.
        event.event_id = event_id;
        let (separate, attachments): (Vec<_>, Vec<_>) = attachments(&mut event)?.into_iter().partition(|attachment| {
            attachment.ty != Some(AttachmentType::Minidump) && attachment.buffer.len() > SEPARATE
        });
        let mut envelope = Envelope::from_event(&event);
        envelope.items.extend(attachments.into_iter().map(Item::attachment));
        // Prevent updates of this session from being sent while its last update is created.
        let _still = session.as_ref().and_then(|update| self.inner.sender.session_still(&update.sid()));
        let session = match session {
            Some(update) => self.outbox().update(|state| join(state, update))?,
            None => None,
        };
        if let Some(update) = &session {
            envelope.items.push(Item::json(item_type::SESSION, update));
        }
        let sid = session.as_ref().map(SessionUpdate::sid);
        let sid = sid.as_deref();
        let is_declined = || self.outbox().is_declined(time, options.require_consent);
        let pushed = self.outbox().push_unless(&envelope, sid, SystemTime::now(), is_declined)?;
        if pushed == Pushed::Refused {
            return Ok(Captured::Refused);
        }
        if let Some(sid) = sid {
            // From now on the envelope carries the session's last update.
            self.outbox().update(|state| {
                state.note_ended(sid);
                state.begun.retain(|begun| begun != sid);
            })?;
        }
        for (number, attachment) in separate.into_iter().enumerate() {
            let header = envelope.header.clone();
            let own = Envelope { header, items: vec![Item::attachment(attachment)] };
            // Later than its event, which is sent first.
            let later = SystemTime::now() + Duration::from_millis(1);
            if let Err(error) = self.outbox().push_attachment(&own, number, later, is_declined) {
                log::warn!("coroner: can't write an attachment of event {} to the outbox: {error}", event.id());
                self.outbox().update(|state| state.discarded.count(Reason::InternalSdkError, "attachment"))?;
            }
        }
        self.wake();
        Ok(if pushed == Pushed::Added { Captured::Kept } else { Captured::Known })
    }

    /// Counts an event that is not sent. Its session's last update is sent separately.
    fn drop_event(&self, reason: Reason, session: Option<SessionUpdate>) -> io::Result<()> {
        self.outbox().update(|state| {
            state.discarded.count(reason, "error");
            if let Some(update) = session.and_then(|update| join(state, update)) {
                state.note_ended(&update.sid());
                state.begun.retain(|begun| *begun != update.sid());
                state.sessions.push(update);
            }
        })
    }

    /// Queues the session update for the start of `run`.
    ///
    /// # Errors
    /// An I/O error if the outbox's state can't be written.
    pub fn run_began(&self, run: &RunFacts) -> io::Result<()> {
        *locked(&self.inner.current) = Some(Conditions::from_run(run));
        if self.inner.options.sessions != SessionMode::Individual {
            return Ok(());
        }
        let Some(update) = self.teller().and_then(|teller| teller.began(run)) else { return Ok(()) };
        if self.outbox().is_refused()? {
            return Ok(());
        }
        self.outbox().update(|state| {
            let sid = update.sid();
            if !state.begun.contains(&sid) && !state.has_ended(&sid) {
                state.begun.push(sid);
                state.sessions.push(update);
            }
        })?;
        self.wake();
        Ok(())
    }

    /// Queues the session update for the end of `run`, which left `reports`.
    ///
    /// For a fatal crash, [`capture`](Self::capture) has usually queued the update already.
    ///
    /// # Errors
    /// An I/O error if the outbox's state or the event can't be written.
    pub fn run_ended(&self, run: &RunFacts, reports: Reports) -> io::Result<()> {
        if self.outbox().is_refused()? {
            return Ok(());
        }
        let update = self.last_update(Some(run), reports);
        if self.is_watchdog_termination(run, reports) {
            let (id, time) = (termination::event_id(run), termination::last_sign(run));
            let mut event = Event::from_watchdog_termination(id, time, run, &self.inner.options.event);
            self.name_user(&mut event);
            return self.keep(event, time.into(), update, |_| Ok(Vec::new())).map(drop);
        }
        let Some(update) = update else { return Ok(()) };
        self.outbox().update(|state| {
            if let Some(update) = join(state, update) {
                state.note_ended(&update.sid());
                state.begun.retain(|begun| *begun != update.sid());
                state.sessions.push(update);
            }
        })?;
        self.wake();
        Ok(())
    }

    /// Whether the end of a run is reported as a separate event; `false` if it was reported before.
    fn is_watchdog_termination(&self, run: &RunFacts, reports: Reports) -> bool {
        // A hang during which the process was killed has its own report.
        let reported = reports.crashes > 0 || (run.lifecycle.hang_since.is_some() && reports.all > 0);
        let wanted = self.inner.options.watchdog_terminations && !reported;
        let current = locked(&self.inner.current);
        wanted
            && current.as_ref().is_some_and(|current| termination::is_watchdog(run, current))
            && !self.outbox().read_state().is_done(&termination::event_id(run).to_string())
    }

    /// Counts reports that were lost earlier because there was no room.
    ///
    /// # Errors
    /// An I/O error if the outbox's state can't be written.
    pub fn count_lost(&self, reports: u64) -> io::Result<()> {
        self.outbox().update(|state| state.discarded.count_many(Reason::CacheOverflow, "error", reports))
    }

    /// Counts reports that were not created because of the rate limit for reports.
    ///
    /// # Errors
    /// An I/O error if the outbox's state can't be written.
    pub fn count_left_out(&self, reports: u64) -> io::Result<()> {
        self.outbox().update(|state| state.discarded.count_many(Reason::QueueOverflow, "error", reports))
    }

    fn last_update(&self, run: Option<&RunFacts>, reports: Reports) -> Option<SessionUpdate> {
        let mode = self.inner.options.sessions;
        let run = run?;
        let update = self.teller()?.ended(run, reports).filter(|update| mode.takes(update))?;
        Some(update.with_init(mode != SessionMode::CrashesOnly || !is_counted_by_client(run)))
    }

    /// Returns the creator of session updates; `None` if sessions are off.
    fn teller(&self) -> Option<SessionTeller> {
        let Options { event, sessions, installation_id, .. } = &self.inner.options;
        if *sessions == SessionMode::Off {
            return None;
        }
        // In crashes-only mode the `sentry` client counts the other runs, without this id: with it,
        // only crashed runs would count as users.
        let counts_all = *installation_id && *sessions != SessionMode::CrashesOnly;
        let installation = counts_all.then(|| self.installation()).flatten();
        Some(SessionTeller { release: event.release.clone(), environment: event.environment.clone(), installation })
    }

    /// Returns this installation's id, creating it if necessary.
    fn installation(&self) -> Option<String> {
        let known = self.outbox().read_state().installation;
        known.or_else(|| {
            let mut new = [0; 16];
            getrandom::fill(&mut new).ok()?;
            // RFC 9562, version 4 and variant 1.
            new[6] = new[6] & 0x0f | 0x40;
            new[8] = new[8] & 0x3f | 0x80;
            let new = || coroner_report::model::Id(new).to_string();
            self.outbox().update(|state| state.installation.get_or_insert_with(new).clone()).ok()
        })
    }

    /// Returns an event's attachments, within the size limit.
    fn attachments(&self, report: &Report, event: &mut Event) -> io::Result<Vec<Attachment>> {
        let options = &self.inner.options;
        let mut attachments = options.attach.as_ref().map(|attach| attach(report)).unwrap_or_default();
        if options.minidump && minidump::is_wanted(report) {
            match minidump::attachment(report, &options.event) {
                Ok(attachment) => attachments.push(attachment),
                Err(error) => log::warn!("coroner: can't create a minidump for event {}: {error}", event.id()),
            }
        }
        let mut too_large = Vec::new();
        for path in &options.attachments {
            let filename = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match attachments::read_file(path, options.max_attachment_bytes) {
                Ok(Some(buffer)) => attachments.push(Attachment { filename, buffer, ..Attachment::default() }),
                Ok(None) => too_large.push(filename),
                Err(error) => log::warn!("coroner: can't read the attachment `{}`: {error}", path.display()),
            }
        }
        let (of_run, left_out) = attachments::from_run(report, event, options.max_attachment_bytes, options.minidump);
        attachments.extend(of_run);
        too_large.extend(left_out);
        // If the attachments alone exceeded the outbox's limit, they would be removed with their
        // event.
        let room = usize::try_from(options.limits.bytes / 2).unwrap_or(usize::MAX);
        let left_out = attachments::limit(&mut attachments, options.max_attachment_bytes.min(room), too_large, event);
        if !left_out.is_empty() {
            self.outbox().update(|state| {
                state.discarded.count_many(Reason::InternalSdkError, "attachment", left_out.len() as u64);
            })?;
        }
        Ok(attachments)
    }

    /// Returns the user's decision; `None` if the user has not decided yet.
    ///
    /// # Errors
    /// An I/O error if the stored decision can't be read.
    pub fn consent(&self) -> io::Result<Option<bool>> {
        self.outbox().consent()
    }

    /// Stores the user's decision. With `true`, queued items are sent; with `false`, all queued
    /// items are removed, and no report of until then is stored any more.
    ///
    /// Reports of after a refusal are not stored, either, unless consent is required: then they
    /// wait for the next decision.
    ///
    /// # Errors
    /// An I/O error if the decision can't be written.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        self.outbox().set_consent(given)?;
        if given {
            self.wake();
            return Ok(());
        }
        self.outbox().clear()
    }

    /// Starts sending in the background, if it isn't already running.
    pub fn wake(&self) {
        self.inner.thread.wake();
    }

    /// Sends what may be sent now and waits for at most `timeout`. Returns `true` if nothing is
    /// left.
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

/// Merges a session's last update with its first, if that was not sent: then `init` is set. Returns
/// `None` if the last update was already sent.
fn join(state: &mut crate::outbox::State, update: SessionUpdate) -> Option<SessionUpdate> {
    let sid = update.sid();
    if state.has_ended(&sid) {
        return None;
    }
    // A first update that was never sent is merged into the last one. It is removed at once, so
    // that no other process of the app sends it in the meantime. If this process is killed before
    // the last update is stored, the session is never counted.
    let unsent = state.sessions.take(update.session_id).is_some();
    let sent = state.begun.contains(&sid) && !unsent;
    if !sent {
        state.begun.retain(|begun| *begun != sid);
    }
    let init = update.init && !sent;
    Some(update.with_init(init))
}

/// Whether the report's crash terminated the run. `false` for a child created by fork, which has
/// its parent's session.
fn is_fatal(report: &Report, run: &RunFacts) -> bool {
    let ended = run.lifecycle.exit == ExitKind::CRASHED || run.lifecycle.crashed_by.is_none();
    let crash = report.crash.as_ref();
    ended
        && crash.is_some_and(|crash| {
            !crash.has(CrashFlag::NotFatal) && !crash.has(CrashFlag::ForkChild) && crash.monitor != Monitor::USER
        })
}

/// Whether an event is in the sample, which is a fraction of all ids.
fn is_sampled(event_id: &str, rate: f64) -> bool {
    let digits = event_id.get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0);
    f64::from(digits) / 4_294_967_296.0 < rate || rate >= 1.0
}

/// Returns an identity for the DSN that doesn't contain its keys.
fn identity(options: &Options) -> String {
    let mut hasher = DefaultHasher::new();
    options.dsn.to_string().hash(&mut hasher);
    format!("{} {:016x}", project(&options.dsn), hasher.finish())
}

#[cfg(test)]
mod tests;
