//! One report at a time, without an outbox: what a command does that a person waits for.

use coroner_outbox::{HttpClient, SendError, TransportError};
use coroner_report::model::Report;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message;

use crate::options::Options;
use crate::record::request;

/// Sends log records at once and says what the server answered.
pub struct Exporter {
    client: HttpClient,
    options: Options,
}

/// What a server said of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The header `Retry-After`, where there is one.
    pub retry_after: Option<String>,
    /// Whether the server took it: a status of 200 to 299, and no record rejected.
    pub is_taken: bool,
    /// What the server said of it; empty if nothing.
    pub message: String,
}

impl Exporter {
    /// An exporter to the server that `options` name. Of those, consent, limits and tries are not used.
    ///
    /// # Errors
    /// [`TransportError`] if the server can't be reached as the options want it.
    pub fn new(options: Options) -> Result<Self, TransportError> {
        Ok(Self { client: client(&options)?, options })
    }

    /// Sends a report's log record, and waits for the answer. What names the report has are in it; symbolicate it before.
    ///
    /// # Errors
    /// [`SendError`] if there is no answer.
    pub fn send(&self, report: &Report) -> Result<Answer, SendError> {
        let message = request(report, &self.options.labels).encode_to_vec();
        let response = self.client.post(&message, &mut || Ok(()))?;
        let (mut is_taken, mut message) = (matches!(response.status, 200..=299), String::new());
        if is_taken {
            let answer = ExportLogsServiceResponse::decode(&response.body[..]).unwrap_or_default();
            let partial = answer.partial_success.unwrap_or_default();
            is_taken = partial.rejected_log_records <= 0;
            message = partial.error_message;
        } else if !response.header("Content-Type").is_some_and(|kind| kind.contains("protobuf")) {
            // An error's message is a `google.rpc.Status`, which a person can't read; a proxy's is text.
            message = response.text();
        }
        message.retain(|character| !character.is_control());
        let retry_after = response.header("Retry-After").map(ToOwned::to_owned);
        Ok(Answer { status: response.status, retry_after, is_taken, message })
    }
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Exporter").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The HTTP client of `options`.
pub(crate) fn client(options: &Options) -> Result<HttpClient, TransportError> {
    let user_agent = concat!("coroner-otlp/", env!("CARGO_PKG_VERSION"));
    let mut headers = vec![("Content-Type".to_owned(), "application/x-protobuf".to_owned())];
    headers.extend(options.headers.iter().cloned());
    HttpClient::new(&options.logs_url, headers, user_agent, options.gzip, &options.transport)
}
