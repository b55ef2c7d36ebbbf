//! A connection to a server that sends one message (RFC 9112).
//!
//! For a server with TLS, a proxy is asked for a connection (CONNECT). For a server without TLS,
//! the proxy gets the request itself, with the whole URL (RFC 9112, 3.2.2): many proxies allow
//! CONNECT only for TLS.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::response::{MAX_BODY, Response};
use crate::url::Url;

/// Maximum size of an answer's head, in bytes.
const MAX_HEAD: u64 = 64 << 10;
/// Maximum number of bytes written at once.
const PIECE: usize = 64 << 10;
/// Number of bytes of a message for which the answer may take a second longer.
const SLOWEST_PER_SECOND: u64 = 16 << 10;

/// A byte stream: TCP, or TLS on top of another stream.
trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A connection to the server, or to a proxy that forwards the request.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    deadline: Rc<Cell<Instant>>,
}

impl Connection {
    /// Connects to `to`, which may be a proxy, with TLS if its URL requires it.
    ///
    /// # Errors
    /// An I/O error if no connection is established by the deadline.
    pub(crate) fn open(to: &Url, tls: Option<&Arc<ClientConfig>>, deadline: Instant) -> io::Result<Self> {
        let deadline = Rc::new(Cell::new(deadline));
        let stream = connect(&resolve(to.host(), to.port(), deadline.get())?, deadline.get())?;
        let stream = UntilDeadline { stream, deadline: Rc::clone(&deadline), is_closed: false };
        let connection = Self { stream: Box::new(stream), deadline };
        if to.is_https() { connection.secure(to, tls) } else { Ok(connection) }
    }

    /// Requests a connection to `server`, which uses TLS, from the proxy at the other end.
    ///
    /// # Errors
    /// An I/O error if the proxy refuses, or if the server's TLS handshake fails.
    pub(crate) fn through(
        mut self,
        proxy: &Url,
        server: &Url,
        user_agent: &str,
        tls: Option<&Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let to = server.host_and_port();
        let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nUser-Agent: {user_agent}\r\n").into_bytes();
        if let Some(authorization) = proxy.authorization() {
            write!(request, "Proxy-Authorization: {authorization}\r\n")?;
        }
        request.extend_from_slice(b"\r\n");
        self.stream.write_all(&request)?;
        self.stream.flush()?;
        // Read exactly the head: the bytes after it come from the server.
        let answer = read_final_head(&mut BufReader::with_capacity(1, &mut self.stream).take(MAX_HEAD))?;
        if !(200..300).contains(&answer.status) {
            return Err(io::Error::other(format!("the proxy answered with status {}", answer.status)));
        }
        self.secure(server, tls)
    }

    /// Starts TLS on this connection. The handshake is complete on return.
    fn secure(self, to: &Url, tls: Option<&Arc<ClientConfig>>) -> io::Result<Self> {
        let config = tls.ok_or_else(|| io::Error::other("missing TLS configuration"))?;
        let name = ServerName::try_from(to.host().to_owned()).map_err(io::Error::other)?;
        let connection = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, self.stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self { stream: Box::new(stream), deadline: self.deadline })
    }

    /// Posts `body` to `target` with these headers and waits for the answer. `leaves` is called
    /// before each piece but the first is written. Each piece may take `timeout`, and so may the
    /// answer.
    ///
    /// # Errors
    /// An I/O error if no answer is received, or the error of `leaves`.
    pub(crate) fn post(
        mut self,
        target: &str,
        headers: &HeaderMap,
        body: &[u8],
        leaves: &mut dyn FnMut() -> io::Result<()>,
        timeout: Duration,
    ) -> io::Result<Response> {
        self.deadline.set(Instant::now() + timeout);
        let mut request = format!("POST {target} HTTP/1.1\r\n").into_bytes();
        for (name, value) in headers {
            request.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        request.extend_from_slice(b"Connection: close\r\n\r\n");
        self.stream.write_all(&request)?;
        for (place, piece) in body.chunks(PIECE).enumerate() {
            if place > 0 {
                leaves()?;
            }
            self.deadline.set(Instant::now() + timeout);
            self.stream.write_all(piece)?;
        }
        self.stream.flush()?;
        let in_buffers = Duration::from_secs(body.len() as u64 / SLOWEST_PER_SECOND);
        self.deadline.set(Instant::now() + timeout + in_buffers);
        read_answer(&mut BufReader::new(self.stream))
    }
}

/// Connects to the first address that answers. The time is divided between the addresses, because
/// the first is often in a network that isn't reachable (IPv6).
fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for (address, count) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        match TcpStream::connect_timeout(address, left(deadline)? / count) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Resolves a host name. The system's function has no timeout, so it runs in a separate thread.
fn resolve(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (found, waits) = mpsc::channel();
    let name = host.to_owned();
    let ask = move || drop(found.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter)));
    std::thread::Builder::new().name("coroner-resolver".into()).spawn(ask)?;
    waits.recv_timeout(left(deadline)?).map_err(|_| io::Error::from(ErrorKind::TimedOut))?
}

/// Returns the time until the deadline, or an error after it.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A TCP connection with a deadline for all operations, however slowly data arrives.
struct UntilDeadline {
    stream: TcpStream,
    deadline: Rc<Cell<Instant>>,
    /// Whether the other side accepts no more data. An earlier answer (such as 413) may still be
    /// readable, so writing doesn't fail; reading fails if there was no answer.
    is_closed: bool,
}

impl UntilDeadline {
    /// Repeats an operation that was interrupted by a signal.
    fn again<T>(&mut self, mut act: impl FnMut(&mut TcpStream, Duration) -> io::Result<T>) -> io::Result<T> {
        loop {
            match act(&mut self.stream, left(self.deadline.get())?) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A socket's error after its timeout.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
                done => return done,
            }
        }
    }
}

impl Read for UntilDeadline {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.again(|stream, left| {
            stream.set_read_timeout(Some(left))?;
            stream.read(buffer)
        })
    }
}

impl Write for UntilDeadline {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.is_closed {
            return Ok(buffer.len());
        }
        let written = self.again(|stream, left| {
            stream.set_write_timeout(Some(left))?;
            stream.write(buffer)
        });
        let is_end = |error: &io::Error| matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        self.is_closed = written.as_ref().is_err_and(is_end);
        if self.is_closed { Ok(buffer.len()) } else { written }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Response> {
    let mut answer = read_final_head(&mut reader.by_ref().take(MAX_HEAD))?;
    // These have neither a body nor a length (RFC 9112, 6.3).
    if !matches!(answer.status, 204 | 304) {
        // Only the status matters, so an error in the body is ignored.
        let _ = read_body(reader, &mut answer);
    }
    Ok(answer)
}

/// Reads the head of the final answer, skipping interim answers (RFC 9110, 15.2).
fn read_final_head(head: &mut impl BufRead) -> io::Result<Response> {
    loop {
        let answer = read_head(head)?;
        if answer.status >= 200 {
            return Ok(answer);
        }
    }
}

/// Reads status and headers. Headers that aren't valid are left out.
fn read_head(head: &mut impl BufRead) -> io::Result<Response> {
    let mut bytes = Vec::new();
    loop {
        let line = bytes.len();
        head.read_until(b'\n', &mut bytes)?;
        match &bytes[line..] {
            b"\n" | b"\r\n" => break,
            read if read.ends_with(b"\n") => {}
            _ => return Err(ErrorKind::UnexpectedEof.into()),
        }
    }
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
    let mut headers = vec![httparse::EMPTY_HEADER; lines];
    let mut parsed = httparse::Response::new(&mut headers);
    let mut config = httparse::ParserConfig::default();
    config.allow_obsolete_multiline_headers_in_responses(true).ignore_invalid_headers_in_responses(true);
    config.allow_spaces_after_header_name_in_responses(true).allow_multiple_spaces_in_response_status_delimiters(true);
    config
        .parse_response(&mut parsed, &bytes)
        .map_err(|error| io::Error::new(ErrorKind::InvalidData, format!("the answer is not HTTP: {error}")))?;
    let headers = parsed.headers.iter().filter_map(|header| {
        // A folded value's line breaks are blanks (RFC 9112, 5.2).
        let unfolded = header.value.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte });
        let value = HeaderValue::from_bytes(&unfolded.collect::<Vec<u8>>()).ok()?;
        Some((HeaderName::try_from(header.name).ok()?, value))
    });
    let status = parsed.code.filter(|status| *status >= 100).ok_or(ErrorKind::InvalidData)?;
    let mut answer = Response { status, ..Response::default() };
    for (name, value) in headers {
        answer.headers.try_append(name, value).map_err(io::Error::other)?;
    }
    Ok(answer)
}

/// Reads the start of the body, joining chunks (RFC 9112, 7.1).
fn read_body(reader: &mut impl BufRead, answer: &mut Response) -> io::Result<()> {
    if !answer.header("Transfer-Encoding").is_some_and(|value| value.to_ascii_lowercase().contains("chunked")) {
        let declared = answer.header("Content-Length").and_then(|value| value.parse::<u64>().ok());
        let length = declared.unwrap_or(MAX_BODY).min(MAX_BODY);
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

#[cfg(all(test, target_os = "linux"))]
mod tests;
