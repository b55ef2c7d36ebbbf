//! Proxies and servers that let nothing through, or never come to an end. Nothing of a message
//! leaves to them.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use coroner_outbox::{HttpClient, SendError, TransportOptions};

/// Serves each connection by `serve`, and says where.
fn listen(serve: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    port
}

/// The body's length by the head of a request, which is read.
fn read_head(reader: &mut impl BufRead) -> io::Result<usize> {
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line)? > 2 {
        let printed = line.to_ascii_lowercase().strip_prefix("content-length: ").map(|value| value.trim().parse());
        length = printed.and_then(Result::ok).unwrap_or(length);
        line.clear();
    }
    Ok(length)
}

/// A proxy that answers a CONNECT by this, and closes when it has read on for a moment.
fn proxy(answer: &'static [u8]) -> u16 {
    listen(move |mut stream| {
        read_head(&mut BufReader::new(stream.try_clone()?))?;
        stream.write_all(answer)?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        let _ = stream.read(&mut [0; 4096]);
        Ok(())
    })
}

fn options(timeout: Duration) -> TransportOptions {
    TransportOptions { timeout, connect_timeout: timeout, ..TransportOptions::default() }
}

/// Posts a message; returns the error, and how often a part of it left this machine.
fn post(url: &str, options: &TransportOptions) -> (SendError, usize) {
    let client = HttpClient::new(url, Vec::new(), "test/1", true, options).unwrap();
    let mut left = 0;
    let mut leaves = || {
        left += 1;
        Ok(())
    };
    (client.post(b"a message", &mut leaves).unwrap_err(), left)
}

#[test]
fn a_proxy_that_refuses_to_connect_counts_as_offline() {
    let answers: [&[u8]; 9] = [
        b"",
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 26\r\n\r\n<html>Please log in</html>",
        b"HTTP/1.1 200 OK\r\n\r\n\x15\x03\x03\x00\x02\x02\x28",
        b"HTTP/1.1 200 OK\r\n\r\n\x16\x03\x03\xff\xff\xff\xff",
        b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n",
        b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 20",
    ];
    for answer in answers {
        let proxy = Some(format!("http://127.0.0.1:{}", proxy(answer)));
        let (error, left) =
            post("https://server.example/", &TransportOptions { proxy, ..options(Duration::from_secs(10)) });
        let printed = String::from_utf8_lossy(answer);
        assert!(matches!(error, SendError::Offline(_)), "{printed}: {error:?}");
        assert_eq!(left, 0, "{printed}");
    }
}

#[test]
fn a_slow_proxy_is_abandoned_at_the_deadline() {
    const DRIPS: usize = 500;
    let drips = Arc::new(AtomicUsize::new(0));
    let printed = Arc::clone(&drips);
    let port = listen(move |mut stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nX-Wait: ")?;
        for _ in 0..DRIPS {
            stream.write_all(b"x")?;
            printed.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    let proxy = Some(format!("http://127.0.0.1:{port}"));
    let options = TransportOptions { proxy, ..options(Duration::from_millis(200)) };
    let (error, left) = post("https://server.example/", &options);
    assert!(matches!(error, SendError::Offline(_)), "{error:?}");
    assert_eq!(left, 0);
    assert!(drips.load(Ordering::Relaxed) < DRIPS, "it was waited for as long as it dripped");
}

#[test]
fn a_client_sends_again_after_an_aborted_request() {
    let requests = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&requests);
    let port = listen(move |mut stream| {
        read_head(&mut BufReader::new(stream.try_clone()?))?;
        if seen.fetch_add(1, Ordering::Relaxed) > 0 {
            return stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n");
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nX-Wait: ")?;
        while stream.write_all(b"x").is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    });
    let proxy = Some(format!("http://127.0.0.1:{port}"));
    let options = TransportOptions { proxy, ..options(Duration::from_millis(200)) };
    let client = HttpClient::new("https://server.example/", Vec::new(), "test/1", true, &options).unwrap();
    client.post(b"a message", &mut || Ok(())).unwrap_err();
    let error = client.post(b"a message", &mut || Ok(())).unwrap_err();
    assert!(matches!(&error, SendError::Offline(why) if why.contains("503")), "{error}");
}

#[test]
fn a_stalled_handshake_counts_as_offline() {
    let begins: [&'static [u8]; 3] = [b"", b"\x16\x03\x03", b"\x15\x03\x01"];
    for begin in begins {
        let port = listen(move |mut stream| {
            stream.write_all(begin)?;
            while stream.read(&mut [0; 4096])? > 0 {}
            Ok(())
        });
        let (error, left) = post(&format!("https://127.0.0.1:{port}/"), &options(Duration::from_millis(300)));
        assert!(matches!(error, SendError::Offline(_)), "{begin:?}: {error:?}");
        assert_eq!(left, 0);
    }
    // One that closes.
    let port = listen(|mut stream| stream.read(&mut [0; 4096]).map(drop));
    let (error, _) = post(&format!("https://127.0.0.1:{port}/"), &options(Duration::from_secs(10)));
    assert!(matches!(error, SendError::Offline(_)), "{error:?}");
}

#[test]
fn sending_stops_when_consent_is_withdrawn() {
    const WHOLE: usize = 8 << 20;
    let read = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&read);
    let port = listen(move |stream| {
        let mut reader = BufReader::new(stream);
        let length = read_head(&mut reader)?;
        let mut body = vec![0; length];
        let mut place = 0;
        loop {
            match reader.read(&mut body[place..])? {
                0 => break,
                piece => place += piece,
            }
            seen.fetch_max(place, Ordering::Relaxed);
        }
        Ok(())
    });
    let direct = format!("http://127.0.0.1:{port}/");
    let by_proxy = TransportOptions { proxy: Some(direct.clone()), ..options(Duration::from_secs(30)) };
    let ways = [(direct.as_str(), options(Duration::from_secs(30))), ("http://server.example/", by_proxy)];
    for (url, options) in ways {
        read.store(0, Ordering::Relaxed);
        let client = HttpClient::new(url, Vec::new(), "test/1", false, &options).unwrap();
        let mut pieces = 0;
        let mut leaves = || {
            pieces += 1;
            if pieces > 3 { Err(io::Error::other("the user has refused")) } else { Ok(()) }
        };
        let error = client.post(&vec![7; WHOLE], &mut leaves).unwrap_err();
        assert!(matches!(error, SendError::Network(_)), "a part has left: {error:?}");
        let arrived = read.load(Ordering::Relaxed);
        assert!(arrived < WHOLE / 2, "{arrived} bytes of {WHOLE}");
        // Before the first piece it is as if there were no connection.
        let error = client.post(b"a message", &mut || Err(io::Error::other("the user has refused"))).unwrap_err();
        assert!(matches!(error, SendError::Offline(_)), "{error:?}");
    }
}

/// Go's and Node's servers do so with what is too large: the rest of it meets a connection that is
/// closed.
#[test]
fn an_answer_before_the_end_of_the_message_is_used() {
    let port = listen(|mut stream| {
        read_head(&mut BufReader::with_capacity(1, &mut stream))?;
        stream.write_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge")
    });
    let url = format!("http://127.0.0.1:{port}/");
    let client = HttpClient::new(&url, Vec::new(), "test/1", false, &options(Duration::from_secs(30))).unwrap();
    for _ in 0..20 {
        let answer = client.post(&vec![b'a'; 16 << 20], &mut || Ok(())).unwrap();
        assert_eq!((answer.status, &*answer.text()), (413, "large"));
    }
    // Nor does one that says nothing hold it up.
    let port = listen(|mut stream| read_head(&mut BufReader::with_capacity(1, &mut stream)).map(drop));
    let url = format!("http://127.0.0.1:{port}/");
    let client = HttpClient::new(&url, Vec::new(), "test/1", false, &options(Duration::from_secs(30))).unwrap();
    let lost = client.post(&vec![b'a'; 16 << 20], &mut || Ok(()));
    assert!(matches!(lost, Err(SendError::Network(_))), "{lost:?}");
}

/// Posts a message of 8 MiB that doesn't fit into the buffers of the network.
fn post_large(port: u16, timeout: Duration) -> Result<u16, SendError> {
    let url = format!("http://127.0.0.1:{port}/");
    let client = HttpClient::new(&url, Vec::new(), "test/1", false, &options(timeout)).unwrap();
    client.post(&vec![b'x'; 8 << 20], &mut || Ok(())).map(|answer| answer.status)
}

#[test]
fn a_slow_server_gets_a_large_message_while_there_is_progress() {
    const PIECE: usize = 64 << 10;
    let port = listen(|stream| {
        let mut reader = BufReader::with_capacity(PIECE, stream.try_clone()?);
        let mut left = read_head(&mut reader)?;
        let mut buffer = vec![0; PIECE];
        while left > 0 {
            // Slower in all than the timeout, and faster in each piece.
            thread::sleep(Duration::from_millis(40));
            let size = left.min(PIECE);
            reader.read_exact(&mut buffer[..size])?;
            left -= size;
        }
        let mut stream = stream;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    });
    assert_eq!(post_large(port, Duration::from_secs(2)), Ok(200));
}

#[test]
fn a_server_that_stops_reading_is_abandoned() {
    let (stopped, stops) = std::sync::mpsc::channel::<()>();
    let stops = std::sync::Mutex::new(stops);
    let port = listen(move |stream| {
        read_head(&mut BufReader::with_capacity(1, &stream))?;
        // Until the test is over.
        let _ = stops.lock().unwrap().recv();
        drop(stream);
        Ok(())
    });
    let answer = post_large(port, Duration::from_millis(500));
    assert!(matches!(&answer, Err(SendError::Network(why)) if why.contains("timed out")), "{answer:?}");
    drop(stopped);
}
