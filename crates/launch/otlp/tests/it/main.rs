//! Integration tests of OTLP delivery: options from the environment, log records, and a client with
//! a collector's answers.

mod delivery;
mod environment;
mod record;
