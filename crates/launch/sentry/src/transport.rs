//! Sends one envelope to a server over HTTPS.

use std::fmt;
use std::io;

use coroner_outbox::HttpClient;

pub use coroner_outbox::{SendError, TransportError, TransportOptions};

use crate::dsn::Dsn;
use crate::event::SDK_NAME;

/// A server's answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The header `X-Sentry-Rate-Limits`.
    pub rate_limits: Option<String>,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// The start of the body, in which servers explain errors.
    pub body: String,
}

impl Answer {
    /// Whether the server accepted the envelope.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status) && !self.is_portal()
    }

    /// Whether something else answers in the server's place, such as a network's login page.
    ///
    /// No server of this protocol redirects or answers `OK` with an HTML page.
    pub fn is_portal(&self) -> bool {
        coroner_outbox::is_portal(self.status, &self.body)
    }

    /// Whether the server is temporarily unavailable, or unreachable from a proxy in front of it.
    ///
    /// The same envelope may be accepted later.
    pub fn is_not_now(&self) -> bool {
        matches!(self.status, 408 | 425 | 502..=504 | 511 | 520..=527 | 530)
    }

    /// Whether the sender was refused rather than the envelope.
    ///
    /// Causes are a disabled key, a missing project, or a proxy that doesn't know the server yet.
    /// They may be corrected later.
    pub fn refuses_access(&self) -> bool {
        matches!(self.status, 401 | 403 | 404)
    }

    /// Whether the server may have accepted the envelope in spite of this answer.
    ///
    /// A proxy in front of it lost the real answer.
    pub fn may_have_arrived(&self) -> bool {
        matches!(self.status, 502 | 504 | 520..=527 | 530)
    }
}

/// Sends envelopes to one server.
pub trait Transport: Send + Sync {
    /// Sends an envelope's bytes and waits for the answer.
    ///
    /// # Errors
    /// [`SendError`] if no answer is received. Any answer, including a refusal, is `Ok`.
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError>;

    /// Like [`send`](Self::send), but calls `leaves` before the envelope's first byte leaves.
    ///
    /// `leaves` may be called again before later bytes. After the first call the envelope may
    /// arrive even if no answer is received.
    ///
    /// `leaves` isn't called if there is no connection. If `leaves` fails (the user has refused in
    /// the meantime), nothing more may be sent.
    ///
    /// # Errors
    /// [`SendError`], as for [`send`](Self::send).
    fn send_noting(&self, envelope: &[u8], leaves: &mut dyn FnMut() -> io::Result<()>) -> Result<Answer, SendError> {
        leaves().map_err(|error| SendError::Offline(error.to_string()))?;
        self.send(envelope)
    }
}

impl<T: Transport + ?Sized> Transport for std::sync::Arc<T> {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        (**self).send(envelope)
    }

    fn send_noting(&self, envelope: &[u8], leaves: &mut dyn FnMut() -> io::Result<()>) -> Result<Answer, SendError> {
        (**self).send_noting(envelope, leaves)
    }
}

/// A transport over HTTP or HTTPS, with `rustls`. Certificates are verified.
pub struct HttpTransport {
    client: HttpClient,
}

/// Returns a project's identity without keys, for messages and for comparison.
pub(crate) fn project(dsn: &Dsn) -> String {
    format!("{}{}{}", dsn.host(), dsn.path(), dsn.project_id())
}

/// Returns the value of `X-Sentry-Auth`.
fn auth(dsn: &Dsn, client: &str) -> String {
    let mut auth = format!("Sentry sentry_version=7, sentry_client={client}, sentry_key={}", dsn.public_key());
    if let Some(secret) = dsn.secret_key() {
        auth.push_str(", sentry_secret=");
        auth.push_str(secret);
    }
    auth
}

impl HttpTransport {
    /// Creates a transport to the project of `dsn`.
    ///
    /// # Errors
    /// [`TransportError`] if the options can't be used.
    pub fn new(dsn: &Dsn, options: &TransportOptions) -> Result<Self, TransportError> {
        let user_agent = format!("{SDK_NAME}/{}", env!("CARGO_PKG_VERSION"));
        let headers = vec![
            ("X-Sentry-Auth".to_owned(), auth(dsn, &user_agent)),
            ("Content-Type".to_owned(), "application/x-sentry-envelope".to_owned()),
        ];
        let url = dsn.envelope_api_url();
        Ok(Self { client: HttpClient::new(url.as_str(), headers, &user_agent, true, options)? })
    }
}

impl Transport for HttpTransport {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        self.send_noting(envelope, &mut || Ok(()))
    }

    fn send_noting(&self, envelope: &[u8], leaves: &mut dyn FnMut() -> io::Result<()>) -> Result<Answer, SendError> {
        let response = self.client.post(envelope, leaves)?;
        let header = |name| response.header(name).map(ToOwned::to_owned);
        Ok(Answer {
            status: response.status,
            rate_limits: header("X-Sentry-Rate-Limits"),
            retry_after: header("Retry-After"),
            body: response.text(),
        })
    }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the headers, which contain the keys.
        out.debug_struct("HttpTransport").field("client", &self.client).finish()
    }
}

#[cfg(test)]
mod tests;
