//! The integration tests, linked as one program.
//!
//! A test that changes the process runs in a separate process.

mod common;
mod encoder;
mod model;
mod round_trip;
mod run_state;
mod scrub;
mod signature;
mod specification;
mod text;
mod torn;
