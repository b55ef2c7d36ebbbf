//! The sink that delivers by OTLP to an OpenTelemetry Collector or another server for log records.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coroner_otlp::{Captured, Client, EnvironmentError, Options};

use super::{BegunRun, OfProcess, Sink, SinkAnswer, Submission};
use crate::locked::locked;

/// Delivers crashes, hangs and handled exceptions as OpenTelemetry log records.
///
/// Each report becomes a record, which is kept in an outbox (the directory `otlp` in the store)
/// until the server has accepted it; a separate thread sends it. A report therefore counts as
/// delivered once its record is in the outbox.
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
    client: OfProcess<Client>,
    /// The user's consent that was set before there was a client.
    consent: Option<bool>,
}

impl OtlpSink {
    /// Creates a sink that delivers to the server at `endpoint`, such as `http://localhost:4318`.
    ///
    /// Records go to `v1/logs` below it.
    pub fn new(endpoint: &str) -> Self {
        Self::with_options(Options::new(endpoint))
    }

    /// Creates a sink with the server in OpenTelemetry's environment variables, if they name one.
    ///
    /// These are `OTEL_EXPORTER_OTLP_ENDPOINT` and the others of [`Options::from_env`], as in
    /// OpenTelemetry's SDKs.
    ///
    /// # Errors
    /// [`EnvironmentError`] if a variable asks for something unsupported, such as a protocol other
    /// than `http/protobuf`.
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        Ok(Options::from_env()?.map(Self::with_options))
    }

    /// Creates a sink with these options.
    pub fn with_options(options: Options) -> Self {
        let inner = Inner { options, outbox: None, client: OfProcess::default(), consent: None };
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

    /// Records the user's consent, for this launch and later ones.
    ///
    /// With [`Options::require_consent`], nothing is sent before a `true`. After a `false`, nothing
    /// is kept either, and waiting events are removed.
    ///
    /// # Errors
    /// An I/O error if the consent can't be recorded.
    pub fn set_consent(&self, given: bool) -> std::io::Result<()> {
        let (client, is_open) = {
            let mut inner = locked(&self.inner);
            inner.consent = Some(given);
            (inner.client.get(), inner.outbox.is_some())
        };
        match client {
            Some(client) => client.set_consent(given),
            // The process may end before the delivery thread creates a client, which records the
            // consent.
            None if is_open => self.client().map(drop).map_err(std::io::Error::other),
            // `install` will record the consent.
            None => Ok(()),
        }
    }

    /// Returns the client, which can be opened once the outbox's directory is known.
    ///
    /// It is opened without the lock: a child of `fork` would wait for the lock forever.
    fn client(&self) -> Result<Client, String> {
        let inner = locked(&self.inner);
        if let Some(client) = inner.client.get() {
            return Ok(client);
        }
        let directory = inner.outbox.clone().ok_or("there is no directory for the outbox")?;
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

    // For the outbox: its contents from an earlier run are sent even if this run has nothing to
    // deliver.
    fn follows_runs(&self) -> bool {
        true
    }

    fn opened(&self, store: &Path) {
        let said = {
            let mut inner = locked(&self.inner);
            inner.outbox.get_or_insert_with(|| store.join("otlp"));
            inner.consent
        };
        if let Some(Err(error)) = said.map(|_| self.client()) {
            log::warn!("coroner: what the user said can't be noted by the OTLP sink: {error}");
        }
    }

    fn run_began(&self, run: &BegunRun<'_>) {
        locked(&self.inner).outbox.get_or_insert_with(|| run.store.join("otlp"));
        match self.client() {
            Ok(client) => client.wake(),
            Err(error) => log::warn!("coroner: the OTLP sink can't begin: {error}"),
        }
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        let captured = self.client().and_then(|client| {
            client.capture(submission.report).map_err(|error| format!("can't write to the outbox: {error}"))
        });
        match captured {
            Ok(Captured::Kept | Captured::Known) => SinkAnswer::Delivered,
            Ok(Captured::Refused) => SinkAnswer::Rejected { reason: "the user does not agree".into() },
            Err(reason) => SinkAnswer::Retry { after: Duration::ZERO, reason },
        }
    }

    fn flush(&self, timeout: Duration) -> bool {
        let client = locked(&self.inner).client.get();
        client.is_none_or(|client| client.flush(timeout))
    }
}

impl std::fmt::Debug for OtlpSink {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = locked(&self.inner);
        out.debug_struct("OtlpSink").field("options", &inner.options).field("outbox", &inner.outbox).finish()
    }
}
