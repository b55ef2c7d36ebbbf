//! Sends one report at a time without an outbox, for interactive commands.

use coroner_outbox::{HttpClient, SendError, TransportError};
use coroner_report::model::Report;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use prost::Message;

use crate::options::Options;
use crate::record::request;

/// Sends log records immediately and returns the server's answer.
pub struct Exporter {
    client: HttpClient,
    options: Options,
}

/// A server's answer to a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The header `Retry-After`, if any.
    pub retry_after: Option<String>,
    /// Whether the server accepted the record: a status of 200 to 299, and no record rejected.
    pub is_taken: bool,
    /// The server's message; empty if none.
    pub message: String,
}

impl Exporter {
    /// Creates an exporter to the server in `options`. Consent, limits and retry options are
    /// ignored.
    ///
    /// # Errors
    /// [`TransportError`] if the options can't be used.
    pub fn new(options: Options) -> Result<Self, TransportError> {
        Ok(Self { client: client(&options)?, options })
    }

    /// Sends a report's log record and waits for the answer. The record contains only names already
    /// in the report; symbolicate the report first.
    ///
    /// # Errors
    /// [`SendError`] if no answer is received.
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
            // A server's error is a binary `google.rpc.Status`, which isn't readable; a proxy's is
            // text.
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

/// Creates the HTTP client for `options`.
pub(crate) fn client(options: &Options) -> Result<HttpClient, TransportError> {
    let user_agent = concat!("coroner-otlp/", env!("CARGO_PKG_VERSION"));
    let mut headers = vec![("Content-Type".to_owned(), "application/x-protobuf".to_owned())];
    headers.extend(options.headers.iter().cloned());
    HttpClient::new(&options.logs_url, headers, user_agent, options.gzip, &options.transport)
}
