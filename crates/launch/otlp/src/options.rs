//! Options for delivery over OTLP.

use std::fmt;
use std::time::Duration;

use coroner_outbox::{OutboxLimits, TransportOptions};

/// Information about the app that is added to log records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// `service.name`; overrides the app's identifier.
    pub service_name: Option<String>,
    /// `deployment.environment.name`; overrides the report's environment.
    pub environment: Option<String>,
    /// Additional resource attributes. They override the report's, except for `service.version`,
    /// `service.instance.id` and `process.pid`, which describe the crashed run if the report
    /// contains them.
    pub resource: Vec<(String, String)>,
    /// Whether to leave out the stacks of all threads except the one that the report is about.
    /// Default: no.
    pub only_reported_thread: bool,
}

/// Delivery options. Only the URL has no default.
#[derive(Clone)]
pub struct Options {
    /// The URL that accepts log records, such as `http://localhost:4318/v1/logs`.
    pub logs_url: String,
    /// Headers sent with each request, such as an API key.
    pub headers: Vec<(String, String)>,
    /// Information about the app that is added to log records.
    pub labels: Labels,
    /// Whether to compress requests. Default: yes; each server of the protocol accepts compressed
    /// requests.
    pub gzip: bool,
    /// Whether nothing is sent until the user has agreed. Default: no.
    pub require_consent: bool,
    /// Connection settings.
    pub transport: TransportOptions,
    /// Limits on what is queued.
    pub limits: OutboxLimits,
    /// Number of failed attempts over which the wait doubles. Default: 6.
    ///
    /// With the default, no wait is longer than eight hours.
    pub tries: u32,
    /// Wait after the first failed attempt, unless the server specifies one. Default: 15 minutes.
    ///
    /// The wait doubles with each further failure.
    ///
    /// Queued records are retried at once after the server has accepted another one.
    pub retry_after: Duration,
}

impl Options {
    /// Returns the default options for the server at `endpoint`, such as `http://localhost:4318`;
    /// `/v1/logs` is appended for log records.
    pub fn new(endpoint: &str) -> Self {
        Self::with_logs_url(format!("{}/v1/logs", endpoint.trim_end_matches('/')))
    }

    /// Returns the default options for a URL that is used as it is.
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

    /// Adds a header to each request.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the URL and the headers' values: they may contain keys.
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
