//! Crashes an app at forty launches while its network fails in every possible way.
//!
//! When the network works again, every event must arrive exactly once. The server uses TLS and is
//! behind a proxy that simulates the network.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, ensure};
use coroner_tests::server::{Reply, Server};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{Bench, Row, output};

const DAYS: usize = 40;

/// RFC 6761 guarantees that this name is never resolved.
const NAME: &str = "sentry.invalid";

/// A network's behavior.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// The server's name can't be resolved.
    NoName,
    /// The proxy is down.
    NoProxy,
    /// The proxy closes the connection.
    HangsUp,
    /// The proxy requires a login.
    Login,
    /// A portal answers in place of the server, with its own certificate.
    Portal,
    /// The certificate has expired according to this machine's clock.
    Clock,
    /// The connection is intercepted and answered with a redirect.
    Redirect,
    Works,
}

const FAILURES: [Network; 7] = [
    Network::NoName,
    Network::NoProxy,
    Network::HangsUp,
    Network::Login,
    Network::Portal,
    Network::Clock,
    Network::Redirect,
];

/// Launches an app once a day with a failing network, then with a working one.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let server = Server::start(|_, _| Reply::ok())?;
    let folder = bench.folder("offline")?;
    let proxy = Proxy::start(server.port())?;
    let authority = folder.join("ca.pem");
    std::fs::write(&authority, &proxy.authority)?;
    let launch = |network: Network, words: &[&str]| {
        proxy.set(network);
        let status = if network == Network::Redirect { 302 } else { 200 };
        server.answer(move |_, _| Reply::Status(status, Vec::new()));
        let mut command = bench.program("sentry_app");
        for name in ["http_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
            command.env_remove(name);
        }
        let port = if network == Network::NoProxy { 9 } else { proxy.port };
        match network {
            Network::NoName => command.env_remove("https_proxy"),
            _ => command.env("https_proxy", format!("http://127.0.0.1:{port}")),
        };
        command.env("SSL_CERT_FILE", &authority).arg(store(&folder)).arg(format!("https://public:secret@{NAME}/7"));
        command.args(["no-symbols", "retry=1", "flush=20"]).args(words);
        command
    };
    let mut rows = Vec::new();
    for day in 0..DAYS {
        let network = FAILURES[day % FAILURES.len()];
        let printed = output_of(launch(network, &["fault=null-store"]))?;
        // The first launch follows no crash, but it sends the start of a session.
        ensure!(printed.contains("flushed: false"), "unexpected delivery on day {day} ({network:?}): {printed}");
    }
    let before = server.events().len();
    let printed = output(&mut launch(Network::Works, &[]))?;
    let events = server.items("event").len();
    let mut problems = Vec::new();
    if (before, events, server.events().len()) != (0, DAYS, DAYS) {
        problems.push(format!(
            "{before} events arrived too early, then {events}, {} of them distinct",
            server.events().len()
        ));
    }
    if !printed.contains("flushed: true") {
        problems.push(format!("the outbox is not empty: {printed}"));
    }
    rows.push(Row::new("offline", format!("{events} events of {DAYS} launches without a network"), problems));
    let sessions = server.items("session");
    let count = |what: &str| sessions.iter().filter(|update| update["status"] == what).count();
    let begun = sessions.iter().filter(|update| update["init"] == true).count();
    // For the last launch itself, only the start has arrived.
    let right = (begun, count("crashed")) == (DAYS + 1, DAYS);
    let problems = if right { Vec::new() } else { vec![format!("{begun} began, {} crashed", count("crashed"))] };
    rows.push(Row::new("offline", format!("{begun} sessions"), problems));
    Ok(rows)
}

fn store(folder: &std::path::Path) -> PathBuf {
    folder.join("store")
}

/// Runs a program that may crash, and returns its output.
fn output_of(mut command: Command) -> anyhow::Result<String> {
    Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
}

/// A proxy that behaves as [`Network`] specifies, and has the server's certificates.
struct Proxy {
    port: u16,
    network: Arc<Mutex<Network>>,
    /// The certificate authority of the server's certificate, in PEM.
    authority: String,
}

struct Certificates {
    good: Arc<ServerConfig>,
    expired: Arc<ServerConfig>,
    portals: Arc<ServerConfig>,
}

impl Proxy {
    fn start(server: u16) -> anyhow::Result<Self> {
        let authority = authority()?;
        let certificates = Arc::new(Certificates {
            good: server_config(&authority, 2100)?,
            expired: server_config(&authority, 2020)?,
            portals: server_config(&self::authority()?, 2100)?,
        });
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let network = Arc::new(Mutex::new(Network::Works));
        let proxy = Self { port, network: Arc::clone(&network), authority: authority.pem() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let network = *network.lock().unwrap_or_else(PoisonError::into_inner);
                let certificates = Arc::clone(&certificates);
                // Some networks are simulated by a client that disconnects.
                std::thread::spawn(move || drop(serve(stream, network, &certificates, server)));
            }
        });
        Ok(proxy)
    }

    fn set(&self, network: Network) {
        *self.network.lock().unwrap_or_else(PoisonError::into_inner) = network;
    }
}

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> anyhow::Result<Issuer> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

/// Creates a server's configuration; its certificate is valid until the first day of a year.
fn server_config(authority: &Issuer, until: i32) -> anyhow::Result<Arc<ServerConfig>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(vec![NAME.to_owned()])?;
    (params.not_before, params.not_after) = (date_time_ymd(2019, 1, 1), date_time_ymd(until, 1, 1));
    let certificate = params.signed_by(&key, authority)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key)?))
}

fn serve(mut client: TcpStream, network: Network, certificates: &Certificates, server: u16) -> anyhow::Result<()> {
    let head = head(&mut BufReader::with_capacity(1, client.try_clone()?))?;
    ensure!(head.starts_with("CONNECT "), "no proxy for {head}");
    let config = match network {
        Network::HangsUp | Network::NoName | Network::NoProxy => return Ok(()),
        Network::Login => {
            let answer = "HTTP/1.1 302 Found\r\nLocation: http://portal.example.com/\r\nContent-Length: 0\r\n\r\n";
            return Ok(client.write_all(answer.as_bytes())?);
        }
        Network::Portal => &certificates.portals,
        Network::Clock => &certificates.expired,
        Network::Redirect | Network::Works => &certificates.good,
    };
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let mut reader = BufReader::new(StreamOwned::new(ServerConnection::new(Arc::clone(config))?, client));
    let request = self::head(&mut reader)?;
    let length =
        request.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.context("no length")?];
    reader.read_exact(&mut body)?;
    let mut behind = TcpStream::connect(("127.0.0.1", server))?;
    behind.write_all(request.as_bytes())?;
    behind.write_all(&body)?;
    let mut answer = Vec::new();
    behind.read_to_end(&mut answer)?;
    let client = reader.get_mut();
    client.write_all(&answer)?;
    client.conn.send_close_notify();
    Ok(client.flush()?)
}

/// Reads a request's head, up to the empty line.
fn head(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}
