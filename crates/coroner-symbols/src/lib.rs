//! From addresses to names: function, file, line and the calls that were inlined.
//!
//! [`Symbolizer`] works on the next launch or on a developer's desk: ELF and Mach-O files, separate debug files and dSYM
//! bundles found by their id, DWARF lines and inlined calls, breakpad `.sym` text. What names addresses in the dying process
//! itself, without allocation, is [`coroner_scan`].
//!
//! # Addresses
//! All addresses that are asked for here are *svma*: the address that the image's own file gives to the place, which is
//! the address in the process less the image's slide. [`LookupAddress`] makes the choice between an instruction's
//! address and a return address explicit, because a return address names the instruction *after* the call.
//!
//! # What it can't do
//! A file is used only if its id (GNU build id, `LC_UUID`) is the report's. An image without an id is taken by its path
//! and marked [`Match::Unverified`]. Split DWARF (`.dwo`, `.dwp`) and the object files of a Mach-O debug map are not
//! opened: link with `dsymutil`. Files are mapped into memory: one that is truncated *in place* while it is read ends
//! the process with SIGBUS, as it does for every tool that maps files; a file that is replaced by `rename` is safe.

#![deny(missing_docs)]

mod breakpad;
mod debug_id;
mod demangle;
mod dwarf;
mod dwarf_budget;
mod elf;
mod error;
mod locate;
mod macho;
mod mapped;
mod objc;
mod report;
mod search_index;
mod shared_cache;
mod symbol_file;
mod symbolizer;
mod table;

pub use coroner_scan::LookupAddress;
pub use {
    debug_id::DebugId,
    demangle::{Demangled, Language, demangle},
    error::SymbolError,
    report::{ImageSymbols, demangle_exception_types},
    symbol_file::{Arch, Call, FileKind, SourceCount, SymbolFile, SymbolSource},
    symbolizer::{ImageKey, ImageStatus, Match, Options, SymbolFrame, Symbolizer},
};
