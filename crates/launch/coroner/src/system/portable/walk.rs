//! Captures stacks with the unwinder of the system or the standard library.
//!
//! The stacks are named immediately, because the process is not crashing.

use std::sync::OnceLock;

use coroner_process::registers::Registers;
use coroner_report::wire::Frame;
use coroner_unwind::RangeTable;

use crate::frame_text::{InlinedText, NativeText, lines};

/// The architecture for register numbers.
pub(crate) type Native = coroner_unwind::X86_64;

pub(crate) const MAX_RANGES: usize = 512;

/// The registered unwind ranges, which no walk on this system uses.
pub(crate) static RANGES: RangeTable<MAX_RANGES> = RangeTable::new();

/// Maximum number of frames. Only recursion has more; its innermost frames are kept.
const MAX_FRAMES: usize = 256;

/// Returns the addresses of all frames above the calling function, innermost first.
///
/// `here` is the address of a local variable of the calling function.
fn walk(here: usize) -> Vec<usize> {
    let mut addresses = Vec::new();
    backtrace::trace(|frame| {
        // Stacks grow downwards, so frames of functions called from there have lower addresses.
        if frame.sp() as usize > here {
            addresses.push(frame.ip() as usize);
        }
        true
    });
    addresses
}

/// Identifies the calling function by the number of frames from it on, in place of the program
/// counter.
///
/// No other register is set.
#[inline(never)]
pub fn current_registers() -> Registers {
    let here = 0_u8;
    let depth = walk(std::hint::black_box(&raw const here) as usize).len() as u64;
    Registers { pc: depth, ..Registers::default() }
}

/// A stack of this thread.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    /// Innermost first.
    addresses: Vec<usize>,
    /// Created when needed. Most panics are caught and never need it.
    text: OnceLock<String>,
}

impl Stack {
    /// Captures the stack of the caller of a function that is running on this thread, whose
    /// registers are `registers` ([`current_registers`]).
    #[inline(never)]
    pub(crate) fn above(registers: &Registers) -> Self {
        let here = 0_u8;
        let mut addresses = walk(std::hint::black_box(&raw const here) as usize);
        let callers = (registers.pc as usize).saturating_sub(1);
        addresses.drain(..addresses.len().saturating_sub(callers));
        addresses.truncate(MAX_FRAMES);
        Self { addresses, text: OnceLock::new() }
    }

    /// Returns no frames, because all are already named.
    #[allow(clippy::unused_self)] // The same signature as on other systems.
    pub(crate) fn frames(&self) -> &[Frame] {
        &[]
    }

    /// Returns the frames with names, in the form that the next launch reads.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        let text = self.text.get_or_init(|| lines(self.addresses.iter().map(|address| named(*address))));
        (!text.is_empty()).then_some(text.as_bytes())
    }
}

/// Names a frame by its return address: its function, and the functions inlined there.
fn named(address: usize) -> NativeText {
    let mut functions = Vec::new();
    // The crate looks up the byte before a return address by itself.
    backtrace::resolve(address as *mut std::ffi::c_void, |symbol| {
        functions.push(InlinedText {
            function: symbol.name().map(|name| format!("{name:#}")),
            file: symbol.filename().map(|file| file.to_string_lossy().into_owned()),
            line: symbol.lineno(),
            column: symbol.colno(),
        });
    });
    let whole = functions.pop().unwrap_or_default();
    NativeText { address: address as u64, whole, inlined: functions }
}
