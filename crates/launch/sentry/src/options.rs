//! What an app decides about delivery to a server.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use coroner_report::model::Report;

use crate::dsn::Dsn;
use crate::envelope::Attachment;
use crate::event::{Event, EventOptions};
use crate::outbox::OutboxLimits;
use crate::session::SessionMode;
use crate::transport::{TransportOptions, project};

/// Sees each event before it is kept to be sent: changes it, or drops it with `None`.
pub type BeforeSend = dyn Fn(Event) -> Option<Event> + Send + Sync;
/// Gives what is to go with the event of a report.
pub type Attach = dyn Fn(&Report) -> Vec<Attachment> + Send + Sync;

/// What an app decides. Only the DSN has no default.
#[derive(Clone)]
pub struct Options {
    /// The server's project and the key to it.
    pub dsn: Dsn,
    /// How events are made.
    pub event: EventOptions,
    /// How many of all events are sent, from 0 to 1. Which ones is decided by their ids, so an event that comes again is decided
    /// in the same way. Default: 1.
    pub sample_rate: f64,
    /// Sees each event.
    pub before_send: Option<Arc<BeforeSend>>,
    /// Files that go with each event, read at the launch after the crash. One that can't be read is left out.
    pub attachments: Vec<PathBuf>,
    /// Gives what else goes with the event of a report: a minidump made of it, for example.
    pub attach: Option<Arc<Attach>>,
    /// Whether a minidump, made of the report, goes with the event of a signal or a Mach exception that no exception of a language
    /// is behind. Default: no.
    ///
    /// A server takes threads and exception out of it and not out of the event, and unwinds the stacks once more, with the debug
    /// files that it has: see [`coroner_formats::minidump_writer`] for what it can know from it. The memory in it may hold what users typed.
    pub minidump: bool,
    /// Most bytes of attachments that go with an event; those beyond are left out, largest first. Default: 20 MiB.
    pub max_attachment_bytes: usize,
    /// How sessions are sent. Default: each by itself.
    pub sessions: SessionMode,
    /// Whether a run that ended without a trace is reported as an event, of mechanism [`WATCHDOG_TERMINATION`]: the system may have ended
    /// it for using too much memory, or for not answering. Default: no, because a user who ends a program by SIGKILL looks the same.
    ///
    /// It is not reported of a run that was in the background or had a debugger attached, nor where since then the app or the system
    /// is another or the device was started anew: those ends need no explanation.
    ///
    /// [`WATCHDOG_TERMINATION`]: crate::event::WATCHDOG_TERMINATION
    pub watchdog_terminations: bool,
    /// Whether counts of what was not sent are reported. Default: yes.
    pub client_reports: bool,
    /// Whether nothing is sent before the user has agreed. Default: no.
    pub require_consent: bool,
    /// How the server is reached.
    pub transport: TransportOptions,
    /// How much may wait.
    pub limits: OutboxLimits,
    /// Whether the sessions of one installation of the app have a common random id, which is kept in the outbox, by which a server counts
    /// users and those without a crash. It is made anew after the user has not agreed. Without it they have the user's id, where
    /// the app says one. Default: yes.
    pub installation_id: bool,
    /// How many tries that fail have a growing wait behind them. Default: 6, so that no wait is longer than eight hours.
    pub tries: u32,
    /// How long until the first try after one that failed; it doubles with each. What waits is tried at once when the server has
    /// taken something else. Default: 15 minutes.
    pub retry_after: Duration,
    /// How long to wait between one envelope and the next. Default: 100 ms.
    pub pause: Duration,
}

impl Options {
    /// The defaults, for the project of `dsn`.
    pub fn new(dsn: Dsn) -> Self {
        Self {
            dsn,
            event: EventOptions::default(),
            sample_rate: 1.0,
            before_send: None,
            attachments: Vec::new(),
            attach: None,
            minidump: false,
            max_attachment_bytes: 20 << 20,
            sessions: SessionMode::default(),
            watchdog_terminations: false,
            client_reports: true,
            require_consent: false,
            installation_id: true,
            transport: TransportOptions::default(),
            limits: OutboxLimits::default(),
            tries: 6,
            retry_after: Duration::from_mins(15),
            pause: Duration::from_millis(100),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the DSN itself: its keys are nobody's business.
        out.debug_struct("Options")
            .field("project", &project(&self.dsn))
            .field("event", &self.event)
            .field("sample_rate", &self.sample_rate)
            .field("sessions", &self.sessions)
            .field("minidump", &self.minidump)
            .field("watchdog_terminations", &self.watchdog_terminations)
            .field("require_consent", &self.require_consent)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
