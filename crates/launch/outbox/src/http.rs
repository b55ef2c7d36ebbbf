//! Sends one message to a server over HTTP or HTTPS.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use coroner_process::secure_execution::is_secure;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use crate::connection::Connection;
use crate::response::Response;
use crate::url::Url;
use crate::waits::MAX_WAIT;
use crate::{no_proxy, tls};

/// Connection settings for a server.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// A proxy, such as `http://user:password@proxy.example.com:3128`. Default: the environment's
    /// proxy.
    ///
    /// The environment's proxy is `HTTPS_PROXY` for a server with TLS, `http_proxy` for one
    /// without, else `ALL_PROXY`; none for hosts in `NO_PROXY` (names including their subdomains,
    /// addresses, networks such as `10.0.0.0/8`, `*`). The proxy is asked for a connection
    /// (CONNECT) to a server with TLS, and forwards the requests to one without.
    pub proxy: Option<String>,
    /// A PEM file with the only certificate authorities to trust. Default: the system's
    /// authorities.
    ///
    /// Use it for servers with a company's own certificate.
    ///
    /// On Linux these are OpenSSL's, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`. If the system
    /// has none that can be read, Mozilla's list is used.
    pub ca_file: Option<PathBuf>,
    /// Timeout for connecting. Default: 10 s.
    pub connect_timeout: Duration,
    /// Time without progress after which sending is given up. Default: 30 s.
    ///
    /// This is the time for each 64 KiB of a message, so that a large one may take long on a slow
    /// uplink, and then for the answer. A proxy, or this machine, may still hold a part of a large
    /// message then: for each 16 KiB of it, the answer may take a second longer.
    pub timeout: Duration,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self { proxy: None, ca_file: None, connect_timeout: Duration::from_secs(10), timeout: Duration::from_secs(30) }
    }
}

/// The reason why there was no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There was no connection to the server, and nothing of the message left this machine.
    ///
    /// Causes: no network, no name service, no listener; a proxy that is down, requires a login or
    /// refuses the connection; a certificate that is not trusted (because of a login page or a
    /// wrong clock); a server that doesn't finish the handshake.
    #[error("no connection: {0}")]
    Offline(String),
    /// The connection was lost, the server did not answer in time, or the answer was not HTTP.
    #[error("{0}")]
    Network(String),
}

/// An error from creating a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Invalid server URL.
    #[error("invalid server URL `{0}`")]
    Url(String),
    /// Invalid header. Contains only its name, because the value may be a secret.
    #[error("invalid header `{0}`")]
    Header(String),
    /// Invalid URL of an HTTP proxy.
    #[error("invalid URL `{0}` of an HTTP proxy")]
    Proxy(String),
    /// The certificate file can't be read or contains no certificates.
    #[error("can't read certificates from `{}`: {}", .0.display(), .1)]
    Certificates(PathBuf, io::Error),
}

/// A client for one server, with `rustls`. Certificates are verified.
pub struct HttpClient {
    url: Url,
    proxy: Option<Url>,
    /// Certificate authorities that replace those of the system.
    certificates: Option<Vec<CertificateDer<'static>>>,
    /// The TLS configuration, created on first use.
    ///
    /// Reading the system's certificates takes milliseconds, which is too long for an app's launch.
    tls: OnceLock<Result<Arc<ClientConfig>, rustls::Error>>,
    connect_timeout: Duration,
    timeout: Duration,
    /// The request's headers but those that depend on the message.
    headers: HeaderMap,
    user_agent: String,
    gzip: bool,
}

impl HttpClient {
    /// Creates a client that posts to `url` with these headers. `gzip` allows compression.
    ///
    /// # Errors
    /// [`TransportError`] if the URL, a header or an option can't be used.
    pub fn new(
        url: &str,
        headers: Vec<(String, String)>,
        user_agent: &str,
        gzip: bool,
        options: &TransportOptions,
    ) -> Result<Self, TransportError> {
        let url = Url::parse(url).ok_or_else(|| TransportError::Url(without_user(url)))?;
        let name_of = |name: &str| TransportError::Header(name.escape_default().to_string());
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let value = HeaderValue::try_from(value).map_err(|_| name_of(&name))?;
            all.append(HeaderName::try_from(&name).map_err(|_| name_of(&name))?, value);
        }
        let own =
            [(HOST, Some(url.authority())), (USER_AGENT, Some(user_agent)), (CONTENT_ENCODING, gzip.then_some("gzip"))];
        let authorization = url.authorization();
        for (name, value) in own.into_iter().chain([(AUTHORIZATION, authorization.as_deref())]) {
            if let Some(value) = value {
                let value = HeaderValue::try_from(value).map_err(|_| name_of(name.as_str()))?;
                all.entry(name).or_insert(value);
            }
        }
        let proxy = match &options.proxy {
            Some(proxy) => Some(proxy_at(proxy).ok_or_else(|| TransportError::Proxy(without_user(proxy)))?),
            None => proxy_of_environment(&url, |name| std::env::var(name).ok().filter(|_| !is_secure())),
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
            headers: all,
            user_agent: user_agent.to_owned(),
            gzip,
        })
    }

    /// Posts a message and waits for the answer.
    ///
    /// `leaves` is called before each piece of the message leaves this machine: after the first
    /// call the message may arrive even if no answer is received. `leaves` isn't called if there is
    /// no connection. After an error of `leaves`, nothing more is sent.
    ///
    /// # Errors
    /// [`SendError`] if no answer is received. Any answer, including a refusal, is `Ok`.
    pub fn post(&self, message: &[u8], leaves: &mut dyn FnMut() -> io::Result<()>) -> Result<Response, SendError> {
        let compressed = self.gzip.then(|| compress(message)).transpose();
        let compressed =
            compressed.map_err(|error| SendError::Network(format!("can't compress the message: {error}")))?;
        let body = compressed.as_deref().unwrap_or(message);
        // A longer timeout would overflow or is a mistake.
        let timeout = self.timeout.min(MAX_WAIT);
        let connection = self.connect(Instant::now() + self.connect_timeout.min(timeout));
        let connection = connection.map_err(|error| SendError::Offline(error.to_string()))?;
        leaves().map_err(|error| SendError::Offline(error.to_string()))?;

        // A proxy that forwards the request.
        let forward = self.proxy.as_ref().filter(|_| !self.url.is_https());
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_LENGTH, body.len().into());
        let authorization = forward.and_then(Url::authorization).and_then(|value| value.try_into().ok());
        headers.extend(authorization.map(|value: HeaderValue| (PROXY_AUTHORIZATION, value)));
        let target = self.url.target();
        let target = if forward.is_some() { format!("http://{}{target}", self.url.authority()) } else { target.into() };

        let answer = connection.post(&target, &headers, body, leaves, timeout);
        let answer = answer.map_err(|error| SendError::Network(error.to_string()))?;
        match answer.status {
            // From the proxy itself: it requires a login and has forwarded nothing.
            407 if forward.is_some() => Err(SendError::Offline("the proxy answered with status 407".to_owned())),
            // The proxy found no server, or lost the connection to it.
            502 | 504 if forward.is_some() => {
                Err(SendError::Network(format!("the proxy answered with status {}", answer.status)))
            }
            _ => Ok(answer),
        }
    }

    /// Connects to the server, or to a proxy that forwards the request.
    fn connect(&self, deadline: Instant) -> io::Result<Connection> {
        let needs_tls = self.url.is_https() || self.proxy.as_ref().is_some_and(Url::is_https);
        let tls = needs_tls.then(|| self.tls.get_or_init(|| tls::config(self.certificates.as_deref())).as_ref());
        let tls = tls.transpose().map_err(|error| io::Error::other(error.clone()))?;
        let Some(proxy) = &self.proxy else { return Connection::open(&self.url, tls, deadline) };
        let connection = Connection::open(proxy, tls, deadline);
        let connection = connection.map_err(|error| io::Error::new(error.kind(), format!("the proxy: {error}")))?;
        if self.url.is_https() { connection.through(proxy, &self.url, &self.user_agent, tls) } else { Ok(connection) }
    }
}

fn compress(message: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(message)?;
    encoder.finish()
}

/// Removes a possible password from a URL, for display.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

/// Returns the environment's proxy for a server with or without TLS, as curl does. Upper-case
/// `HTTP_PROXY` is ignored because a web server sets it from a request's `Proxy` header.
fn proxy_of_environment(server: &Url, variable: impl Fn(&str) -> Option<String>) -> Option<Url> {
    let names: &[&str] = if server.is_https() {
        &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
    } else {
        &["http_proxy", "all_proxy", "ALL_PROXY"]
    };
    let url = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))?;
    let except = variable("no_proxy").or_else(|| variable("NO_PROXY")).unwrap_or_default();
    if no_proxy::is_listed(&except, server.host()) {
        return None;
    }
    let proxy = proxy_at(&url);
    if proxy.is_none() {
        log::warn!("coroner: ignoring the environment's proxy, which is not a valid URL");
    }
    proxy
}

/// Parses a proxy's URL; `http://` may be missing.
fn proxy_at(url: &str) -> Option<Url> {
    if url.contains("://") { Url::parse(url) } else { Url::parse(&format!("http://{url}")) }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omit the headers, which contain keys.
        out.debug_struct("HttpClient").field("url", &self.url).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
