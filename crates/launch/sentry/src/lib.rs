//! Delivers Coroner's crash reports to Sentry and to servers that implement its protocol.
//!
//! * [`event`]: converts a [`Report`](coroner_report::Report) to an event, built from the types of
//!   `sentry-types` ([`protocol`]) and [what these lack](extensions);
//! * [`attachments`]: the files sent with an event;
//! * [`envelope`]: the wire format of events, attachments, sessions and client reports;
//! * [`outbox`]: the on-disk queue; [`transport`]: sends one envelope over HTTPS;
//! * [`Client`]: combines all of these. `coroner::SentrySink` wraps a client as a report sink.
//!
//! ```
//! use coroner_report::Report;
//! use coroner_sentry::event::{Event, EventOptions};
//!
//! let event = Event::from_report(&Report::default(), &EventOptions::default());
//! assert_eq!((event.platform.as_ref(), event.level), ("native", coroner_sentry::protocol::Level::Fatal));
//! ```
//!
//! # Delivery guarantees
//!
//! An event is written to disk before its report counts as delivered, and is removed when the
//! server has answered. If the process is killed in between, the next run sends the event again
//! under the same id, and servers drop the duplicate. An event that a server refuses is moved to
//! `given-up` in the outbox and counted in a client report; it is retried if the DSN changes.
#![deny(missing_docs)]

pub mod attachments;
mod client;
pub mod client_report;
mod dsn;
pub mod envelope;
pub mod event;
pub mod extensions;
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
pub use sentry_types::protocol::v7 as protocol;
