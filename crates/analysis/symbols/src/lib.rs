//! Symbolication: maps addresses to functions, files, lines and inlined calls.
//!
//! [`Symbolizer`] runs in the next launch or on a developer's machine. It reads ELF and Mach-O
//! files, PE files with the DWARF of GNU's tools (no PDB), separate debug files and dSYM bundles
//! found by their id, DWARF lines and inlined calls, and breakpad `.sym` files. In the crashing
//! process itself, [`coroner_process::symtab`] names addresses without allocating.
//!
//! # Addresses
//! All addresses passed in here are *svma*: the address that the image's own file assigns, which is
//! the address in the process minus the image's slide. [`LookupAddress`] makes the choice between
//! an instruction's address and a return address explicit, because a return address points to the
//! instruction *after* the call.
//!
//! # Limitations
//! A file is used only if its id (GNU build id, `LC_UUID`) matches the report's. An image without
//! an id is found by its path and marked [`Match::Unverified`]. Files are mapped into memory: if a
//! file is truncated *in place* while it is read, the process is killed by SIGBUS, as with every
//! tool that maps files. Replacing a file with `rename` is safe.

#![deny(missing_docs)]

mod archive;
mod breakpad;
mod budgeted_symbolication;
mod call;
mod debug_id;
mod debug_map;
mod debug_sections;
mod demangle;
mod dwarf;
mod dwarf_budget;
mod dwarf_pass;
mod elf;
mod entry_ranges;
mod error;
mod file_kind;
mod image_identity;
mod image_key;
mod inlined_frames;
mod line_rows;
mod macho;
mod mapped_file;
mod naming_budget;
mod objc;
#[cfg(feature = "pe")]
mod pe;
mod report_symbolication;
mod search_index;
mod shared_cache;
mod snapshot_images;
mod split_dwarf;
mod symbol_file;
mod symbol_search;
#[cfg(feature = "debuginfod")]
mod symbol_server;
mod symbol_table;
mod symbolizer;
mod variables;

pub use coroner_process::symtab::LookupAddress;
#[cfg(feature = "debuginfod")]
pub use symbol_server::Debuginfod;
pub use {
    call::Call,
    debug_id::DebugId,
    demangle::{Demangled, Language, demangle},
    error::SymbolError,
    file_kind::{Arch, FileKind},
    image_identity::identify_images,
    image_key::ImageKey,
    naming_budget::{Exhausted, LeftOut, NAMING_CONTEXT, NamingBudget},
    report_symbolication::{ImageSymbols, demangle_exception_types, name_by_report},
    snapshot_images::{SnapshotImages, SnapshotMemory, UnwindData},
    symbol_file::{SourceCount, SymbolFile},
    symbol_search::Options,
    symbol_table::SymbolSource,
    symbolizer::{ImageStatus, Match, SymbolFrame, Symbolizer},
    variables::{Extent, FrameBase, FunctionVariables, Part, Place, Pointee, TypeId, Variable},
};
