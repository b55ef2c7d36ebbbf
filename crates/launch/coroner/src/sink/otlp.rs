//! The sink that delivers over OTLP to an OpenTelemetry Collector or another server for log
//! records.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coroner_otlp::{Captured, Client, EnvironmentError, Options};

use super::{BegunRun, ProcessOwned, Sink, SinkAnswer, Submission};
use crate::locked::locked;

/// Delivers crashes, hangs and handled exceptions as OpenTelemetry log records.
///
/// Each report becomes a record in an outbox (the directory `otlp` in the store), and then counts
/// as delivered. A separate thread sends the record and removes it once the server has accepted it.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use coroner::{Config, OtlpSink};
///
/// let sink = OtlpSink::new("http://localhost:4318");
/// coroner::install(Config::new("com.example.paint").version("2.1.0").sink(sink))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct OtlpSink {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    options: Options,
    outbox: Option<PathBuf>,
    client: ProcessOwned<Client>,
    /// The user's consent, if it was set before the client was created.
    consent: Option<bool>,
}

impl OtlpSink {
    /// Creates a sink for the server at `endpoint`, such as `http://localhost:4318`.
    ///
    /// Records go to `v1/logs` below it.
    pub fn new(endpoint: &str) -> Self {
        Self::with_options(Options::new(endpoint))
    }

    /// Creates a sink for the server in OpenTelemetry's environment variables, if they name one.
    ///
    /// These are `OTEL_EXPORTER_OTLP_ENDPOINT` and the others of [`Options::from_env`], as in
    /// OpenTelemetry's SDKs.
    ///
    /// # Errors
    /// [`EnvironmentError`] if a variable selects something unsupported, such as a protocol other
    /// than `http/protobuf`.
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        Ok(Options::from_env()?.map(Self::with_options))
    }

    /// Creates a sink with these options.
    pub fn with_options(options: Options) -> Self {
        let inner = Inner { options, outbox: None, client: ProcessOwned::default(), consent: None };
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

    /// Sets the directory of the outbox. Default: `otlp` in the store.
    #[must_use]
    pub fn outbox(self, directory: impl Into<PathBuf>) -> Self {
        locked(&self.inner).outbox = Some(directory.into());
        self
    }

    /// Sets whether the user consents to sending reports. The choice is stored.
    ///
    /// With [`Options::require_consent`], nothing is sent before `set_consent(true)`.
    /// `set_consent(false)` also deletes waiting records, and what it refused is never sent,
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
        let inner = locked(&self.inner);
        if let Some(client) = inner.client.get() {
            return Ok(client);
        }
        let directory = inner.outbox.clone().ok_or("the outbox has no directory")?;
        let options = inner.options.clone();
        drop(inner);
        let client = Client::open(options, &directory).map_err(|error| error.to_string())?;
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

impl Sink for OtlpSink {
    fn name(&self) -> &'static str {
        "otlp"
    }

    // Earlier runs' records in the outbox are sent even if this run has nothing to deliver.
    fn follows_runs(&self) -> bool {
        true
    }

    fn opened(&self, store: &Path) {
        let consent = {
            let mut inner = locked(&self.inner);
            inner.outbox.get_or_insert_with(|| store.join("otlp"));
            inner.consent
        };
        if let Some(Err(error)) = consent.map(|_| self.client()) {
            log::warn!("coroner: the OTLP sink can't store the user's consent: {error}");
        }
    }

    fn run_began(&self, run: &BegunRun<'_>) {
        locked(&self.inner).outbox.get_or_insert_with(|| run.store.join("otlp"));
        match self.client() {
            Ok(client) => client.wake(),
            Err(error) => log::warn!("coroner: can't start the OTLP sink: {error}"),
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
            Ok(Captured::Refused) => SinkAnswer::Rejected { reason: "consent not given".into() },
            Err(reason) => SinkAnswer::Retry { after: Duration::ZERO, reason },
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

impl std::fmt::Debug for OtlpSink {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = locked(&self.inner);
        out.debug_struct("OtlpSink").field("options", &inner.options).field("outbox", &inner.outbox).finish()
    }
}
