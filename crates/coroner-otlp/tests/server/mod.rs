//! A server of the protocol on this machine: it decodes what comes by `opentelemetry-proto`, and answers what a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use coroner_otlp::proto::collector::logs::v1::ExportLogsServiceRequest;
use coroner_otlp::proto::common::v1::any_value::Value as Any;
use coroner_otlp::proto::common::v1::{AnyValue, KeyValue};
use coroner_otlp::proto::logs::v1::LogRecord;
use flate2::read::GzDecoder;
use prost::Message;
use serde_json::{Value, json};

/// What came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The first line and the headers.
    pub(crate) head: String,
    /// The message.
    pub(crate) logs: ExportLogsServiceRequest,
}

impl Request {
    /// Its one record.
    pub(crate) fn record(&self) -> &LogRecord {
        let [resource] = &self.logs.resource_logs[..] else { panic!("{:?}", self.logs) };
        let [scope] = &resource.scope_logs[..] else { panic!("{resource:?}") };
        let [record] = &scope.log_records[..] else { panic!("{scope:?}") };
        record
    }

    /// What it is of, as JSON.
    #[allow(dead_code)] // Not all tests look at it.
    pub(crate) fn resource(&self) -> Value {
        object(&self.logs.resource_logs[0].resource.as_ref().unwrap().attributes)
    }

    /// The record's attributes, as JSON.
    pub(crate) fn attributes(&self) -> Value {
        object(&self.record().attributes)
    }
}

fn object(attributes: &[KeyValue]) -> Value {
    let mut map = serde_json::Map::new();
    for attribute in attributes {
        let known = map.insert(attribute.key.clone(), value(attribute.value.as_ref().unwrap()));
        assert_eq!(known, None, "`{}` comes twice", attribute.key);
    }
    map.into()
}

fn value(of: &AnyValue) -> Value {
    match of.value.as_ref().expect("a value") {
        Any::StringValue(text) => json!(text),
        Any::BoolValue(value) => json!(value),
        Any::IntValue(value) => json!(value),
        Any::DoubleValue(value) => json!(value),
        Any::ArrayValue(list) => list.values.iter().map(value).collect(),
        Any::KvlistValue(map) => object(&map.values),
        other => panic!("{other:?}"),
    }
}

/// An answer: status, headers, body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: &'static str,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }
}

/// A server; its thread ends with the test.
pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers the first request with the first of `answers` and so on, all that come later with 200.
    pub(crate) fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let log = Arc::clone(&requests);
        thread::spawn(move || {
            let mut answers = answers.into_iter();
            for stream in listener.incoming().flatten() {
                let answer = answers.next().unwrap_or_else(|| Answer::status(200));
                if let Err(error) = serve(stream, &answer, &log) {
                    eprintln!("server: {error}");
                }
            }
        });
        Self { url, requests }
    }

    /// All that came so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
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
