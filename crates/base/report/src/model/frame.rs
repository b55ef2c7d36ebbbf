//! A frame of a stack, with the functions that were inlined there.

use super::address::{Address, RelativeAddress};
use crate::wire::{AddressKind, FoundBy};
use serde::{Deserialize, Serialize};

/// A frame of a stack.
///
/// The first five fields are what the crash path wrote. The others are filled in at the next launch: `module` and
/// `module_offset` by [`Report::attribute_frames`](super::Report::attribute_frames), the rest by a symbolicator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Frame {
    /// The address. To look a name up use [`lookup_address`](Self::lookup_address).
    pub address: Address,
    /// How it was found.
    pub found_by: FoundBy,
    /// What the address is.
    pub address_kind: AddressKind,
    /// The stack pointer in this frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sp: Option<Address>,
    /// The canonical frame address: the caller's stack pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cfa: Option<Address>,
    /// Path of the image that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// The address relative to that image's load address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module_offset: Option<RelativeAddress>,
    /// The function, demangled. With inlined frames this is the outermost one, the function that the code belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The symbol, as the symbol table has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub raw_function: Option<String>,
    /// The name is the one that the process found as it died ([`SymbolName`](super::SymbolName)): the nearest that its own
    /// images' symbol tables have, without inlined calls. No symbol file had a better one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub named_in_process: bool,
    /// Where the function starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_address: Option<Address>,
    /// Source file. With inlined frames: of the call of the outermost inlined function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Line in it, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Column, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Functions inlined here, innermost first; the last was inlined into `function`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inlined: Vec<InlinedFrame>,
    /// Whether it is the app's own code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_app: Option<bool>,
}

/// A function inlined into another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct InlinedFrame {
    /// Its name, demangled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Its name, mangled.
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
    /// The address whose name and line are this frame's: of a return address the byte before it, which belongs to the
    /// call (the call may be the last instruction of its function).
    pub fn lookup_address(&self) -> Address {
        if self.address_kind == AddressKind::INSTRUCTION {
            self.address
        } else {
            Address(self.address.0.wrapping_sub(1))
        }
    }

    /// How far the frame can be trusted, in the words of Breakpad and Sentry: `context`, `cfi`, `fp`, `prewalked` or
    /// `scan`.
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

/// Frames that are not in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Skipped {
    /// How many of the report's frames come before them.
    pub after: usize,
    /// How many they are.
    pub count: u64,
}
