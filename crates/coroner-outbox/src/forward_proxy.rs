//! A proxy for a server without TLS: it gets the request itself, which names the whole URL (RFC 9112, 3.2.2). `ureq` asks every proxy for
//! a connection by CONNECT, which many proxies allow for TLS alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::http::{MAX_BODY, Response, SendError};

/// Most bytes of the head of an answer.
const MAX_HEAD: u64 = 64 << 10;
/// Most bytes that are written at once.
const PIECE: usize = 64 << 10;

pub(crate) struct ForwardProxy {
    host: String,
    port: u16,
    /// `Proxy-Authorization`.
    authorization: Option<String>,
    connect_timeout: Duration,
    timeout: Duration,
}

impl ForwardProxy {
    /// The way to `url` by `proxy`; `None` if the server has TLS, the proxy speaks another protocol or is not to be used for it.
    pub(crate) fn to(url: &str, proxy: &ureq::Proxy, connect_timeout: Duration, timeout: Duration) -> Option<Self> {
        let uri: ureq::http::Uri = url.parse().ok()?;
        let is_plain = uri.scheme_str() == Some("http") && proxy.protocol() == ureq::ProxyProtocol::Http;
        let user = proxy.username().map(|user| format!("{user}:{}", proxy.password().unwrap_or_default()));
        (is_plain && !proxy.is_no_proxy(&uri)).then(|| Self {
            host: proxy.host().to_owned(),
            port: proxy.port(),
            authorization: user.map(|user| format!("Basic {}", BASE64_STANDARD.encode(user))),
            connect_timeout,
            timeout,
        })
    }

    /// Sends a request with these headers and `body`. `leaves` is called before each piece of it is written.
    ///
    /// # Errors
    /// [`SendError`] where there is no answer of the server.
    pub(crate) fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        leaves: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Response, SendError> {
        let offline = |error: io::Error| SendError::Offline(format!("the proxy: {error}"));
        let stream = self.connect().map_err(offline)?;
        leaves().map_err(|error| SendError::Offline(error.to_string()))?;
        let answer = self.exchange(stream, url, headers, body, leaves);
        let answer = answer.map_err(|error| SendError::Network(error.to_string()))?;
        match answer.status {
            // The proxy's own: it wants a user, and has passed nothing on.
            407 => Err(SendError::Offline("the proxy answers 407".to_owned())),
            // It has no server, or has lost it.
            502 | 504 => Err(SendError::Network(format!("the proxy answers {}", answer.status))),
            _ => Ok(answer),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let deadline = Instant::now() + self.connect_timeout;
        let mut last = io::Error::other("it has no address");
        for address in (self.host.trim_matches(['[', ']']), self.port).to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn exchange(
        &self,
        stream: TcpStream,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        leaves: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<Response> {
        let mut stream = UntilDeadline { stream, deadline: Instant::now() + self.timeout };
        let uri: ureq::http::Uri = url.parse().map_err(io::Error::other)?;
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let mut request = format!("POST {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n").into_bytes();
        let own = self.authorization.as_deref().map(|authorization| ("Proxy-Authorization", authorization));
        for (name, value) in headers.iter().copied().chain(own) {
            write!(request, "{name}: {value}\r\n")?;
        }
        request.extend_from_slice(b"\r\n");
        stream.write_all(&request)?;
        for (place, piece) in body.chunks(PIECE).enumerate() {
            if place > 0 {
                leaves()?;
            }
            stream.write_all(piece)?;
        }
        read_answer(&mut BufReader::new(stream))
    }
}

/// A connection that ends at a time, however slowly something comes.
struct UntilDeadline {
    stream: TcpStream,
    deadline: Instant,
}

impl UntilDeadline {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for UntilDeadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for UntilDeadline {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Response> {
    let mut head = reader.by_ref().take(MAX_HEAD);
    let mut answer = read_head(&mut head)?;
    // What a server says before its answer (RFC 9110, 15.2).
    while matches!(answer.status, 100 | 102..=199) {
        answer = read_head(&mut head)?;
    }
    // The status decides. A body that can't be read to its end changes nothing.
    let _ = read_body(reader, &mut answer);
    Ok(answer)
}

/// Status and headers. What of them is no text is replaced.
fn read_head(head: &mut impl BufRead) -> io::Result<Response> {
    let is_not_http = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP");
    let mut next = || {
        let mut line = Vec::new();
        head.read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    };
    let line = next()?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    let mut answer = Response { status: status.ok_or_else(is_not_http)?, ..Response::default() };
    loop {
        let line = next()?;
        if line.is_empty() {
            return Ok(answer);
        }
        let (name, value) = line.split_once(':').ok_or_else(is_not_http)?;
        answer.headers.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// The beginning of the body, put together where it comes in chunks (RFC 9112, 7.1).
fn read_body(reader: &mut impl BufRead, answer: &mut Response) -> io::Result<()> {
    if !answer.header("Transfer-Encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked")) {
        let said = answer.header("Content-Length").and_then(|value| value.parse::<u64>().ok());
        let length = said.unwrap_or(MAX_BODY).min(MAX_BODY);
        return reader.take(length).read_to_end(&mut answer.body).map(drop);
    }
    loop {
        let left = MAX_BODY.saturating_sub(answer.body.len() as u64);
        let mut line = Vec::new();
        reader.by_ref().take(MAX_HEAD).read_until(b'\n', &mut line)?;
        let line = String::from_utf8_lossy(&line);
        let size = line.split(';').next().and_then(|size| u64::from_str_radix(size.trim(), 16).ok()).unwrap_or(0);
        if size == 0 || left == 0 {
            return Ok(());
        }
        reader.by_ref().take(size.min(left)).read_to_end(&mut answer.body)?;
        reader.by_ref().take(2).read_until(b'\n', &mut Vec::new())?;
    }
}
