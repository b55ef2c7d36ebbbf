//! Integration tests of the outbox and its connections: what is on the disk, what a server or a
//! proxy may answer.
//!
//! Tests run as threads of one process; those that fork or set limits run in a process of their
//! own.

mod consent;
mod forward_proxy;
mod hostile;
mod hostile_network;
mod processes;
