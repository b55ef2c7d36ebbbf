//! The report format: the boundary between crash time and the next launch.
//!
//! A report file is a CBOR sequence (RFC 8742) of framed, checksummed sections. `docs/report-format.md` says how it is
//! framed, versioned and read when torn; `docs/report.cddl` specifies every section.
//!
//! * [`wire`] (`no_std`, no allocation, no panic): what the crash path fills in and encodes.
//! * [`run_state`] (`no_std` writer): the mapped file that the app writes outside a signal handler and that outlives it.
//! * `reader`, `model`, `signature` and `text` (feature `std`): what everything at the next launch uses.
//! * `json_schema` (feature `schema`): what the JSON form looks like, for machines.
#![cfg_attr(not(feature = "std"), no_std)]
#![deny(missing_docs)]

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
