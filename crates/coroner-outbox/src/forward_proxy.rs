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

    /// Sends a request with these headers and `body`. `leaves` is called before its first byte is written.
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
        let mut stream = self.connect().map_err(offline)?;
        leaves().map_err(|error| SendError::Offline(error.to_string()))?;
        let answer = self.exchange(&mut stream, url, headers, body);
        let answer = answer.map_err(|error| SendError::Network(error.to_string()))?;
        match answer.status {
            // The proxy's own: it wants a user, or has no server.
            407 | 502 | 504 => Err(SendError::Network(format!("the proxy answers {}", answer.status))),
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
        stream: &mut TcpStream,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Response> {
        let timeout = Some(self.timeout.max(Duration::from_millis(1)));
        stream.set_write_timeout(timeout)?;
        stream.set_read_timeout(timeout)?;
        let uri: ureq::http::Uri = url.parse().map_err(io::Error::other)?;
        let host = uri.authority().map_or("", |authority| authority.as_str());
        let mut request = format!("POST {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n").into_bytes();
        let own = self.authorization.as_deref().map(|authorization| ("Proxy-Authorization", authorization));
        for (name, value) in headers.iter().copied().chain(own) {
            write!(request, "{name}: {value}\r\n")?;
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
        stream.write_all(&request)?;
        read_answer(&mut BufReader::new(stream))
    }
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Response> {
    let mut answer = Response::default();
    let mut head = reader.by_ref().take(MAX_HEAD);
    let mut line = String::new();
    head.read_line(&mut line)?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
    answer.status = status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))?;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        answer.headers.push((name.to_owned(), value.trim().to_owned()));
    }
    // The status decides. A body that can't be read to its end changes nothing.
    let said = answer.header("Content-Length").and_then(|value| value.parse::<u64>().ok());
    let length = said.unwrap_or(MAX_BODY).min(MAX_BODY);
    let _ = reader.take(length).read_to_end(&mut answer.body);
    Ok(answer)
}
