//! Parts of the client by themselves, without a server.

mod client_report;
mod envelope;
mod rate_limits;
mod session;
