//! What an app decides about delivery by OTLP.

use std::fmt;
use std::time::Duration;

use coroner_outbox::{OutboxLimits, TransportOptions};

/// What records say of the app beside what their reports say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// `service.name`, instead of the app's identifier.
    pub service_name: Option<String>,
    /// `deployment.environment.name`, instead of the environment that the report says.
    pub environment: Option<String>,
    /// More attributes of the resource. They stand before what the report says, but for `service.version`, `service.instance.id` and
    /// `process.pid`, which are those of the run that crashed where the report has them.
    pub resource: Vec<(String, String)>,
    /// Whether the stacks of threads that the report is not about are left out. Default: no.
    pub only_reported_thread: bool,
}

/// What an app decides. Only the address has no default.
#[derive(Clone)]
pub struct Options {
    /// The address that takes log records, such as `http://localhost:4318/v1/logs`.
    pub logs_url: String,
    /// Headers that go with each request, such as a key of an API.
    pub headers: Vec<(String, String)>,
    /// What records say of the app.
    pub labels: Labels,
    /// Whether requests are compressed. Default: yes; each server of the protocol takes them.
    pub gzip: bool,
    /// Whether nothing is sent before the user has agreed. Default: no.
    pub require_consent: bool,
    /// How the server is reached.
    pub transport: TransportOptions,
    /// How much may wait.
    pub limits: OutboxLimits,
    /// How many tries that fail have a growing wait behind them. Default: 6, so that no wait is longer than eight hours.
    pub tries: u32,
    /// How long until the first try after one that failed, where the server does not say; it doubles with each. What waits is tried at once
    /// when the server has taken something else. Default: 15 minutes.
    pub retry_after: Duration,
}

impl Options {
    /// The defaults, for the server at `endpoint`, such as `http://localhost:4318`: log records go to `v1/logs` below it.
    pub fn new(endpoint: &str) -> Self {
        Self::with_logs_url(format!("{}/v1/logs", endpoint.trim_end_matches('/')))
    }

    /// The defaults, for an address that is used as it is.
    pub fn with_logs_url(logs_url: impl Into<String>) -> Self {
        Self {
            logs_url: logs_url.into(),
            headers: Vec::new(),
            labels: Labels::default(),
            gzip: true,
            require_consent: false,
            transport: TransportOptions::default(),
            limits: OutboxLimits::default(),
            tries: 6,
            retry_after: Duration::from_mins(15),
        }
    }

    /// One more header that goes with each request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither address nor headers' values: they may hold keys.
        let headers: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        out.debug_struct("Options")
            .field("headers", &headers)
            .field("labels", &self.labels)
            .field("gzip", &self.gzip)
            .field("require_consent", &self.require_consent)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
