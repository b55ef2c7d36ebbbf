//! The sink that delivers to Sentry and to servers with the same protocol.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coroner_process::secure_execution::is_secure;
use coroner_sentry::session::Reports;
#[cfg(feature = "sentry-client")]
use coroner_sentry::session::SessionMode;
use coroner_sentry::transport::Transport;
use coroner_sentry::{Captured, Client, Options, ParseDsnError};

use super::{BegunRun, FinishedRun, ProcessOwned, Sink, SinkAnswer, Submission};
use crate::locked::locked;

/// Delivers events and sessions to a Sentry project.
///
/// Each report becomes an event in an outbox (the directory `sentry` in the store), and then counts
/// as delivered. A separate thread sends the event and removes it once the server has accepted it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use coroner::{Config, SentrySink};
///
/// let sink = SentrySink::new("https://key@o1.ingest.example.com/42")?;
/// coroner::install(Config::new("com.example.paint").version("2.1.0").sink(sink))?;
/// # Ok(())
/// # }
/// ```
///
/// [`options`](Self::options) sets sampling, `before_send`, attachments, in-app code, consent,
/// proxies and limits.
#[derive(Clone)]
pub struct SentrySink {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    options: Options,
    outbox: Option<PathBuf>,
    /// The transport that replaces HTTP, if any.
    transport: Option<Arc<dyn Transport>>,
    client: ProcessOwned<Client>,
    /// The user's consent, if it was set before the client was created.
    consent: Option<bool>,
}

impl SentrySink {
    /// Creates a sink for the project with this DSN, `https://KEY@HOST/PROJECT`.
    ///
    /// # Errors
    /// [`ParseDsnError`] if `dsn` is not a valid DSN.
    pub fn new(dsn: &str) -> Result<Self, ParseDsnError> {
        Ok(Self::with_options(Options::new(dsn.parse()?)))
    }

    /// Creates a sink with the DSN in the environment variable `SENTRY_DSN`, if it is set.
    ///
    /// Sentry's SDKs use the same variable. It is ignored in a set-user-ID program, whose caller
    /// must not choose who gets its reports.
    ///
    /// # Errors
    /// [`ParseDsnError`] if the variable is not a valid DSN.
    pub fn from_env() -> Result<Option<Self>, ParseDsnError> {
        let dsn = std::env::var("SENTRY_DSN").ok().filter(|dsn| !dsn.is_empty() && !is_secure());
        dsn.map(|dsn| Self::new(&dsn)).transpose()
    }

    /// Creates a sink with these options.
    pub fn with_options(options: Options) -> Self {
        let inner = Inner { options, outbox: None, transport: None, client: ProcessOwned::default(), consent: None };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Changes the options.
    ///
    /// Call it before passing the sink to [`Config::sink`](crate::Config::sink).
    #[must_use]
    pub fn options(self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut locked(&self.inner).options);
        self
    }

    /// Sets the directory of the outbox. Default: `sentry` in the store.
    #[must_use]
    pub fn outbox(self, directory: impl Into<PathBuf>) -> Self {
        locked(&self.inner).outbox = Some(directory.into());
        self
    }

    /// Sets a transport that replaces HTTP, such as the app's own queue or network library.
    ///
    /// The outbox with its retries and limits is still used.
    #[must_use]
    pub fn transport(self, transport: impl Transport + 'static) -> Self {
        locked(&self.inner).transport = Some(Arc::new(transport));
        self
    }

    /// Sets whether the user consents to sending reports. The choice is stored.
    ///
    /// With [`Options::require_consent`], nothing is sent before `set_consent(true)`.
    /// `set_consent(false)` also deletes waiting events, and what it refused is never sent,
    /// whatever is decided later. With `require_consent`, a later report waits for the next
    /// decision; otherwise it isn't kept.
    ///
    /// # Errors
    /// An I/O error if the choice can't be stored.
    pub fn set_consent(&self, given: bool) -> std::io::Result<()> {
        let (client, is_open) = {
            let mut inner = locked(&self.inner);
            inner.consent = Some(given);
            (inner.client.get(), inner.outbox.is_some())
        };
        match client {
            Some(client) => client.set_consent(given),
            // Create the client here, which stores the consent: the process may end before the
            // delivery thread does.
            None if is_open => self.client().map(drop).map_err(std::io::Error::other),
            // `install` will store the consent.
            None => Ok(()),
        }
    }

    /// Returns the user's decision; `None` if the user has not decided yet.
    ///
    /// Call it after install: before, only [`set_consent`](Self::set_consent) on this sink is
    /// known.
    ///
    /// # Errors
    /// An I/O error if the stored decision can't be read.
    pub fn consent(&self) -> std::io::Result<Option<bool>> {
        let (own, is_open) = {
            let inner = locked(&self.inner);
            (inner.consent, inner.outbox.is_some())
        };
        if is_open { self.client().map_err(std::io::Error::other)?.consent() } else { Ok(own) }
    }

    /// Returns the client, which can be opened once the outbox's directory is known.
    ///
    /// It is opened without holding the lock, for which a child of `fork` would wait forever.
    fn client(&self) -> Result<Client, String> {
        #[cfg_attr(not(feature = "sentry-client"), allow(unused_mut))]
        let mut inner = locked(&self.inner);
        if let Some(client) = inner.client.get() {
            return Ok(client);
        }
        let directory = inner.outbox.clone().ok_or("the outbox has no directory")?;
        #[cfg(feature = "sentry-client")]
        if super::sentry_client::client_has_sessions() && inner.options.sessions == SessionMode::Individual {
            log::info!("coroner: leaving sessions of clean runs to the sentry crate's client");
            inner.options.sessions = SessionMode::CrashesOnly;
        }
        let (options, transport) = (inner.options.clone(), inner.transport.clone());
        drop(inner);
        let client = match transport {
            Some(own) => Client::with_transport(options, &directory, Box::new(own)),
            None => Client::open(options, &directory),
        };
        let client = client.map_err(|error| error.to_string())?;
        let mut inner = locked(&self.inner);
        // Another thread may have been faster.
        if let Some(client) = inner.client.get() {
            return Ok(client);
        }
        if let Some(given) = inner.consent {
            client.set_consent(given).map_err(|error| error.to_string())?;
        }
        inner.client.set(client.clone());
        Ok(client)
    }
}

impl Sink for SentrySink {
    fn name(&self) -> &'static str {
        "sentry"
    }

    fn follows_runs(&self) -> bool {
        true
    }

    fn opened(&self, store: &Path) {
        let consent = {
            let mut inner = locked(&self.inner);
            inner.outbox.get_or_insert_with(|| store.join("sentry"));
            inner.consent
        };
        if let Some(Err(error)) = consent.map(|_| self.client()) {
            log::warn!("coroner: the Sentry sink can't store the user's consent: {error}");
        }
    }

    fn run_began(&self, run: &BegunRun<'_>) {
        locked(&self.inner).outbox.get_or_insert_with(|| run.store.join("sentry"));
        let noted = self.client().and_then(|client| {
            client.run_began(run.facts).map_err(|error| error.to_string())?;
            // Send an earlier run's events in the outbox.
            client.wake();
            Ok(())
        });
        if let Err(error) = noted {
            log::warn!("coroner: can't start the Sentry sink: {error}");
        }
    }

    fn run_ended(&self, run: &FinishedRun<'_>) {
        let reports = Reports { all: run.reports, crashes: run.crashes };
        let noted =
            self.client().and_then(|client| client.run_ended(run.facts, reports).map_err(|error| error.to_string()));
        if let Err(error) = noted {
            log::warn!("coroner: can't send the session of run {}: {error}", run.run);
        }
    }

    // Without names, if the app's launches are too short to find them.
    fn store_early(&self, submission: &Submission<'_>) -> bool {
        submission.launches >= Submission::SHORT_LAUNCHES && self.deliver(submission) == SinkAnswer::Delivered
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        let captured = self.client().and_then(|client| {
            client.capture(submission.report).map_err(|error| format!("can't write to the outbox: {error}"))
        });
        match captured {
            Ok(Captured::Kept | Captured::Known) => SinkAnswer::Delivered,
            Ok(Captured::Sampled) => SinkAnswer::Rejected { reason: "not sampled".into() },
            Ok(Captured::Dropped) => SinkAnswer::Rejected { reason: "dropped by the before_send hook".into() },
            Ok(Captured::Refused) => SinkAnswer::Rejected { reason: "consent not given".into() },
            Err(reason) => SinkAnswer::Retry { after: Duration::ZERO, reason },
        }
    }

    fn reports_evicted(&self, reports: usize) {
        let noted =
            self.client().and_then(|client| client.count_lost(reports as u64).map_err(|error| error.to_string()));
        if let Err(error) = noted {
            log::warn!("coroner: can't count {reports} removed reports: {error}");
        }
    }

    fn feedback(&self, feedback: &crate::Feedback) -> bool {
        let converted = feedback.into();
        let taken = self.client().and_then(|client| client.feedback(&converted).map_err(|error| error.to_string()));
        taken.unwrap_or_else(|error| {
            log::warn!("coroner: can't store feedback: {error}");
            false
        })
    }

    fn reports_left_out(&self, reports: u64) {
        let noted = self.client().and_then(|client| client.count_left_out(reports).map_err(|error| error.to_string()));
        if let Err(error) = noted {
            log::warn!("coroner: can't count {reports} dropped reports: {error}");
        }
    }

    fn flush(&self, timeout: Duration) -> bool {
        if locked(&self.inner).outbox.is_none() {
            return true;
        }
        // What waits in an outbox that can't be opened is not sent.
        self.client().is_ok_and(|client| client.flush(timeout))
    }
}

impl std::fmt::Debug for SentrySink {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = locked(&self.inner);
        out.debug_struct("SentrySink").field("options", &inner.options).field("outbox", &inner.outbox).finish()
    }
}
