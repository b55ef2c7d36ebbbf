//! The client: turns reports into queued log records; a background thread sends them.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use coroner_outbox::{Outbox, Pushed, SendingThread, TransportError};
use coroner_report::model::Report;
use prost::Message;

use crate::exporter;
use crate::options::Options;
use crate::record::request;
use crate::sender::{Sender, State};

/// Delivers reports to one server from a background thread.
///
/// Records are stored in an on-disk outbox until they are sent.
///
/// Clones share the same state.
#[derive(Clone)]
pub struct Client {
    sender: Arc<Sender>,
    thread: Arc<SendingThread>,
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
    /// Dropped because the user has refused consent.
    Refused,
}

impl Client {
    /// Opens a client with its outbox in `directory`.
    ///
    /// # Errors
    /// [`OpenError`] if the outbox can't be opened or the transport's options can't be used.
    pub fn open(options: Options, directory: &Path) -> Result<Self, OpenError> {
        let client = exporter::client(&options).map_err(OpenError::Transport)?;
        let outbox = Outbox::open(directory, "otlp").map_err(OpenError::Outbox)?;
        let server = identity(&options);
        let is_other = |state: &State| !state.server.is_empty() && state.server != server;
        if is_other(&outbox.read_state()) {
            // Revive the entries before storing the new identity: if the process is killed in
            // between, the next run repeats both steps.
            outbox.revive().map_err(OpenError::Outbox)?;
        }
        let note = |state: &mut State| {
            if is_other(state) {
                // A wait for another server doesn't apply to this one.
                state.not_before = 0;
            }
            state.server.clone_from(&server);
        };
        outbox.update(note).map_err(OpenError::Outbox)?;
        let sender = Arc::new(Sender { outbox, client, options });
        let rounds = Arc::clone(&sender);
        let thread = Arc::new(SendingThread::new("coroner-otlp", move || rounds.round()));
        Ok(Self { sender, thread })
    }

    /// Returns the client's outbox.
    pub fn outbox(&self) -> &Outbox {
        &self.sender.outbox
    }

    /// Captures a report: creates its log record and queues it.
    ///
    /// # Errors
    /// An I/O error if the record can't be stored, for example because the disk is full. The report
    /// may be captured again: a record that is queued or already sent is recognised by its id.
    pub fn capture(&self, report: &Report) -> io::Result<Captured> {
        let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time).into();
        let is_declined = || self.outbox().is_declined(time, self.sender.options.require_consent);
        if is_declined()? {
            return Ok(Captured::Refused);
        }
        let state: State = self.outbox().read_state();
        let event_id = report.event_id().to_string();
        if state.done.contains(&event_id) {
            return Ok(Captured::Known);
        }
        let message = request(report, &self.sender.options.labels).encode_to_vec();
        let pushed = self.outbox().push_unless(&event_id, "", &message, SystemTime::now(), is_declined)?;
        self.wake();
        Ok(match pushed {
            Pushed::Added => Captured::Kept,
            Pushed::Known => Captured::Known,
            Pushed::Refused => Captured::Refused,
        })
    }

    /// Returns the user's decision; `None` if the user has not decided yet.
    ///
    /// # Errors
    /// An I/O error if the stored decision can't be read.
    pub fn consent(&self) -> io::Result<Option<bool>> {
        self.outbox().consent()
    }

    /// Stores the user's decision. With `true`, queued records are sent; with `false`, all queued
    /// records are removed, and no report of until then is stored any more.
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
        self.thread.wake();
    }

    /// Sends what may be sent now and waits for at most `timeout`. Returns `true` if nothing is
    /// left.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.thread.flush(timeout)
    }
}

/// Returns an identity for the server that doesn't contain its keys.
fn identity(options: &Options) -> String {
    let mut hasher = DefaultHasher::new();
    (&options.logs_url, &options.headers).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

impl fmt::Debug for Client {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (options, outbox) = (&self.sender.options, self.sender.outbox.path());
        out.debug_struct("Client").field("options", options).field("outbox", &outbox).finish()
    }
}
