//! An OTLP log collector on localhost, which records decoded requests and returns the responses
//! that a test sets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use flate2::read::GzDecoder;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use prost::Message;
use serde_json::{Value, json};

/// A request that the collector received.
#[derive(Clone, Debug)]
pub struct Request {
    /// The first line and the headers.
    pub head: String,
    /// The decoded body.
    pub logs: ExportLogsServiceRequest,
}

impl Request {
    /// Returns the request's only log record.
    ///
    /// # Panics
    /// The request has no record or several.
    #[must_use]
    pub fn record(&self) -> &LogRecord {
        let [resource] = &self.logs.resource_logs[..] else { panic!("{:?}", self.logs) };
        let [scope] = &resource.scope_logs[..] else { panic!("{resource:?}") };
        let [record] = &scope.log_records[..] else { panic!("{scope:?}") };
        record
    }

    /// Returns the resource's attributes as a JSON object.
    ///
    /// # Panics
    /// The request has no resource.
    #[must_use]
    pub fn resource(&self) -> Value {
        object(&self.logs.resource_logs[0].resource.as_ref().unwrap().attributes)
    }

    /// Returns the only log record's attributes as a JSON object.
    ///
    /// # Panics
    /// See [`Request::record`].
    #[must_use]
    pub fn attributes(&self) -> Value {
        object(&self.record().attributes)
    }
}

fn object(attributes: &[KeyValue]) -> Value {
    let mut map = serde_json::Map::new();
    for attribute in attributes {
        let known = map.insert(attribute.key.clone(), value(attribute.value.as_ref().unwrap()));
        assert_eq!(known, None, "duplicate attribute `{}`", attribute.key);
    }
    map.into()
}

fn value(attribute: &AnyValue) -> Value {
    match attribute.value.as_ref().expect("a value") {
        Any::StringValue(text) => json!(text),
        Any::BoolValue(value) => json!(value),
        Any::IntValue(value) => json!(value),
        Any::DoubleValue(value) => json!(value),
        Any::ArrayValue(list) => list.values.iter().map(value).collect(),
        Any::KvlistValue(map) => object(&map.values),
        other => panic!("{other:?}"),
    }
}

/// An HTTP response.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: u16,
    /// Complete header lines, each with its line break.
    pub headers: &'static str,
    pub body: Vec<u8>,
}

impl Answer {
    /// Creates a response with only a status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }
}

/// A collector on its own thread, which runs until the process exits.
#[derive(Debug)]
pub struct Server {
    /// Base URL of the collector.
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a collector that responds to requests with `answers`, in order, and with 200 to all
    /// later ones.
    ///
    /// # Panics
    /// No port is available on localhost.
    #[must_use]
    pub fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let log = Arc::clone(&requests);
        thread::spawn(move || {
            let mut answers = answers.into_iter();
            for stream in listener.incoming().flatten() {
                let answer = answers.next().unwrap_or_else(|| Answer::status(200));
                if let Err(error) = serve(stream, &answer, &log) {
                    eprintln!("collector: {error}");
                }
            }
        });
        Self { url, requests }
    }

    /// Returns all requests received so far.
    ///
    /// # Panics
    /// The collector's thread panicked.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(stream: TcpStream, answer: &Answer, log: &Mutex<Vec<Request>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let header = |name: &str| {
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix(name).map(|value| value.trim().to_owned()))
    };
    let mut body = vec![0; header("content-length:").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body)?;
    if header("content-encoding:").as_deref() == Some("gzip") {
        let mut plain = Vec::new();
        GzDecoder::new(&body[..]).read_to_end(&mut plain)?;
        body = plain;
    }
    let logs = ExportLogsServiceRequest::decode(&body[..]).map_err(std::io::Error::other)?;
    log.lock().unwrap().push(Request { head, logs });
    let stream = reader.get_mut();
    let Answer { status, headers, body } = answer;
    write!(stream, "HTTP/1.1 {status} Answer\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)
}
