//! Stacks, by the unwinder that the system or the standard library has, named at once: the process is well.

use std::sync::OnceLock;

use coroner_process::registers::Registers;
use coroner_report::wire::Frame;
use coroner_unwind::RangeTable;

use crate::frame_text::{InlinedText, NativeText, lines};

/// Numbers of registers are this architecture's.
pub(crate) type Native = coroner_unwind::X86_64;

pub(crate) const MAX_RANGES: usize = 512;

/// No walk asks it.
pub(crate) static RANGES: RangeTable<MAX_RANGES> = RangeTable::new();

/// More frames than that are those of a recursion, of which the innermost are kept.
const MAX_FRAMES: usize = 256;

/// The addresses of all frames from that of the caller of the function that calls this, innermost first. `here` is the address of a local
/// variable of that function.
fn walk(here: usize) -> Vec<usize> {
    let mut addresses = Vec::new();
    backtrace::trace(|frame| {
        // Stacks grow downwards: the frames of who was called from there lie below.
        if frame.sp() as usize > here {
            addresses.push(frame.ip() as usize);
        }
        true
    });
    addresses
}

/// Says which function calls it: how many frames there are from that on stands in the program counter's place. No other register is known.
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
    /// Made when it is asked for: of most panics, which somebody catches, it never is.
    text: OnceLock<String>,
}

impl Stack {
    /// That of the caller of a function that is running on this thread. `registers` are that function's ([`current_registers`]).
    #[inline(never)]
    pub(crate) fn above(registers: &Registers) -> Self {
        let here = 0_u8;
        let mut addresses = walk(std::hint::black_box(&raw const here) as usize);
        let callers = (registers.pc as usize).saturating_sub(1);
        addresses.drain(..addresses.len().saturating_sub(callers));
        addresses.truncate(MAX_FRAMES);
        Self { addresses, text: OnceLock::new() }
    }

    /// No frame is left for the next launch to name.
    #[allow(clippy::unused_self)] // As where there are some.
    pub(crate) fn frames(&self) -> &[Frame] {
        &[]
    }

    /// The frames with their names, as the next launch reads them.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        let text = self.text.get_or_init(|| lines(self.addresses.iter().map(|address| named(*address))));
        (!text.is_empty()).then_some(text.as_bytes())
    }
}

/// A frame by its return address: the function that stands in memory, and those that were inlined into it.
fn named(address: usize) -> NativeText {
    let mut functions = Vec::new();
    // The crate looks up the byte before a return address itself.
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
