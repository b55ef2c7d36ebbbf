//! The report format: the boundary between crash time and the next launch.
//!
//! A report file is a CBOR sequence (RFC 8742) of framed, checksummed sections.
//! `docs/report-format.md` defines the framing, the versioning and how a torn report is read;
//! `docs/report.cddl` specifies every section.
//!
//! * [`wire`] (`no_std`, no allocation, no panic): the structures that the crash path fills in and
//!   encodes.
//! * [`run_state`] (`no_std` writer): the mapped file that the app writes outside a signal handler
//!   and that outlives the process.
//! * `reader`, `model`, `signature` and `text` (feature `std`): the modules used at the next
//!   launch.
//! * `json_schema` (feature `schema`): the JSON Schema of the JSON form.
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(missing_docs)]

pub mod child_slots;
mod open_numbers;
pub mod run_state;
pub mod wire;

#[cfg(feature = "std")]
pub mod model;
#[cfg(feature = "std")]
pub mod reader;
#[cfg(feature = "std")]
pub mod signature;
#[cfg(feature = "std")]
pub mod text;

#[cfg(feature = "schema")]
pub mod json_schema;

#[cfg(feature = "std")]
pub use model::{Report, RunFacts};
#[cfg(feature = "std")]
pub use reader::ReadError;
