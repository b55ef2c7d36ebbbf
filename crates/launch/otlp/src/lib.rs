//! Delivery of Coroner's crash reports by OTLP, the OpenTelemetry protocol: to an OpenTelemetry Collector, or to whoever takes log records.
//!
//! * [`request`]: a [`Report`](coroner_report::Report) as a log record, by the semantic conventions of OpenTelemetry;
//! * [`Options`]: where they go, from the app or from the environment's `OTEL_…` variables;
//! * [`Client`]: keeps them in an outbox and sends them, `POST /v1/logs` with protobuf. `coroner::OtlpSink` is a client in the place of a
//!   sink;
//! * [`Exporter`]: sends one at once, and says what the server answered.
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
//! # What is kept and what is sent twice
//!
//! A record is on the disk before its report is taken for delivered, and is removed when the server has answered. If an answer is lost it is
//! sent again, and comes twice: `log.record.uid`, which is the report's event id, says that it is the same.
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
/// The messages of the protocol.
pub use opentelemetry_proto::tonic as proto;
pub use options::{Labels, Options};
pub use record::{MAX_OTHER_STACKS, request};
