//! Delivers Coroner's crash reports over OTLP, the OpenTelemetry protocol.
//!
//! The server is an OpenTelemetry Collector or any other server that accepts log records.
//!
//! * [`request`]: converts a [`Report`](coroner_report::Report) to a log record, by OpenTelemetry's
//!   semantic conventions;
//! * [`Options`]: the server and its settings, from the app or from the environment's `OTEL_…`
//!   variables;
//! * [`Client`]: stores records in an outbox and sends them, `POST /v1/logs` with protobuf.
//!   `coroner::OtlpSink` wraps a client as a report sink;
//! * [`Exporter`]: sends one record immediately and returns the server's answer.
//!
//! ```
//! use coroner_otlp::{Labels, request};
//! use coroner_report::Report;
//!
//! let request = request(&Report::default(), &Labels::default());
//! let record = &request.resource_logs[0].scope_logs[0].log_records[0];
//! assert_eq!((record.event_name.as_str(), record.severity_text.as_str()), ("app.crash", "FATAL"));
//! ```
//!
//! # Delivery guarantees
//!
//! A record is written to disk before its report counts as delivered, and is removed when the
//! server has answered. If an answer is lost, the record is sent again and arrives twice; both have
//! the same `log.record.uid`, the report's event id.
#![deny(missing_docs)]

mod attributes;
mod client;
mod environment;
mod exporter;
mod options;
mod record;
mod resource;
mod sender;

pub use client::{Captured, Client, OpenError};
pub use coroner_outbox::{Outbox, OutboxLimits, SendError, TransportError, TransportOptions};
pub use environment::EnvironmentError;
pub use exporter::{Answer, Exporter};
/// The protocol's messages.
pub use opentelemetry_proto::tonic as proto;
pub use options::{Labels, Options};
pub use record::{MAX_OTHER_STACKS, request};
