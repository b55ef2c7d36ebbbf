//! What sinks share that deliver to a server: what waits is on the disk, and a thread of its own sends it.
//!
//! * [`Outbox`]: messages as files, each with what is known of it in its name;
//! * [`SendingThread`]: rounds of sending, and the waits between them; [`backoff`] and [`parse_retry_after`] say how long those are;
//! * [`HttpClient`]: one message over HTTPS, by the proxies and certificates that [`TransportOptions`] or the system say.
//!
//! What a message is, and what a server's answer means, is for `coroner-sentry` and `coroner-otlp` to say.
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
