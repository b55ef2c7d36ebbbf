//! From reports to what is sent: records are made and kept, and a thread sends them.

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

/// Delivers to one server: keeps what it is given in an outbox on the disk, and sends it from a thread of its own.
///
/// It may be cloned; all clones are one.
#[derive(Clone)]
pub struct Client {
    sender: Arc<Sender>,
    thread: Arc<SendingThread>,
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
    /// Its record is kept and will be sent.
    Kept,
    /// It has come before.
    Known,
    /// The user does not agree.
    Refused,
}

impl Client {
    /// A client with its outbox in `directory`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(options: Options, directory: &Path) -> Result<Self, OpenError> {
        let client = exporter::client(&options).map_err(OpenError::Transport)?;
        let outbox = Outbox::open(directory, "otlp").map_err(OpenError::Outbox)?;
        let server = identity(&options);
        let is_other = |state: &State| !state.server.is_empty() && state.server != server;
        if is_other(&outbox.read_state()) {
            // Before the note: a process that is killed between the two does it again.
            outbox.revive().map_err(OpenError::Outbox)?;
        }
        let note = |state: &mut State| {
            if is_other(state) {
                // What another server wanted is not this one's.
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

    /// Its outbox.
    pub fn outbox(&self) -> &Outbox {
        &self.sender.outbox
    }

    /// Takes a report: makes its record and keeps it to be sent.
    ///
    /// # Errors
    /// It can't be kept (the disk is full). It may come again: a record that is kept or was sent already is known by its id.
    pub fn capture(&self, report: &Report) -> io::Result<Captured> {
        if self.outbox().is_refused()? {
            return Ok(Captured::Refused);
        }
        let state: State = self.outbox().read_state();
        let event_id = report.event_id().to_string();
        if state.done.contains(&event_id) {
            return Ok(Captured::Known);
        }
        let message = request(report, &self.sender.options.labels).encode_to_vec();
        let pushed = self.outbox().push(&event_id, "", &message, SystemTime::now())?;
        self.wake();
        Ok(match pushed {
            Pushed::Added => Captured::Kept,
            Pushed::Known => Captured::Known,
            Pushed::Refused => Captured::Refused,
        })
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
        self.thread.wake();
    }

    /// Sends what may be sent now, and waits for it, at most `timeout`. Says whether nothing is left.
    pub fn flush(&self, timeout: Duration) -> bool {
        self.thread.flush(timeout)
    }
}

/// What distinguishes one server from another without saying its keys.
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
