//! Fuzz target functions, by what they read:
//!
//! * [`unwind`]: the formats that the unwinder parses. The input is a [`case::Case`], which places
//!   two parts in an address space, so that sections of real programs are seeds as they are.
//! * [`symbols`]: symbol files of every format. The input is the file.
//! * [`reports`]: the files of a run, reports of other tools, and what is made from both.
//! * [`delivery`]: the files kept until a report is delivered, and server responses.
//! * [`process`]: `/proc` texts and the dynamic linker's list of images.
//!
//! Whatever its input, a target function must return: without a panic, within its budget, and with
//! the same answer when asked twice. `../fuzz_targets` has a program for each function, and this
//! crate's test runs each over its corpus. See `../README.md`.

#![expect(clippy::missing_panics_doc, reason = "fuzzers look for panics")]

pub mod case;
pub mod delivery;
pub mod process;
pub mod reports;
pub mod symbols;
pub mod unwind;

#[cfg(test)]
mod corpus;
