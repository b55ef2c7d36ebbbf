//! From reports and runs to what is sent: events are made, sampled, shown to the app and kept; a thread sends them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use coroner_report::model::{CrashFlag, Report, RunFacts};
use coroner_report::run_state::ExitKind;
use coroner_report::wire::Monitor;

use crate::client_report::Reason;
use crate::envelope::{Attachment, AttachmentKind, Envelope, Item, item_type};
use crate::event::Event;
use crate::minidump;
use crate::options::Options;
use crate::outbox::{Outbox, Pushed, plain_sid};
use crate::sender::{Round, Sender};
use crate::session::{Reports, SessionMode, SessionTeller, SessionUpdate};
use crate::termination::{self, Conditions};
use crate::transport::{HttpTransport, Transport, TransportError, project};

/// Longest sleep of the sending thread: clocks are set, networks come back.
const MAX_SLEEP: Duration = Duration::from_hours(1);

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
    sender: Sender,
    state: Mutex<Work>,
    changed: Condvar,
    /// What this run is of, once that is known.
    current: Mutex<Option<Conditions>>,
}

/// What the sending thread is at.
#[derive(Debug, Default)]
struct Work {
    running: bool,
    /// How often something was asked for.
    asked: u64,
    /// How much of that had been asked for when the last round began.
    begun: u64,
    /// How much of it the last round that came to its end had seen.
    served: u64,
    /// What the last of them left.
    last: Round,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Values under these locks are valid at every point.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let other = outbox
            .update(|state| {
                let other = !state.dsn.is_empty() && state.dsn != identity;
                if other {
                    // What another server wanted is not this one's.
                    state.rate_limits.clear();
                }
                state.dsn = identity;
                other
            })
            .map_err(OpenError::Outbox)?;
        if other {
            outbox.revive().map_err(OpenError::Outbox)?;
        }
        let sender = Sender::new(outbox.clone(), transport, options.clone());
        let inner = Inner {
            options,
            outbox,
            sender,
            state: Mutex::default(),
            changed: Condvar::new(),
            current: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
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
        if self.outbox().read_state().consent == Some(false) {
            return Ok(Captured::Refused);
        }
        let run = report.run.as_ref().filter(|run| is_fatal(report, run));
        let is_hang = report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::HANG);
        let session = self.last_update(run, Reports { all: 1, crashes: usize::from(!is_hang) });
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
        let _still = self.inner.sender.sessions_still();
        let session = match session {
            Some(update) => self.outbox().update(|state| join(state, update))?,
            None => None,
        };
        if let Some(update) = &session {
            envelope.items.push(Item::json(item_type::SESSION, update));
        }
        let sid = session.as_ref().map(|update| update.sid.as_str());
        let pushed = self.outbox().push(&envelope, sid, SystemTime::now())?;
        if let Some(sid) = sid {
            // From here on the envelope speaks for the session.
            self.outbox().update(|state| {
                state.note_done(&plain_sid(sid));
                state.sessions.take(sid);
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
                state.note_done(&plain_sid(&update.sid));
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
        let Some(update) = self.teller().began(run) else { return Ok(()) };
        self.outbox().update(|state| {
            let refused = state.consent == Some(false);
            if !refused && !state.begun.contains(&update.sid) && !state.is_done(&plain_sid(&update.sid)) {
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
        let update = self.last_update(Some(run), reports);
        if self.is_watchdog_termination(run, reports) {
            let (id, time) = (termination::event_id(run), termination::last_sign(run));
            let event = Event::of_watchdog_termination(&id, time, run, &self.inner.options.event);
            return self.keep(event, update, |_| Ok(Vec::new())).map(drop);
        }
        let Some(update) = update else { return Ok(()) };
        self.outbox().update(|state| {
            if state.consent != Some(false)
                && let Some(update) = join(state, update)
            {
                state.note_done(&plain_sid(&update.sid));
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
            && self.outbox().read_state().consent != Some(false)
            && !self.outbox().read_state().is_done(&termination::event_id(run))
    }

    /// Counts reports that were lost before they came here, for want of room.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn count_lost(&self, reports: u64) -> io::Result<()> {
        self.outbox().update(|state| state.discarded.count_many(Reason::CacheOverflow, "error", reports))
    }

    fn last_update(&self, run: Option<&RunFacts>, reports: Reports) -> Option<SessionUpdate> {
        if self.inner.options.sessions == SessionMode::Off {
            return None;
        }
        self.teller().ended(run?, reports)
    }

    fn teller(&self) -> SessionTeller {
        let event = &self.inner.options.event;
        SessionTeller { release: event.release.clone(), environment: event.environment.clone() }
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
        let mut dropped = Vec::new();
        for path in &options.attachments {
            let filename = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            match read_file(path, options.max_attachment_bytes) {
                Ok(Some(bytes)) => {
                    attachments.push(Attachment { filename, content_type: None, kind: AttachmentKind::File, bytes });
                }
                Ok(None) => dropped.push(filename),
                Err(error) => log::warn!("coroner: attachment `{}` can't be read: {error}", path.display()),
            }
        }
        while attachments.iter().map(|attachment| attachment.bytes.len()).sum::<usize>() > options.max_attachment_bytes
        {
            let largest = attachments.iter().enumerate().max_by_key(|(_, attachment)| attachment.bytes.len());
            let Some(largest) = largest.map(|(place, _)| place) else { break };
            dropped.push(attachments.remove(largest).filename);
        }
        if !dropped.is_empty() {
            log::warn!("coroner: attachments are too large and not sent: {}", dropped.join(", "));
            self.outbox().update(|state| {
                dropped.iter().for_each(|_| state.discarded.count(Reason::InternalSdkError, "attachment"));
            })?;
            let context = event.contexts.entry("coroner").or_insert_with(|| serde_json::json!({ "type": "coroner" }));
            context["attachments_left_out"] = dropped.into();
        }
        Ok(attachments)
    }

    /// What the user said: from `true` on what waits is sent, with `false` all that waits is removed and nothing more is kept.
    ///
    /// # Errors
    /// It can't be noted.
    pub fn set_consent(&self, given: bool) -> io::Result<()> {
        self.outbox().update(|state| state.consent = Some(given))?;
        if given {
            self.wake();
            return Ok(());
        }
        self.outbox().clear()
    }

    /// Starts sending in the background, if it isn't going on.
    pub fn wake(&self) {
        self.ask();
    }

    /// Asks for a round, and says which [`Work::served`] tells that one that began after this call is over.
    fn ask(&self) -> u64 {
        let mut work = locked(&self.inner.state);
        work.asked += 1;
        let asked = work.asked;
        if !work.running {
            let inner = Arc::clone(&self.inner);
            let thread = std::thread::Builder::new().name("coroner-sentry".into());
            match thread.spawn(move || inner.run()) {
                Ok(_) => work.running = true,
                Err(error) => log::warn!("coroner: no thread to send from: {error}"),
            }
        }
        drop(work);
        self.inner.changed.notify_all();
        asked
    }

    /// Sends what may be sent now, and waits for it, at most `timeout`. Says whether nothing is left.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now().checked_add(timeout);
        // A round that is going on may have begun before what is to be flushed came: it is not the one to wait for.
        let asked = self.ask();
        let mut work = locked(&self.inner.state);
        while work.served < asked {
            if !work.running {
                return false;
            }
            let left = deadline.map_or(MAX_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            work = self.inner.changed.wait_timeout(work, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        work.last.left == 0
    }
}

impl Inner {
    /// The sending thread: rounds, and sleeps until the next is due.
    fn run(&self) {
        let mut work = locked(&self.state);
        loop {
            work.begun = work.asked;
            drop(work);
            let round = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.sender.round()));
            // What made a round panic will do so again.
            let round = round.unwrap_or(Round { left: 1, again: None });
            work = locked(&self.state);
            work.served = work.begun;
            work.last = round;
            self.changed.notify_all();
            let Some(again) = round.again else {
                if work.asked > work.begun {
                    continue;
                }
                work.running = false;
                return;
            };
            let until = Instant::now() + again.min(MAX_SLEEP);
            while work.asked == work.begun {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                work = self.changed.wait_timeout(work, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
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

/// The last update of a session with what is known of its first; `None` if that was sent already.
fn join(state: &mut crate::outbox::State, update: SessionUpdate) -> Option<SessionUpdate> {
    if state.is_done(&plain_sid(&update.sid)) {
        return None;
    }
    // A beginning that was never sent goes with the end.
    let sent = state.begun.contains(&update.sid) && state.sessions.unsent(&update.sid).is_none();
    Some(SessionUpdate { init: !sent, ..update })
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

/// The content of a file; `None` if it is larger than `most`. A pipe or a device would have no end, or never begin.
fn read_file(path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    // What is written to it meanwhile counts, too.
    let limit = most as u64;
    io::Read::read_to_end(&mut io::Read::take(std::fs::File::open(path)?, limit.saturating_add(1)), &mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
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
mod tests {
    use super::is_sampled;

    #[test]
    fn sampling_is_by_id() {
        let id = |first: u32| format!("{first:08x}{}", "0".repeat(24));
        assert!(is_sampled(&id(u32::MAX), 1.0) && !is_sampled(&id(0), 0.0));
        assert!(is_sampled(&id(0x3fff_ffff), 0.25) && !is_sampled(&id(0x4000_0000), 0.25));
    }
}
