//! One envelope to a server, over HTTPS.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use sentry_types::Dsn;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use crate::event::SDK_NAME;

/// Most bytes of an answer's body that are read; it is there for a person's eyes only.
const MAX_BODY: u64 = 16 << 10;

/// How a server is reached.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// A proxy, such as `http://user:password@proxy.example.com:3128`. Without one, those of the environment are used
    /// (`HTTPS_PROXY`, `ALL_PROXY` and so on).
    pub proxy: Option<String>,
    /// A file of certificates (PEM) of the authorities to trust, instead of Mozilla's: for servers with a certificate of a
    /// company's own.
    pub ca_file: Option<PathBuf>,
    /// How long connecting may take. Default: 10 s.
    pub connect_timeout: Duration,
    /// How long one envelope may take in all. Default: 30 s.
    pub timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self { proxy: None, ca_file: None, connect_timeout: Duration::from_secs(10), timeout: Duration::from_secs(30) }
    }
}

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
        (200..300).contains(&self.status)
    }
}

/// Why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There was no connection to the server, and the envelope did not leave this machine: no network, no name service, nobody who
    /// listens, a proxy that is gone, a certificate that is not trusted (a portal's, or a clock that is wrong).
    #[error("no connection: {0}")]
    Offline(String),
    /// The connection was lost, or the server did not answer in time, or answered what is not HTTP.
    #[error("{0}")]
    Network(String),
}

/// A transport can't be made of its options.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The proxy is no URL of one.
    #[error("the proxy can't be used: {0}")]
    Proxy(String),
    /// The file of certificates can't be read, or holds none.
    #[error("no certificates can be read from `{}`: {}", .0.display(), .1)]
    Certificates(PathBuf, io::Error),
}

/// Takes envelopes to one server.
pub trait Transport: Send + Sync {
    /// Sends the bytes of one envelope, and waits for the answer.
    ///
    /// # Errors
    /// [`SendError`] where there is none; any answer, also one that refuses, is no error.
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError>;
}

/// HTTP(S), by `ureq` and `rustls`. Certificates are verified.
pub struct HttpTransport {
    agent: ureq::Agent,
    url: String,
    auth: String,
}

/// The identity of a server's project, for messages and to tell one from another: never with the secret.
pub(crate) fn project(dsn: &Dsn) -> String {
    format!("{}{}{}", dsn.host(), dsn.path(), dsn.project_id().value())
}

fn client() -> String {
    format!("{SDK_NAME}/{}", env!("CARGO_PKG_VERSION"))
}

impl HttpTransport {
    /// A transport to the project of `dsn`.
    ///
    /// # Errors
    /// [`TransportError`] where the options can't be used.
    pub fn new(dsn: &Dsn, options: &TransportOptions) -> Result<Self, TransportError> {
        let proxy = match &options.proxy {
            Some(url) => Some(ureq::Proxy::new(url).map_err(|error| TransportError::Proxy(error.to_string()))?),
            None => ureq::Proxy::try_from_env(),
        };
        let mut tls = TlsConfig::builder();
        if let Some(path) = &options.ca_file {
            let certificates =
                read_certificates(path).map_err(|error| TransportError::Certificates(path.clone(), error))?;
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let config = ureq::Agent::config_builder()
            .proxy(proxy)
            .tls_config(tls.build())
            .timeout_connect(Some(options.connect_timeout))
            .timeout_global(Some(options.timeout))
            // An answer that refuses is one to be read.
            .http_status_as_error(false)
            // Crash data goes where the DSN says and nowhere else.
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Envelopes are rare; a connection kept open is one that the server has closed meanwhile.
            .max_idle_connections(0)
            .user_agent(client())
            .build();
        let mut auth = format!("Sentry sentry_version=7, sentry_client={}, sentry_key={}", client(), dsn.public_key());
        if let Some(secret) = dsn.secret_key() {
            auth.push_str(", sentry_secret=");
            auth.push_str(secret);
        }
        Ok(Self { agent: config.into(), url: dsn.envelope_api_url().to_string(), auth })
    }
}

fn read_certificates(path: &Path) -> io::Result<Vec<Certificate<'static>>> {
    let bytes = std::fs::read(path)?;
    let mut certificates = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        if let PemItem::Certificate(certificate) = item.map_err(io::Error::other)? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there is no certificate in it"));
    }
    Ok(certificates)
}

impl Transport for HttpTransport {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let body = encoder.write_all(envelope).and_then(|()| encoder.finish());
        let body = body.map_err(|error| SendError::Network(format!("the envelope can't be compressed: {error}")))?;
        let request = self
            .agent
            .post(&self.url)
            .header("X-Sentry-Auth", &self.auth)
            .header("Content-Type", "application/x-sentry-envelope")
            .header("Content-Encoding", "gzip")
            .send(&body[..]);
        let mut response = request.map_err(|error| classify(&error))?;
        let header =
            |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
        let (rate_limits, retry_after) = (header("X-Sentry-Rate-Limits"), header("Retry-After"));
        let status = response.status().as_u16();
        // The status decides. A body that can't be read to its end changes nothing.
        let mut text = Vec::new();
        let mut reader = io::Read::take(response.body_mut().as_reader(), MAX_BODY);
        let _ = io::Read::read_to_end(&mut reader, &mut text);
        let body = String::from_utf8_lossy(&text).trim().to_owned();
        Ok(Answer { status, rate_limits, retry_after, body })
    }
}

fn classify(error: &ureq::Error) -> SendError {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, InvalidData, NetworkDown, NetworkUnreachable,
    };
    let offline = match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::ConnectProxyFailed(_) => true,
        // Before a request is written there is the handshake.
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) => true,
        ureq::Error::Timeout(ureq::Timeout::Resolve | ureq::Timeout::Connect) => true,
        ureq::Error::Io(error) => match error.kind() {
            AddrNotAvailable | ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable => true,
            // rustls's, of a handshake.
            InvalidData => true,
            // The standard library has no kind for a name that can't be resolved (`lookup_host`).
            _ => error.to_string().starts_with("failed to lookup address information"),
        },
        _ => false,
    };
    let why = error.to_string();
    if offline { SendError::Offline(why) } else { SendError::Network(why) }
}

impl fmt::Debug for HttpTransport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not `auth`, which holds the keys.
        out.debug_struct("HttpTransport").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let dsn: Dsn = "https://public:verysecret@o1.ingest.example.com/prefix/42".parse().unwrap();
        let transport = HttpTransport::new(&dsn, &TransportOptions::default()).unwrap();
        assert!(transport.auth.contains("sentry_key=public") && transport.auth.contains("sentry_secret=verysecret"));
        assert!(!transport.auth.contains("timestamp"));
        assert_eq!(transport.url, "https://o1.ingest.example.com/prefix/api/42/envelope/");
        let shown = format!("{transport:?} {}", project(&dsn));
        assert!(!shown.contains("secret") && !shown.contains("public"), "{shown}");
        let proxy = TransportOptions { proxy: Some("sock://me:hunter2@".into()), ..TransportOptions::default() };
        let error = HttpTransport::new(&dsn, &proxy).unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn without_a_connection_nothing_was_sent() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // RFC 6761 keeps this name from ever being one.
        for host in ["no-such-host.invalid".to_owned(), nobody.to_string()] {
            let dsn: Dsn = format!("http://public@{host}/42").parse().unwrap();
            let transport = HttpTransport::new(&dsn, &TransportOptions::default()).unwrap();
            let error = transport.send(b"{}").unwrap_err();
            assert!(matches!(error, SendError::Offline(_)), "{host}: {error:?}");
        }
    }

    #[test]
    fn a_file_without_certificates_says_so() {
        let dsn: Dsn = "https://public@example.com/42".parse().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "not a certificate").unwrap();
        for path in [file.path(), Path::new("/nonexistent/ca.pem")] {
            let options = TransportOptions { ca_file: Some(path.to_owned()), ..TransportOptions::default() };
            let error = HttpTransport::new(&dsn, &options).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
