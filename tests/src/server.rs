//! A server that receives envelopes and responds as configured by a test: refusing, late, with
//! garbage, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
pub use coroner_sentry::envelope::Envelope;
use serde_json::Value;

/// The server's response to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Responds with a status and headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Reads the request, waits, and then responds with 200.
    Late(Duration),
    /// Reads the request and never responds, until the client disconnects.
    Hang,
    /// Responds with something that is not HTTP.
    Garbage,
    /// Closes the connection without a response.
    Close,
}

impl Reply {
    /// Success.
    pub fn ok() -> Self {
        Self::Status(200, Vec::new())
    }
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path.
    pub path: String,
    /// Headers, with lower-case names.
    pub headers: BTreeMap<String, String>,
    /// Decompressed body.
    pub body: Vec<u8>,
}

type Script = dyn FnMut(usize, &Request) -> Reply + Send;

#[derive(Default)]
struct Log {
    requests: Vec<Request>,
    /// Accepted envelopes.
    accepted: Vec<Envelope>,
}

/// A server that runs until dropped.
pub struct Server {
    port: u16,
    log: Arc<Mutex<Log>>,
    script: Arc<Mutex<Box<Script>>>,
    ended: Arc<AtomicBool>,
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Starts a server on a free port.
    ///
    /// # Errors
    /// No port is available.
    pub fn start(script: impl FnMut(usize, &Request) -> Reply + Send + 'static) -> anyhow::Result<Self> {
        Self::start_at(0, script)
    }

    /// Starts a server on that port.
    ///
    /// # Errors
    /// The port is taken.
    pub fn start_at(port: u16, script: impl FnMut(usize, &Request) -> Reply + Send + 'static) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let port = listener.local_addr()?.port();
        let log = Arc::new(Mutex::new(Log::default()));
        let script: Arc<Mutex<Box<Script>>> = Arc::new(Mutex::new(Box::new(script)));
        let ended = Arc::new(AtomicBool::new(false));
        let server = Self { port, log: Arc::clone(&log), script: Arc::clone(&script), ended: Arc::clone(&ended) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (log, script) = (Arc::clone(&log), Arc::clone(&script));
                if let Ok(stream) = stream {
                    // A client may be killed during the request.
                    std::thread::spawn(move || drop(serve(&stream, &log, &script)));
                }
            }
        });
        Ok(server)
    }

    /// Sets the script for further requests.
    pub fn answer(&self, script: impl FnMut(usize, &Request) -> Reply + Send + 'static) {
        *locked(&self.script) = Box::new(script);
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the DSN of a project on this server.
    pub fn dsn(&self) -> String {
        format!("http://public:secret@127.0.0.1:{}/7", self.port)
    }

    /// Returns all completely received requests.
    pub fn requests(&self) -> Vec<Request> {
        locked(&self.log).requests.clone()
    }

    /// Returns all accepted envelopes.
    pub fn accepted(&self) -> Vec<Envelope> {
        locked(&self.log).accepted.clone()
    }

    /// Returns the number of accepted envelopes.
    pub fn accepted_count(&self) -> usize {
        locked(&self.log).accepted.len()
    }

    /// Returns the items of a type in accepted envelopes, as JSON.
    pub fn items(&self, kind: &str) -> Vec<Value> {
        let accepted = self.accepted();
        let items = accepted.iter().flat_map(|envelope| &envelope.items).filter(|item| item.kind() == kind);
        items.filter_map(|item| serde_json::from_slice(&item.payload).ok()).collect()
    }

    /// Returns the distinct ids of all received events, as a server keeps them.
    pub fn events(&self) -> BTreeSet<String> {
        let ids = self.items("event").into_iter().filter_map(|event| Some(event["event_id"].as_str()?.to_owned()));
        ids.collect()
    }

    /// Returns the distinct session updates; a repeated one has the same session and sequence.
    pub fn sessions(&self) -> Vec<Value> {
        let mut seen = BTreeSet::new();
        let mut updates = self.items("session");
        updates.retain(|update| seen.insert((update["sid"].to_string(), update["seq"].as_u64())));
        updates
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the listener, which then ends and frees the port.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(stream: &TcpStream, log: &Mutex<Log>, script: &Mutex<Box<Script>>) -> anyhow::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).context("no request")?.to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "cut");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length: usize = headers.get("content-length").context("no length")?.parse()?;
    let mut packed = vec![0; length];
    reader.read_exact(&mut packed)?;
    let body = match headers.get("content-encoding").map(String::as_str) {
        Some("gzip") => {
            let mut body = Vec::new();
            flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut body)?;
            body
        }
        // From other clients.
        None | Some("identity") => packed,
        Some(other) => anyhow::bail!("unsupported content encoding {other}"),
    };
    let request = Request { path, headers, body };
    let number = {
        let mut log = locked(log);
        log.requests.push(request.clone());
        log.requests.len() - 1
    };
    let reply = (locked(script))(number, &request);
    let mut stream = stream;
    match reply {
        Reply::Status(status, headers) => {
            if (200..300).contains(&status) {
                locked(log).accepted.push(Envelope::parse(&request.body)?);
            }
            respond(stream, status, &headers)?;
        }
        Reply::Late(wait) => {
            // The envelope counts as received, whether or not the client gets the response.
            locked(log).accepted.push(Envelope::parse(&request.body)?);
            std::thread::sleep(wait);
            respond(stream, 200, &[])?;
        }
        Reply::Hang => {
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        }
        Reply::Garbage => stream.write_all(b"\x16\x03\x01 this is not HTTP\r\n\r\n{}")?,
        Reply::Close => {}
    }
    Ok(())
}

fn respond(mut stream: &TcpStream, status: u16, headers: &[(&str, String)]) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} Answer\r\nContent-Length: 2\r\nConnection: close\r\n")?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n{}")
}
