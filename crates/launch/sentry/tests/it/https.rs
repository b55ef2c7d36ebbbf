//! HTTPS as it is on the wire: which certificates are good enough, what a proxy sees, and what is
//! logged of all that.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use coroner_report::model::{Header, Id, Report};
use coroner_sentry::envelope::Envelope;
use coroner_sentry::event::Event;
use coroner_sentry::transport::{HttpTransport, SendError, Transport, TransportOptions};
use coroner_sentry::{Client, Options};
use coroner_test_support::isolated;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Requests received by servers and proxies: head and body.
type Heard = Arc<Mutex<Vec<String>>>;

/// An authority that no system knows, and its certificate as a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self { issuer, folder: tempfile::tempdir().unwrap() };
        std::fs::write(authority.file(), authority.issuer.pem()).unwrap();
        authority
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Returns the TLS configuration of a server with this name.
    fn server(&self, name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}

/// The head of a request or an answer, to its empty line.
fn head(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Serves each connection on a thread of its own, on a port of this machine.
fn listen(serve: impl Fn(TcpStream) -> std::io::Result<()> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = Arc::clone(&serve);
            // A client that hangs up in the handshake is what some of the tests want.
            thread::spawn(move || drop(serve(stream)));
        }
    });
    port
}

/// A server with TLS that answers every request with `status`.
fn server(config: Arc<ServerConfig>, status: u16) -> (u16, Heard) {
    let heard = Heard::default();
    let log = Arc::clone(&heard);
    let port = listen(move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).map_err(std::io::Error::other)?;
        let mut reader = BufReader::new(StreamOwned::new(connection, stream));
        let head = head(&mut reader)?;
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        log.lock().unwrap().push(head);
        let stream = reader.get_mut();
        write!(stream, "HTTP/1.1 {status} Answer\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}")?;
        stream.conn.send_close_notify();
        stream.flush()
    });
    (port, heard)
}

/// A proxy that lets through what asks it to (RFC 9110, 9.3.6).
fn proxy() -> (u16, Heard) {
    let heard = Heard::default();
    let log = Arc::clone(&heard);
    let port = listen(move |mut client| {
        let head = head(&mut BufReader::with_capacity(1, client.try_clone()?))?;
        let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
        log.lock().unwrap().push(head);
        // Names mean nothing here: all servers are on this machine.
        let port = target.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let mut server = TcpStream::connect(("127.0.0.1", port))?;
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        let (mut back, mut forth) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || drop(std::io::copy(&mut server, &mut back)));
        std::io::copy(&mut client, &mut forth).map(drop)
    });
    (port, heard)
}

fn dsn(host: &str, port: u16) -> coroner_sentry::Dsn {
    format!("https://thekey:verysecret@{host}:{port}/7").parse().unwrap()
}

fn options() -> TransportOptions {
    TransportOptions { timeout: Duration::from_secs(20), ..TransportOptions::default() }
}

fn trusting(file: &Path) -> TransportOptions {
    TransportOptions { ca_file: Some(file.to_owned()), ..options() }
}

fn envelope() -> Vec<u8> {
    Envelope::from_event(&Event::default()).to_bytes_sent_at(SystemTime::now())
}

#[test]
fn a_certificate_of_an_unknown_authority_is_rejected() {
    let authority = Authority::new();
    let (port, heard) = server(authority.server("localhost"), 200);
    let transport = HttpTransport::new(&dsn("localhost", port), &options()).unwrap();
    let error = transport.send(&envelope()).unwrap_err();
    assert!(matches!(&error, SendError::Offline(why) if why.contains("UnknownIssuer")), "{error}");
    assert!(heard.lock().unwrap().is_empty(), "nothing was sent to it");

    // Another authority than the one that signed it is as good as none.
    let other = Authority::new();
    let transport = HttpTransport::new(&dsn("localhost", port), &trusting(&other.file())).unwrap();
    assert!(matches!(transport.send(&envelope()), Err(SendError::Offline(_))));
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn the_options_authority_is_trusted_for_the_name_it_signed() {
    let authority = Authority::new();
    let (port, heard) = server(authority.server("localhost"), 200);
    let transport = HttpTransport::new(&dsn("localhost", port), &trusting(&authority.file())).unwrap();
    let answer = transport.send(&envelope()).unwrap();
    assert!(answer.is_success(), "{answer:?}");
    let head = heard.lock().unwrap()[0].clone();
    assert!(head.starts_with("POST /api/7/envelope/ HTTP/1.1") && head.contains("sentry_secret=verysecret"), "{head}");

    let (port, heard) = server(authority.server("other.example.com"), 200);
    let transport = HttpTransport::new(&dsn("localhost", port), &trusting(&authority.file())).unwrap();
    let error = transport.send(&envelope()).unwrap_err();
    assert!(matches!(&error, SendError::Offline(why) if why.contains("not valid for name")), "{error}");
    assert!(heard.lock().unwrap().is_empty());
}

#[test]
fn a_self_signed_certificate_that_the_options_contain_is_trusted() {
    // As made by `openssl req -x509`, whose default is `CA:TRUE`; and without.
    for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
        let make = |name: &str, until: i32| {
            let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            params.is_ca = is_ca;
            params.not_after = rcgen::date_time_ymd(until, 1, 1);
            let key = KeyPair::generate().unwrap();
            (params.self_signed(&key).unwrap(), PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))
        };
        let serve = |(certificate, key): (rcgen::Certificate, PrivateKeyDer<'static>), listed: Option<String>| {
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("ca.pem");
            std::fs::write(&file, listed.unwrap_or_else(|| certificate.pem())).unwrap();
            let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
            let (port, _) = server(Arc::new(config), 200);
            let transport = HttpTransport::new(&dsn("localhost", port), &trusting(&file)).unwrap();
            transport.send(&envelope()).map(|answer| answer.is_success())
        };
        assert!(matches!(serve(make("localhost", 2100), None), Ok(true)), "{is_ca:?}");
        for (name, until) in [("other.example.com", 2100), ("localhost", 2001)] {
            let refused = serve(make(name, until), None);
            assert!(matches!(refused, Err(SendError::Offline(_))), "{is_ca:?}: {refused:?}");
        }
        let other = make("localhost", 2100).0.pem();
        let refused = serve(make("localhost", 2100), Some(other));
        assert!(matches!(refused, Err(SendError::Offline(_))), "{is_ca:?}: {refused:?}");
    }
}

/// Sends an envelope, in the process that [`the_systems_authorities_are_trusted`] starts.
#[test]
fn in_a_separate_process() {
    let Ok(port) = std::env::var("CORONER_TEST_PORT") else { return };
    let transport = HttpTransport::new(&dsn("localhost", port.parse().unwrap()), &options()).unwrap();
    assert!(transport.send(&envelope()).unwrap().is_success());
}

#[test]
fn the_systems_authorities_are_trusted() {
    let authority = Authority::new();
    let (port, heard) = server(authority.server("localhost"), 200);
    let send = |system: &Path| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "https::in_a_separate_process"]).env("CORONER_TEST_PORT", port.to_string());
        child.env("SSL_CERT_FILE", system).env("SSL_CERT_DIR", "/nonexistent").output().unwrap().status.success()
    };
    assert!(send(&authority.file()));
    assert_eq!(heard.lock().unwrap().len(), 1);
    // A system without certificates trusts Mozilla's list, which has no such authority.
    assert!(!send(Path::new("/nonexistent/ca.pem")));
    assert_eq!(heard.lock().unwrap().len(), 1);
}

#[test]
fn a_proxy_tunnels_tls_without_seeing_the_content() {
    let authority = Authority::new();
    let (port, heard) = server(authority.server("sentry.example.com"), 200);
    let (proxy_port, seen) = proxy();
    let proxy = Some(format!("http://user:hunter2@127.0.0.1:{proxy_port}"));
    let through = TransportOptions { proxy, ..trusting(&authority.file()) };
    // The name is one that only the proxy can resolve.
    let transport = HttpTransport::new(&dsn("sentry.example.com", port), &through).unwrap();
    let answer = transport.send(&envelope()).unwrap();
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!(heard.lock().unwrap().len(), 1);
    let seen = seen.lock().unwrap().concat();
    assert!(seen.starts_with(&format!("CONNECT sentry.example.com:{port} HTTP/1.1")), "{seen}");
    // `user:hunter2` (RFC 7617).
    assert!(seen.to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjpodw50zxiy"), "{seen}");
    assert!(!seen.contains("thekey") && !seen.contains("secret"), "{seen}");

    // A proxy that is not there is no reason to go without it.
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let through = TransportOptions { proxy: Some(format!("http://{gone}")), ..trusting(&authority.file()) };
    let transport = HttpTransport::new(&dsn("localhost", port), &through).unwrap();
    assert!(matches!(transport.send(&envelope()), Err(SendError::Offline(_))));
    assert_eq!(heard.lock().unwrap().len(), 1);
}

#[test]
fn without_tls_a_proxy_gets_the_request_itself() {
    let heard = Heard::default();
    let log = Arc::clone(&heard);
    let port = listen(move |stream| {
        let mut reader = BufReader::new(stream);
        let head = head(&mut reader)?;
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        assert!(body.starts_with(&[0x1f, 0x8b]), "it is packed");
        let number = {
            let mut log = log.lock().unwrap();
            log.push(head);
            log.len()
        };
        let answer = match number {
            1 => "200 OK\r\nX-Sentry-Rate-Limits: 60:error\r\nRetry-After: 5",
            2 => "502 Bad Gateway",
            _ => "HTTP/garbage",
        };
        // The connection stays open: its length says where the answer ends.
        write!(reader.get_mut(), "HTTP/1.1 {answer}\r\nContent-Length: 3\r\n\r\nyes")?;
        thread::sleep(Duration::from_secs(30));
        Ok(())
    });
    let to: coroner_sentry::Dsn = "http://thekey@sentry.example.com:8080/7".parse().unwrap();
    let through = TransportOptions { proxy: Some(format!("http://user:hunter2@127.0.0.1:{port}")), ..options() };
    let transport = HttpTransport::new(&to, &through).unwrap();
    let mut left = 0;
    let began = std::time::Instant::now();
    let answer = transport.send_noting(&envelope(), &mut || {
        left += 1;
        Ok(())
    });
    let answer = answer.unwrap();
    assert_eq!((answer.status, answer.body.as_str(), left), (200, "yes", 1));
    assert_eq!((answer.rate_limits.as_deref(), answer.retry_after.as_deref()), (Some("60:error"), Some("5")));
    let head = heard.lock().unwrap()[0].clone();
    assert!(head.starts_with("POST http://sentry.example.com:8080/api/7/envelope/ HTTP/1.1\r\n"), "{head}");
    for line in
        ["Host: sentry.example.com:8080", "Proxy-Authorization: Basic dXNlcjpodW50ZXIy", "Content-Encoding: gzip"]
    {
        assert!(head.lines().any(|printed| printed.eq_ignore_ascii_case(line)), "{line}: {head}");
    }
    // The proxy's own error is not the server's answer, which would be final.
    assert!(matches!(transport.send(&envelope()), Err(SendError::Network(_))));
    assert!(matches!(transport.send(&envelope()), Err(SendError::Network(_))));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());

    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let through = TransportOptions { proxy: Some(format!("http://{gone}")), ..options() };
    let mut leaves = || panic!("nothing leaves");
    let sent = HttpTransport::new(&to, &through).unwrap().send_noting(&envelope(), &mut leaves);
    assert!(matches!(sent, Err(SendError::Offline(_))), "{sent:?}");
}

/// All log lines of the process.
static LOGGED: Mutex<String> = Mutex::new(String::new());

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}: {}\n", record.level(), record.target(), record.args());
        LOGGED.lock().unwrap().push_str(&line);
    }

    fn flush(&self) {}
}

#[test]
fn no_secret_is_logged_however_sending_ends() {
    isolated(concat!(module_path!(), "::no_secret_is_logged_however_sending_ends"), || {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(log::LevelFilter::Debug);
        let authority = Authority::new();
        let capture = |dsn: coroner_sentry::Dsn, transport: TransportOptions| {
            let folder = tempfile::tempdir().unwrap();
            let client = Client::open(Options { transport, ..Options::new(dsn) }, folder.path()).unwrap();
            let report = Report { header: Header { event_id: Id([1; 16]), ..Header::default() }, ..Report::default() };
            client.capture(&report).unwrap();
            client.flush(Duration::from_secs(30));
            format!("{client:?}")
        };
        let mut shown = String::new();
        for status in [200, 400, 413, 429, 500] {
            let (port, _) = server(authority.server("localhost"), status);
            shown += &capture(dsn("localhost", port), trusting(&authority.file()));
        }
        let (port, _) = server(authority.server("localhost"), 200);
        shown += &capture(dsn("localhost", port), options());
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        shown += &capture(dsn("localhost", gone), options());
        let proxy = Some(format!("http://user:hunter2@127.0.0.1:{gone}"));
        shown += &capture(dsn("localhost", port), TransportOptions { proxy, ..options() });
        let logged = LOGGED.lock().unwrap();
        for refused in ["with status 400", "too large", "accepts no events", "can't accept event", "can't send event"] {
            assert!(logged.contains(refused), "`{refused}` was not logged: {logged}");
        }
        for secret in ["verysecret", "thekey", "hunter2"] {
            assert!(!logged.contains(secret) && !shown.contains(secret), "{secret} in {logged}{shown}");
        }
    });
}
