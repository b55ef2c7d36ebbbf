//! Options for delivery to a server.

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

/// Called with each event before it is queued; may change the event, or return `None` to drop it.
pub type BeforeSend = dyn Fn(Event) -> Option<Event> + Send + Sync;
/// Returns additional attachments for a report's event.
pub type Attach = dyn Fn(&Report) -> Vec<Attachment> + Send + Sync;

/// Delivery options. Only the DSN has no default.
#[derive(Clone)]
pub struct Options {
    /// The server's project and its key.
    pub dsn: Dsn,
    /// Options for creating events from reports.
    pub event: EventOptions,
    /// The fraction of events that are sent, from 0 to 1. Default: 1.
    ///
    /// The decision depends only on the event's id, so an event that is captured again gets the
    /// same decision.
    pub sample_rate: f64,
    /// Called with each event before it is queued.
    pub before_send: Option<Arc<BeforeSend>>,
    /// Files attached to each event, read at the launch after the crash. A file that can't be read
    /// is left out.
    pub attachments: Vec<PathBuf>,
    /// Returns additional attachments for a report's event, such as a minidump created from the
    /// report.
    pub attach: Option<Arc<Attach>>,
    /// Whether to attach a minidump to events for crashes. Default: no.
    ///
    /// It is created from the report; on Windows, it is the one that the system wrote of the crash.
    /// A crash is a signal, a Windows or a Mach exception without an underlying language exception.
    ///
    /// A server takes the threads and the exception from the minidump instead of the event, and
    /// unwinds the stacks again with the debug files it has: see
    /// [`coroner_formats::minidump_writer`] for what a minidump can convey. Its memory may contain
    /// text that users typed.
    pub minidump: bool,
    /// Maximum total size of an event's attachments, in bytes. Default: 20 MiB.
    ///
    /// The largest are left out until the rest fits.
    pub max_attachment_bytes: usize,
    /// The mode of sending sessions. Default: individually.
    pub sessions: SessionMode,
    /// Whether a run that ended without a trace is reported as an event. Default: no.
    ///
    /// The event's mechanism is [`WATCHDOG_TERMINATION`].
    ///
    /// The system may have killed such a run for using too much memory or for not responding. A
    /// user who sends SIGKILL causes the same traces.
    ///
    /// A run is not reported if it was in the background or had a debugger attached, if the app or
    /// the system was updated since, or if the device was restarted: those terminations need no
    /// explanation.
    ///
    /// [`WATCHDOG_TERMINATION`]: crate::event::WATCHDOG_TERMINATION
    pub watchdog_terminations: bool,
    /// Whether to report counts of discarded items. Default: yes.
    pub client_reports: bool,
    /// Whether nothing is sent until the user has agreed. Default: no.
    pub require_consent: bool,
    /// Connection settings.
    pub transport: TransportOptions,
    /// Limits on what is queued.
    pub limits: OutboxLimits,
    /// Whether sessions, and events of an app that sets no user, carry a random id of this
    /// installation. Default: yes.
    ///
    /// Servers use the id to count affected and crash-free users.
    ///
    /// The id is stored in the outbox and replaced after the user has refused consent. Without it,
    /// sessions carry the user's id if the app has set one.
    pub installation_id: bool,
    /// Number of failed attempts over which the wait doubles. Default: 6.
    ///
    /// With the default, no wait is longer than eight hours. After this number of attempts, an
    /// event is given up if the server fails on it (other than by being unavailable) or denies
    /// access.
    pub tries: u32,
    /// Wait after the first failed attempt; it doubles with each further failure. Default: 15
    /// minutes.
    ///
    /// Queued items are retried at once after the server has accepted something else.
    pub retry_after: Duration,
    /// Pause between two envelopes. Default: 100 ms.
    pub pause: Duration,
}

impl Options {
    /// Returns the default options for the project of `dsn`.
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
        // Leave out the DSN itself: it contains keys.
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
