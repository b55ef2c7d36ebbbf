//! Answers of a proxy for a server without TLS.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use coroner_outbox::{HttpClient, Response, SendError, TransportOptions};

/// Sends one message by a proxy that takes it whole and then does what `answer` does.
fn post(
    timeout: Duration,
    answer: impl FnOnce(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
) -> Result<Response, SendError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut reader = BufReader::new(stream.try_clone()?);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 2 {
            let printed = line.strip_prefix("Content-Length: ").and_then(|value| value.trim().parse().ok());
            length = printed.unwrap_or(length);
            line.clear();
        }
        reader.read_exact(&mut vec![0; length])?;
        answer(&mut stream)
    });
    let proxy = Some(format!("http://127.0.0.1:{port}"));
    let options = TransportOptions { proxy, timeout, ..TransportOptions::default() };
    let client = HttpClient::new("http://server.example/42", Vec::new(), "test/1", true, &options).unwrap();
    client.post(b"a message", &mut || Ok(()))
}

/// The same by a proxy that answers this.
fn answer(answer: &'static [u8]) -> Result<Response, SendError> {
    post(Duration::from_secs(30), move |stream| stream.write_all(answer))
}

#[test]
fn interim_answers_are_not_the_answer() {
    let printed =
        answer(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(printed.unwrap().status, 200);
}

#[test]
fn a_chunked_body_is_joined() {
    let page = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6;a=b\r\n<html>\r\nb\r\n<p>portal</\r\n0\r\nTrailer: a\r\n\r\n";
    assert_eq!(answer(page).unwrap().text(), "<html><p>portal</");
    let cut = answer(b"HTTP/1.1 413 Large\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nlarge\r\nffffffffffffffff\r\nan")
        .unwrap();
    assert_eq!((cut.status, &*cut.text()), (413, "largean"));
    let not = answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nnot in chunks").unwrap();
    assert_eq!((not.status, &*not.text()), (200, ""));
}

#[test]
fn an_invalid_status_line_is_an_error() {
    for printed in ["1000 x", "099 x", "99 x", "000", "2000 x", "-20 x", "", "OK", "200x"] {
        let got = post(Duration::from_secs(30), move |stream| write!(stream, "HTTP/1.1 {printed}\r\n\r\n"));
        assert!(matches!(got, Err(SendError::Network(_))), "`{printed}`: {got:?}");
    }
    // Nobody asked for another protocol.
    let switched = answer(b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
    assert!(matches!(switched, Err(SendError::Network(_))), "{switched:?}");
    assert_eq!(answer(b"HTTP/1.1 200\n\n").unwrap().status, 200);
}

#[test]
fn an_invalid_header_line_does_not_affect_the_status() {
    let folded = answer(b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nRetry-After: 5\r\n\r\n").unwrap();
    assert_eq!((folded.status, folded.header("A"), folded.header("retry-after")), (200, Some("b   c"), Some("5")));
}

#[test]
fn an_unlimited_timeout_is_accepted() {
    let printed = post(Duration::MAX, |stream| stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n"));
    assert_eq!(printed.unwrap().status, 200);
}

#[test]
fn a_header_may_be_invalid_utf_8() {
    let printed =
        answer(b"HTTP/1.1 429 Trop\xe9\r\nX-Who: caf\xe9\r\nRetry-After: 60\r\nContent-Length: 2\r\n\r\nno").unwrap();
    assert_eq!((printed.status, printed.header("retry-after"), &*printed.text()), (429, Some("60"), "no"));
}

#[test]
fn an_endless_head_is_limited() {
    let printed = post(Duration::from_secs(30), |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        // It is hung up on.
        loop {
            stream.write_all(&[b'a'; 1 << 16])?;
        }
    });
    assert!(matches!(printed, Err(SendError::Network(_))), "{printed:?}");
}

#[test]
fn a_slow_answer_has_the_messages_time_limit() {
    let printed = post(Duration::from_millis(300), |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        for _ in 0..60 {
            stream.write_all(b"a: b\r\n")?;
            thread::sleep(Duration::from_millis(50));
        }
        stream.write_all(b"\r\n")
    });
    assert!(matches!(printed, Err(SendError::Network(_))), "{printed:?}");
}

#[test]
fn a_407_means_that_the_proxy_forwarded_nothing() {
    let printed = answer(b"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n");
    assert!(matches!(printed, Err(SendError::Offline(_))), "{printed:?}");
    // Of these nobody knows.
    let printed = answer(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
    assert!(matches!(printed, Err(SendError::Network(_))), "{printed:?}");
}
