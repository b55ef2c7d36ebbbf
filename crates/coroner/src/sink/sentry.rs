//! The sink that delivers to Sentry, and to servers that speak its protocol.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coroner_sentry::session::Reports;
use coroner_sentry::{Captured, Client, Options, ParseDsnError};

use super::{BegunRun, Delivery, FinishedRun, Sink, Submission};

/// Delivers events and sessions to a Sentry project.
///
/// Each report becomes an event, which is kept in an outbox (the directory `sentry` in the store) until the server has it; a
/// thread of its own sends. So a report counts as delivered when its event is in the outbox.
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
/// [`options`](Self::options) takes everything else: sampling, `before_send`, attachments, what is the app's own code, consent,
/// proxies, limits.
#[derive(Clone)]
pub struct SentrySink {
    inner: Arc<Mutex<Inner>>,
}

struct Inner {
    options: Options,
    outbox: Option<PathBuf>,
    client: Option<Client>,
    /// What the user said before there was a client.
    consent: Option<bool>,
}

impl SentrySink {
    /// Delivers to the project of `dsn`: `https://KEY@HOST/PROJECT`.
    ///
    /// # Errors
    /// It is no DSN.
    pub fn new(dsn: &str) -> Result<Self, ParseDsnError> {
        Ok(Self::with_options(Options::new(dsn.parse()?)))
    }

    /// Delivers as `options` say.
    pub fn with_options(options: Options) -> Self {
        Self { inner: Arc::new(Mutex::new(Inner { options, outbox: None, client: None, consent: None })) }
    }

    /// Changes the options, before the sink is given to [`Config::sink`](crate::Config::sink).
    #[must_use]
    pub fn options(self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.locked().options);
        self
    }

    /// The directory of the outbox, instead of `sentry` in the store.
    #[must_use]
    pub fn outbox(self, directory: impl Into<PathBuf>) -> Self {
        self.locked().outbox = Some(directory.into());
        self
    }

    /// What the user said. With [`Options::require_consent`] nothing leaves before a `true`; with a `false`, here and at later
    /// launches, nothing is kept either, and what waits is removed. It is remembered.
    ///
    /// # Errors
    /// It could not be noted.
    pub fn set_consent(&self, given: bool) -> std::io::Result<()> {
        let client = {
            let mut inner = self.locked();
            inner.consent = Some(given);
            inner.client.clone()
        };
        client.map_or(Ok(()), |client| client.set_consent(given))
    }

    fn locked(&self) -> MutexGuard<'_, Inner> {
        // The fields are set one by one and each is valid at all times.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client, once the outbox's place is known.
    fn client(&self) -> Result<Client, String> {
        let mut inner = self.locked();
        if let Some(client) = &inner.client {
            return Ok(client.clone());
        }
        let directory = inner.outbox.clone().ok_or("there is no directory for the outbox")?;
        let client = Client::open(inner.options.clone(), &directory).map_err(|error| error.to_string())?;
        if let Some(given) = inner.consent {
            client.set_consent(given).map_err(|error| error.to_string())?;
        }
        inner.client = Some(client.clone());
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

    fn run_began(&self, run: &BegunRun<'_>) {
        self.locked().outbox.get_or_insert_with(|| run.store.join("sentry"));
        let noted = self.client().and_then(|client| {
            client.run_began(run.facts).map_err(|error| error.to_string())?;
            // What an earlier run left in the outbox.
            client.wake();
            Ok(())
        });
        if let Err(error) = noted {
            log::warn!("coroner: the sentry sink can't begin: {error}");
        }
    }

    fn run_ended(&self, run: &FinishedRun<'_>) {
        let reports = Reports { all: run.reports, crashes: run.crashes };
        let noted =
            self.client().and_then(|client| client.run_ended(run.facts, reports).map_err(|error| error.to_string()));
        if let Err(error) = noted {
            log::warn!("coroner: the session of run {} can't be sent: {error}", run.run);
        }
    }

    fn deliver(&self, submission: &Submission<'_>) -> Delivery {
        let captured = self.client().and_then(|client| {
            client.capture(submission.report).map_err(|error| format!("can't write to the outbox: {error}"))
        });
        match captured {
            Ok(Captured::Kept | Captured::Known) => Delivery::Delivered,
            Ok(Captured::Sampled) => Delivery::Rejected { reason: "it is not among the sampled".into() },
            Ok(Captured::Dropped) => Delivery::Rejected { reason: "the before_send hook dropped it".into() },
            Ok(Captured::Refused) => Delivery::Rejected { reason: "the user does not agree".into() },
            Err(reason) => Delivery::Retry { after: Duration::ZERO, reason },
        }
    }

    fn reports_evicted(&self, reports: usize) {
        let noted =
            self.client().and_then(|client| client.count_lost(reports as u64).map_err(|error| error.to_string()));
        if let Err(error) = noted {
            log::warn!("coroner: {reports} reports that were removed could not be counted: {error}");
        }
    }

    fn flush(&self, timeout: Duration) -> bool {
        let client = self.locked().client.clone();
        client.is_none_or(|client| client.flush(timeout))
    }
}

impl std::fmt::Debug for SentrySink {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let inner = self.locked();
        out.debug_struct("SentrySink").field("options", &inner.options).field("outbox", &inner.outbox).finish()
    }
}
