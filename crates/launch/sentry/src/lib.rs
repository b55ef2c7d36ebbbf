//! Delivery of Coroner's crash reports to Sentry, and to servers that speak its protocol.
//!
//! * [`event`]: a [`Report`](coroner_report::Report) as an event;
//! * [`attachments`]: the files that go with it;
//! * [`envelope`]: events, attachments, sessions and client reports as they are sent;
//! * [`outbox`]: what waits, on the disk; [`transport`]: one envelope over HTTPS;
//! * [`Client`]: all of it together. `coroner::SentrySink` is a client in the place of a sink.
//!
//! ```
//! use coroner_report::Report;
//! use coroner_sentry::event::{Event, EventOptions};
//!
//! let event = Event::from_report(&Report::default(), &EventOptions::default());
//! assert_eq!((event.platform.as_str(), event.level.as_str()), ("native", "fatal"));
//! ```
//!
//! # What is kept and what is sent twice
//!
//! An event is on the disk before its report is taken for delivered, and is removed when the server has answered. A process that
//! is killed between the two sends it again under the same id, by which servers drop the second one. An event that a server
//! refuses is set aside (`given-up` in the outbox) and counted for a client report; with another DSN it is tried again.
#![deny(missing_docs)]

pub mod attachments;
mod client;
pub mod client_report;
mod dsn;
pub mod envelope;
pub mod event;
mod feedback;
mod minidump;
mod options;
pub mod outbox;
pub mod rate_limits;
mod sender;
pub mod session;
mod termination;
pub mod transport;

pub use client::{Captured, Client, OpenError};
pub use dsn::{Dsn, ParseDsnError};
pub use feedback::Feedback;
pub use minidump::attachment as minidump_attachment;
pub use options::{Attach, BeforeSend, Options};
