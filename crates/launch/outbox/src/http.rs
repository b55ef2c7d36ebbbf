//! One message to a server, over HTTPS.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use crate::connection::Connection;
use crate::response::Response;
use crate::url::Url;
use crate::waits::MAX_WAIT;
use crate::{no_proxy, tls};

/// How a server is reached.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// A proxy, such as `http://user:password@proxy.example.com:3128`. Without one, that of the environment is used:
    /// `HTTPS_PROXY` for a server with TLS, `http_proxy` for one without, else `ALL_PROXY`; none for hosts of `NO_PROXY`
    /// (names with all that is below them, addresses, networks such as `10.0.0.0/8`, `*`). It is asked
    /// for a connection (CONNECT) to a server with TLS, and gets the requests themselves for one without.
    pub proxy: Option<String>,
    /// A file of certificates (PEM) of the authorities to trust, and of no others: for servers with a certificate of a company's own.
    /// Without one, those that the system trusts (on Linux those of OpenSSL, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`); Mozilla's
    /// where it has none that can be read.
    pub ca_file: Option<PathBuf>,
    /// How long connecting may take. Default: 10 s.
    pub connect_timeout: Duration,
    /// How long one message may take in all. Default: 30 s.
    pub timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self { proxy: None, ca_file: None, connect_timeout: Duration::from_secs(10), timeout: Duration::from_secs(30) }
    }
}

/// Why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There was no connection to the server, and nothing of the message left this machine: no network, no name service, nobody who
    /// listens, a proxy that is gone, wants a user or lets nothing through, a certificate that is not trusted (a portal's, or a clock
    /// that is wrong), a server that does not finish the handshake.
    #[error("no connection: {0}")]
    Offline(String),
    /// The connection was lost, or the server did not answer in time, or answered what is not HTTP.
    #[error("{0}")]
    Network(String),
}

/// A client can't be made of its options.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The address is no URL of a server.
    #[error("the address `{0}` is no URL of a server")]
    Url(String),
    /// A header can't be sent. Its value, which may be a secret, is not said.
    #[error("the header `{0}` can't be sent")]
    Header(String),
    /// The proxy is no URL of one that speaks HTTP.
    #[error("the proxy `{0}` is no URL of one that speaks HTTP")]
    Proxy(String),
    /// The file of certificates can't be read, or holds none.
    #[error("no certificates can be read from `{}`: {}", .0.display(), .1)]
    Certificates(PathBuf, io::Error),
}

/// A client of one server, with `rustls`. Certificates are verified.
pub struct HttpClient {
    url: Url,
    proxy: Option<Url>,
    /// What is trusted instead of what the system trusts.
    certificates: Option<Vec<CertificateDer<'static>>>,
    /// Made when something is sent first: reading the system's certificates takes milliseconds, which a launch has not.
    tls: OnceLock<Result<Arc<ClientConfig>, rustls::Error>>,
    connect_timeout: Duration,
    timeout: Duration,
    headers: Vec<(String, String)>,
    user_agent: String,
    gzip: bool,
}

impl HttpClient {
    /// A client that posts to `url`, with these headers, what may be compressed.
    ///
    /// # Errors
    /// [`TransportError`] where address, headers or options can't be used.
    pub fn new(
        url: &str,
        headers: Vec<(String, String)>,
        user_agent: &str,
        gzip: bool,
        options: &TransportOptions,
    ) -> Result<Self, TransportError> {
        let url = Url::parse(url).ok_or_else(|| TransportError::Url(without_user(url)))?;
        for (name, value) in &headers {
            if !is_header(name, value) {
                return Err(TransportError::Header(name.escape_default().to_string()));
            }
        }
        let proxy = match &options.proxy {
            Some(proxy) => Some(proxy_at(proxy).ok_or_else(|| TransportError::Proxy(without_user(proxy)))?),
            None => proxy_of_environment(&url, |name| std::env::var(name).ok()),
        };
        let certificates = options.ca_file.as_ref().map(|path| {
            tls::read_certificates(path).map_err(|error| TransportError::Certificates(path.clone(), error))
        });
        Ok(Self {
            url,
            proxy,
            certificates: certificates.transpose()?,
            tls: OnceLock::new(),
            connect_timeout: options.connect_timeout,
            timeout: options.timeout,
            headers,
            user_agent: user_agent.to_owned(),
            gzip,
        })
    }

    /// Posts a message, and waits for the answer. `leaves` is called before each piece of it leaves this machine: from the first on it may
    /// arrive though no answer comes. Not called where there is no connection. After an error of `leaves` nothing more leaves.
    ///
    /// # Errors
    /// [`SendError`] where there is no answer; any answer, also one that refuses, is no error.
    pub fn post(&self, message: &[u8], leaves: &mut dyn FnMut() -> io::Result<()>) -> Result<Response, SendError> {
        let now = Instant::now();
        let compressed = self.gzip.then(|| compress(message)).transpose();
        let compressed =
            compressed.map_err(|error| SendError::Network(format!("the message can't be compressed: {error}")))?;
        let body = compressed.as_deref().unwrap_or(message);
        // A longer one is none.
        let timeout = self.timeout.min(MAX_WAIT);
        let connection = self.connect(now + self.connect_timeout.min(timeout));
        let connection = connection.map_err(|error| SendError::Offline(error.to_string()))?;
        leaves().map_err(|error| SendError::Offline(error.to_string()))?;

        // A proxy that the request itself goes to.
        let forward = self.proxy.as_ref().filter(|_| !self.url.is_https);
        let length = body.len().to_string();
        let mut headers = vec![("Host", self.url.authority.as_str())];
        headers.extend(self.headers.iter().map(|(name, value)| (&name[..], &value[..])));
        headers.extend(self.gzip.then_some(("Content-Encoding", "gzip")));
        headers.extend([("Content-Length", length.as_str()), ("User-Agent", self.user_agent.as_str())]);
        let authorization = |url: &'_ Url| url.authorization.clone();
        let (own, proxys) = (authorization(&self.url), forward.and_then(authorization));
        let has_own = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("Authorization"));
        headers.extend(own.as_deref().filter(|_| !has_own).map(|value| ("Authorization", value)));
        headers.extend(proxys.as_deref().map(|value| ("Proxy-Authorization", value)));
        let Url { authority, target, .. } = &self.url;
        let target = if forward.is_some() { format!("http://{authority}{target}") } else { target.clone() };

        let answer = connection.post(&target, &headers, body, leaves, now + timeout);
        let answer = answer.map_err(|error| SendError::Network(error.to_string()))?;
        match answer.status {
            // The proxy's own: it wants a user, and has passed nothing on.
            407 if forward.is_some() => Err(SendError::Offline("the proxy answers 407".to_owned())),
            // It has no server, or has lost it.
            502 | 504 if forward.is_some() => Err(SendError::Network(format!("the proxy answers {}", answer.status))),
            _ => Ok(answer),
        }
    }

    /// To the server, or to a proxy that the request itself goes to.
    fn connect(&self, deadline: Instant) -> io::Result<Connection> {
        let needs_tls = self.url.is_https || self.proxy.as_ref().is_some_and(|proxy| proxy.is_https);
        let tls = needs_tls.then(|| self.tls.get_or_init(|| tls::config(self.certificates.as_deref())).as_ref());
        let tls = tls.transpose().map_err(|error| io::Error::other(error.clone()))?;
        let Some(proxy) = &self.proxy else { return Connection::open(&self.url, tls, deadline) };
        let connection = Connection::open(proxy, tls, deadline);
        let connection = connection.map_err(|error| io::Error::new(error.kind(), format!("the proxy: {error}")))?;
        if self.url.is_https { connection.through(proxy, &self.url, &self.user_agent, tls) } else { Ok(connection) }
    }
}

/// Whether it can be sent: a line end in one would begin another (RFC 9110, 5.6.2 and 5.5).
fn is_header(name: &str, value: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_text = |byte: u8| byte == b'\t' || (b' '..=b'~').contains(&byte);
    !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(is_text)
}

fn compress(message: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(message)?;
    encoder.finish()
}

/// A URL without what may be a password in it, to be shown.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// The proxy that the environment names for a server with TLS or without, in curl's way: `HTTP_PROXY` in capitals is not asked, since a web
/// server sets it from a request's header `Proxy`.
fn proxy_of_environment(server: &Url, variable: impl Fn(&str) -> Option<String>) -> Option<Url> {
    let names: &[&str] = if server.is_https {
        &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
    } else {
        &["http_proxy", "all_proxy", "ALL_PROXY"]
    };
    let url = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))?;
    let except = variable("no_proxy").or_else(|| variable("NO_PROXY")).unwrap_or_default();
    if no_proxy::is_listed(&except, &server.host) {
        return None;
    }
    let proxy = proxy_at(&url);
    if proxy.is_none() {
        log::warn!("coroner: the environment's proxy is no URL of one");
    }
    proxy
}

/// A proxy's URL, which may go without `http://`.
fn proxy_at(url: &str) -> Option<Url> {
    if url.contains("://") { Url::parse(url) } else { Url::parse(&format!("http://{url}")) }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the headers, which hold keys.
        out.debug_struct("HttpClient").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
