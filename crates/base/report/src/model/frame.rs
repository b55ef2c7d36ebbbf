//! Stack frames, with the functions that were inlined into them.

use super::address::{Address, RelativeAddress};
use crate::wire::{AddressKind, FoundBy};
use serde::{Deserialize, Serialize};

/// A stack frame.
///
/// The crash path writes the first five fields. The others are filled in at the next launch:
/// `module` and `module_offset` by [`Report::attribute_frames`](super::Report::attribute_frames),
/// the rest by a symbolicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Frame {
    /// The frame's address. To look up a name, use [`lookup_address`](Self::lookup_address).
    pub address: Address,
    /// Method by which the frame was found.
    pub found_by: FoundBy,
    /// Kind of the address: instruction or return address.
    pub address_kind: AddressKind,
    /// The stack pointer in this frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sp: Option<Address>,
    /// The canonical frame address: the caller's stack pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfa: Option<Address>,
    /// Path of the image that contains the address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The address relative to the load address of `module`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_offset: Option<RelativeAddress>,
    /// The function, demangled. With inlined frames this is the outermost one, which the code
    /// belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The symbol as it is in the symbol table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_function: Option<String>,
    /// Whether the name is one that the dying process found ([`SymbolName`](super::SymbolName)).
    ///
    /// Such a name is the nearest symbol in the process's own images, without inlined calls. It
    /// remains if no symbol file has a better one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub named_in_process: bool,
    /// Start address of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_address: Option<Address>,
    /// Source file. With inlined frames, the file that calls the outermost inlined function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line in the source file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Functions inlined here, innermost first; the last one was inlined into `function`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<InlinedFrame>,
    /// Whether the frame is the app's own code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_app: Option<bool>,
}

/// A function inlined into another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct InlinedFrame {
    /// Name of the function, demangled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Name of the function, mangled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_function: Option<String>,
    /// Source file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

impl Frame {
    /// The address whose name and line are this frame's.
    ///
    /// For a return address this is the byte before it, which belongs to the call: the call may be
    /// the last instruction of its function.
    pub fn lookup_address(&self) -> Address {
        if self.address_kind == AddressKind::INSTRUCTION {
            self.address
        } else {
            Address(self.address.0.wrapping_sub(1))
        }
    }

    /// Trustworthiness of the frame, in the terms of Breakpad and Sentry.
    ///
    /// One of `context`, `cfi`, `fp`, `prewalked` and `scan`.
    pub fn trust(&self) -> &'static str {
        match self.found_by {
            FoundBy::CONTEXT => "context",
            FoundBy::CFI
            | FoundBy::COMPACT
            | FoundBy::SFRAME
            | FoundBy::CODE
            | FoundBy::SIGNAL_FRAME
            | FoundBy::REGISTERED => "cfi",
            FoundBy::FRAME_POINTER => "fp",
            FoundBy::ASYNC | FoundBy::MANAGED => "prewalked",
            _ => "scan",
        }
    }
}

/// Frames that were left out of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Skipped {
    /// Number of the report's frames that come before the omitted ones.
    pub after: usize,
    /// Number of omitted frames.
    pub count: u64,
}
