//! The shared parts of sinks that deliver to a server.
//!
//! Messages wait in an on-disk queue and are sent by a background thread:
//!
//! * [`Outbox`]: messages as files, with each message's metadata in its file name;
//! * [`SendingThread`]: sending rounds and the waits between them; [`backoff`] and
//!   [`parse_retry_after`] compute those waits;
//! * [`HttpClient`]: sends one message over HTTPS, with the proxies and certificates from
//!   [`TransportOptions`] or the system.
//!
//! `coroner-sentry` and `coroner-otlp` define the messages and interpret the server's answers.
#![deny(missing_docs)]

mod connection;
mod consent;
pub mod files;
mod gate;
mod http;
mod locked;
mod no_proxy;
mod outbox;
mod response;
mod sending_thread;
mod tls;
mod url;
mod waits;

pub use http::{HttpClient, SendError, TransportError, TransportOptions};
pub use locked::locked;
pub use outbox::{Entry, Outbox, OutboxLimits, Pushed, Sending, SentIds};
pub use response::{Response, is_portal};
pub use sending_thread::{Round, SendingThread};
pub use waits::{MAX_WAIT, backoff, parse_retry_after};
