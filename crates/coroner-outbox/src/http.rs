//! One message to a server, over HTTPS.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use ureq::http::{HeaderName, HeaderValue, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use crate::forward_proxy::ForwardProxy;
use crate::no_proxy;

/// How much later than its own time limit a request is ended from outside.
const GRACE: Duration = Duration::from_millis(500);
/// Most bytes of an answer's body that are read: it says what was wrong.
pub(crate) const MAX_BODY: u64 = 16 << 10;

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

/// What a server answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// HTTP status.
    pub status: u16,
    /// Its headers that are text.
    pub headers: Vec<(String, String)>,
    /// The beginning of the body.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header with that name, in whatever case it is written.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether something else answers in a server's place, as the page of a network in which one has to log in: no server of the protocols
    /// that are spoken here redirects, or says `OK` by a page of HTML.
    pub fn is_portal(&self) -> bool {
        is_portal(self.status, &self.text())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).trim().to_owned()
    }
}

/// [`Response::is_portal`], of a status and a body.
pub fn is_portal(status: u16, body: &str) -> bool {
    let body = body.trim_start_matches('\u{feff}').trim_start();
    let begins = |text: &str| body.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text));
    let is_page = || ["<!doctype", "<html", "<?xml", "<head", "<!--"].into_iter().any(begins);
    (300..400).contains(&status) || ((200..300).contains(&status) && is_page())
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
    /// The proxy is no URL of one.
    #[error("the proxy can't be used: {0}")]
    Proxy(String),
    /// The file of certificates can't be read, or holds none.
    #[error("no certificates can be read from `{}`: {}", .0.display(), .1)]
    Certificates(PathBuf, io::Error),
}

/// The body of a request, of which is noted when a piece of it leaves.
struct Body<'a> {
    bytes: &'a [u8],
    leaves: &'a mut dyn FnMut() -> io::Result<()>,
}

impl io::Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.leaves)()?;
        self.bytes.read(buffer)
    }
}

/// A client of one server, by `ureq` and `rustls`. Certificates are verified.
pub struct HttpClient {
    /// Made when something is sent first: reading the system's certificates takes milliseconds, which a launch has not. Made anew after
    /// one was shut down.
    agent: Mutex<Option<ureq::Agent>>,
    proxy: Option<ureq::Proxy>,
    /// The proxy, if the server has no TLS.
    forward: Option<ForwardProxy>,
    /// What is trusted instead of what the system trusts.
    certificates: Option<Vec<Certificate<'static>>>,
    connect_timeout: Duration,
    timeout: Duration,
    url: String,
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
        let uri = url.parse::<Uri>().ok().filter(|uri| uri.host().is_some_and(|host| !host.is_empty()));
        let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("https" | "http")));
        let uri = uri.ok_or_else(|| TransportError::Url(without_user(url)))?;
        for (name, value) in &headers {
            // A line end in one would begin another.
            if HeaderName::from_bytes(name.as_bytes()).is_err() || HeaderValue::from_str(value).is_err() {
                return Err(TransportError::Header(name.escape_default().to_string()));
            }
        }
        let proxy = match &options.proxy {
            Some(url) => Some(ureq::Proxy::new(url).map_err(|error| TransportError::Proxy(error.to_string()))?),
            None => proxy_of_environment(&uri, |name| std::env::var(name).ok()),
        };
        let certificates = options
            .ca_file
            .as_ref()
            .map(|path| read_certificates(path).map_err(|error| TransportError::Certificates(path.clone(), error)));
        let (connect_timeout, timeout) = (options.connect_timeout, options.timeout);
        let forward = proxy.as_ref().and_then(|proxy| ForwardProxy::to(url, proxy, connect_timeout, timeout));
        Ok(Self {
            agent: Mutex::default(),
            proxy,
            forward,
            certificates: certificates.transpose()?,
            connect_timeout,
            timeout,
            url: url.to_owned(),
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
        let compressed = self.gzip.then(|| compress(message)).transpose();
        let compressed =
            compressed.map_err(|error| SendError::Network(format!("the message can't be compressed: {error}")))?;
        let body = compressed.as_deref().unwrap_or(message);
        let mut left = false;
        let mut leaves = || {
            leaves()?;
            left = true;
            Ok(())
        };
        let length = body.len().to_string();
        let mut headers: Vec<(&str, &str)> = self.headers.iter().map(|(name, value)| (&name[..], &value[..])).collect();
        headers.extend(self.gzip.then_some(("Content-Encoding", "gzip")));
        headers.extend([("Content-Length", length.as_str()), ("User-Agent", self.user_agent.as_str())]);
        if let Some(proxy) = &self.forward {
            return proxy.post(&self.url, &headers, body, &mut leaves);
        }
        let agent = self.agent();
        // `ureq` waits for each piece of a proxy's answer to CONNECT as long as for all of it.
        let _limit = self.proxy.is_some().then(|| shut_down_after(self.timeout.saturating_add(GRACE), &agent));
        let request = headers
            .iter()
            .fold(agent.post(&self.url), |request, (name, value)| request.header(*name, *value))
            .send(ureq::SendBody::from_reader(&mut Body { bytes: body, leaves: &mut leaves }));
        let mut response = request.map_err(|error| {
            // It may have been shut down.
            *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = None;
            let why = error.to_string();
            if left { SendError::Network(why) } else { SendError::Offline(why) }
        })?;
        let header = |(name, value): (&HeaderName, &HeaderValue)| {
            value.to_str().ok().map(|value| (name.as_str().to_owned(), value.to_owned()))
        };
        let headers = response.headers().iter().filter_map(header).collect();
        let status = response.status().as_u16();
        // The status decides. A body that can't be read to its end changes nothing.
        let mut body = Vec::new();
        let mut reader = io::Read::take(response.body_mut().as_reader(), MAX_BODY);
        let _ = io::Read::read_to_end(&mut reader, &mut body);
        Ok(Response { status, headers, body })
    }

    fn agent(&self) -> ureq::Agent {
        let mut agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        let made = agent.get_or_insert_with(|| {
            let roots = match &self.certificates {
                Some(certificates) => RootCerts::new_with_certs(certificates),
                None if self.url.starts_with("https:") => system_roots(),
                None => RootCerts::WebPki,
            };
            let config = ureq::Agent::config_builder()
                .proxy(self.proxy.clone())
                .tls_config(TlsConfig::builder().root_certs(roots).build())
                .timeout_connect(Some(self.connect_timeout))
                .timeout_global(Some(self.timeout))
                // An answer that refuses is one to be read.
                .http_status_as_error(false)
                // Crash data goes where the app says and nowhere else.
                .max_redirects(0)
                .max_redirects_will_error(false)
                // Messages are rare; a connection kept open is one that the server has closed meanwhile.
                .max_idle_connections(0)
                // For CONNECT; the request has its own.
                .user_agent(self.user_agent.clone())
                .build();
            config.into()
        });
        made.clone()
    }
}

/// Ends what an agent is at when that much time is over, unless what is returned has been dropped by then.
fn shut_down_after(timeout: Duration, agent: &ureq::Agent) -> mpsc::Sender<()> {
    let (done, waits) = mpsc::channel();
    let own = agent.clone();
    let thread = std::thread::Builder::new().name("coroner-deadline".into());
    let watched = thread.spawn(move || {
        if waits.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            own.shutdown();
        }
    });
    if let Err(error) = watched {
        log::info!("coroner: no thread to keep the time: {error}");
    }
    done
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
fn proxy_of_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<ureq::Proxy> {
    let names: &[&str] = if server.scheme_str() == Some("https") {
        &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
    } else {
        &["http_proxy", "all_proxy", "ALL_PROXY"]
    };
    let url = names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()))?;
    let except = variable("no_proxy").or_else(|| variable("NO_PROXY")).unwrap_or_default();
    if server.host().is_some_and(|host| no_proxy::is_listed(&except, host)) {
        return None;
    }
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    let named =
        ureq::Proxy::new(&url).inspect_err(|_| log::warn!("coroner: the environment's proxy is no URL")).ok()?;
    let mut builder = ureq::Proxy::builder(named.protocol()).host(named.host()).port(named.port());
    if let Some(user) = named.username() {
        builder = builder.username(user);
    }
    if let Some(password) = named.password() {
        builder = builder.password(password);
    }
    builder.build().ok()
}

/// What the system trusts, else Mozilla's list.
fn system_roots() -> RootCerts {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        found.errors.iter().for_each(|error| log::info!("coroner: the system's certificates can't be read: {error}"));
        return RootCerts::WebPki;
    }
    let certificates: Vec<_> = found.certs.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    RootCerts::new_with_certs(&certificates)
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

impl fmt::Debug for HttpClient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the headers, which hold keys.
        out.debug_struct("HttpClient").field("url", &without_user(&self.url)).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "../tests/unit/http.rs"]
mod tests;
