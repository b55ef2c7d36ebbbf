//! The sink that delivers by OTLP, to an OpenTelemetry Collector or whoever takes log records.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use coroner_otlp::{Captured, Client, EnvironmentError, Options};

use super::{BegunRun, OfProcess, Sink, SinkAnswer, Submission};
use crate::locked::locked;

/// Delivers crashes, hangs and handled exceptions as OpenTelemetry log records.
///
/// Each report becomes a record, which is kept in an outbox (the directory `otlp` in the store) until the server has it; a
/// thread of its own sends. So a report counts as delivered when its record is in the outbox.
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
    /// What the user said before there was a client.
    consent: Option<bool>,
}

impl OtlpSink {
    /// Delivers to the server at `endpoint`, such as `http://localhost:4318`: records go to `v1/logs` below it.
    pub fn new(endpoint: &str) -> Self {
        Self::with_options(Options::new(endpoint))
    }

    /// Delivers to the server that the environment's variables name (`OTEL_EXPORTER_OTLP_ENDPOINT` and the like, as
    /// [`Options::from_env`] has them), as OpenTelemetry's SDKs do; `None` if they name none.
    ///
    /// # Errors
    /// A variable asks for what can't be, such as another protocol than `http/protobuf`.
    pub fn from_env() -> Result<Option<Self>, EnvironmentError> {
        Ok(Options::from_env()?.map(Self::with_options))
    }

    /// Delivers as `options` say.
    pub fn with_options(options: Options) -> Self {
        let inner = Inner { options, outbox: None, client: OfProcess::default(), consent: None };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Changes the options, before the sink is given to [`Config::sink`](crate::Config::sink).
    #[must_use]
    pub fn options(self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut locked(&self.inner).options);
        self
    }

    /// The directory of the outbox, instead of `otlp` in the store.
    #[must_use]
    pub fn outbox(self, directory: impl Into<PathBuf>) -> Self {
        locked(&self.inner).outbox = Some(directory.into());
        self
    }

    /// What the user said. With [`Options::require_consent`] nothing leaves before a `true`; with a `false`, here and at later
    /// launches, nothing is kept either, and what waits is removed. It is remembered.
    ///
    /// # Errors
    /// It could not be noted.
    pub fn set_consent(&self, given: bool) -> std::io::Result<()> {
        let (client, is_open) = {
            let mut inner = locked(&self.inner);
            inner.consent = Some(given);
            (inner.client.get(), inner.outbox.is_some())
        };
        match client {
            Some(client) => client.set_consent(given),
            // The process may end before the delivery thread makes one, which notes it.
            None if is_open => self.client().map(drop).map_err(std::io::Error::other),
            // `install` will.
            None => Ok(()),
        }
    }

    /// The client, once the outbox's place is known. It is opened without the lock: a child of `fork` would wait for that for ever.
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

    // For the outbox: what an earlier run left in it is sent though this one has nothing to deliver.
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
