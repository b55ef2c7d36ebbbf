//! One envelope to a server, over HTTPS.

use std::fmt;
use std::io;

use coroner_outbox::HttpClient;

pub use coroner_outbox::{SendError, TransportError, TransportOptions};

use crate::dsn::Dsn;
use crate::event::SDK_NAME;

/// What a server answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `X-Sentry-Rate-Limits`.
    pub rate_limits: Option<String>,
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// The beginning of the body, in which servers say what was wrong.
    pub body: String,
}

impl Answer {
    /// Whether the server has the envelope.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status) && !self.is_portal()
    }

    /// Whether something else answers in the server's place, as the page of a network in which one has to log in: no server of this protocol
    /// redirects, or says `OK` by a page of HTML.
    pub fn is_portal(&self) -> bool {
        coroner_outbox::is_portal(self.status, &self.body)
    }

    /// Whether the server can't take anything now, or can't be reached by what stands before it: another time the same may be taken.
    pub fn is_not_now(&self) -> bool {
        matches!(self.status, 408 | 425 | 502..=504 | 511 | 520..=527 | 530)
    }

    /// Whether what is refused is who asks, and not what was sent: a key that is disabled, a project that is not there, a proxy that does not know the
    /// server yet. That may be set right.
    pub fn refuses_access(&self) -> bool {
        matches!(self.status, 401 | 403 | 404)
    }

    /// Whether of such an answer the server itself may have taken what it was sent: what stands before it lost its answer.
    pub fn may_have_arrived(&self) -> bool {
        matches!(self.status, 502 | 504 | 520..=527 | 530)
    }
}

/// Takes envelopes to one server.
pub trait Transport: Send + Sync {
    /// Sends the bytes of one envelope, and waits for the answer.
    ///
    /// # Errors
    /// [`SendError`] where there is none; any answer, also one that refuses, is no error.
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError>;

    /// The same, and calls `leaves` before the first byte of the envelope leaves this machine, and perhaps before later ones: from there on
    /// it may arrive though no answer comes. Not called where there is no connection. After an error of `leaves` (the user has refused
    /// meanwhile) nothing more is to leave.
    ///
    /// # Errors
    /// Those of [`send`](Self::send).
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

/// HTTP(S), with `rustls`. Certificates are verified.
pub struct HttpTransport {
    client: HttpClient,
}

/// The identity of a server's project, for messages and to tell one from another: never with the secret.
pub(crate) fn project(dsn: &Dsn) -> String {
    format!("{}{}{}", dsn.host(), dsn.path(), dsn.project_id())
}

/// `X-Sentry-Auth`.
fn auth(dsn: &Dsn, client: &str) -> String {
    let mut auth = format!("Sentry sentry_version=7, sentry_client={client}, sentry_key={}", dsn.public_key());
    if let Some(secret) = dsn.secret_key() {
        auth.push_str(", sentry_secret=");
        auth.push_str(secret);
    }
    auth
}

impl HttpTransport {
    /// A transport to the project of `dsn`.
    ///
    /// # Errors
    /// [`TransportError`] where the options can't be used.
    pub fn new(dsn: &Dsn, options: &TransportOptions) -> Result<Self, TransportError> {
        let user_agent = format!("{SDK_NAME}/{}", env!("CARGO_PKG_VERSION"));
        let headers = vec![
            ("X-Sentry-Auth".to_owned(), auth(dsn, &user_agent)),
            ("Content-Type".to_owned(), "application/x-sentry-envelope".to_owned()),
        ];
        let url = dsn.envelope_url();
        Ok(Self { client: HttpClient::new(&url, headers, &user_agent, true, options)? })
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
        // Not the headers, which hold the keys.
        out.debug_struct("HttpTransport").field("client", &self.client).finish()
    }
}

#[cfg(test)]
mod tests;
