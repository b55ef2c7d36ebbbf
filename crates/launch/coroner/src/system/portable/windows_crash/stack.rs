//! Walks the crashed thread's stack with the system's unwinder and the images' unwind data.
//!
//! Source: learn.microsoft.com, "x64 exception handling".

use std::ffi::c_void;
use std::ptr::null_mut;

use coroner_process::registers::X86_64Registers;
use coroner_report::wire::{AddressKind, FoundBy, Frame, WalkEnd};
use windows_sys::Win32::System::Diagnostics::Debug::{
    CONTEXT, RtlLookupFunctionEntry, RtlVirtualUnwind, UNW_FLAG_NHANDLER,
};

use super::memory;

/// A context with the alignment that the processor requires for its vector registers: `CONTEXT` of
/// winnt.h has it, but not that of the bindings.
#[derive(Clone, Copy, Default)]
#[repr(C, align(16))]
pub(super) struct AlignedContext(pub(super) CONTEXT);

impl AlignedContext {
    pub(super) fn get(&mut self) -> *mut CONTEXT {
        &raw mut self.0
    }
}

/// Returns the registers in the order of their DWARF numbers.
pub(super) fn registers(context: &CONTEXT) -> X86_64Registers {
    let CONTEXT { Rax, Rdx, Rcx, Rbx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15, Rip, EFlags, .. } =
        *context;
    let gpr = [Rax, Rdx, Rcx, Rbx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15];
    X86_64Registers { gpr, pc: Rip, flags: EFlags.into() }
}

/// Numbers of innermost and of outermost frames that are kept.
const FIRST: usize = 192;
const LAST: usize = 64;
/// Maximum number of frames: more than fit in a stack of 1 MiB.
const MAX_FRAMES: usize = 100_000;

/// The known part of a stack, also if the walk ends with a fault.
#[derive(Clone, Copy)]
pub(super) struct Frames {
    first: [Frame; FIRST],
    /// A ring buffer.
    last: [Frame; LAST],
    count: usize,
    pub(super) end: WalkEnd,
}

impl Frames {
    pub(super) fn new() -> Self {
        Self { first: [Frame::default(); FIRST], last: [Frame::default(); LAST], count: 0, end: WalkEnd::FAULT }
    }

    fn push(&mut self, frame: Frame) {
        let behind = self.count.saturating_sub(FIRST) % LAST;
        let place = if self.count < FIRST { self.first.get_mut(self.count) } else { self.last.get_mut(behind) };
        if let Some(place) = place {
            *place = frame;
        }
        self.count += 1;
    }

    /// Passes the frames to `with`, each with the number of frames left out before it.
    pub(super) fn each(&self, mut with: impl FnMut(u64, &Frame)) {
        for frame in self.first.iter().take(self.count) {
            with(0, frame);
        }
        let behind = self.count.saturating_sub(FIRST);
        let kept = behind.min(LAST);
        for number in behind - kept..behind {
            let left_out = if number == behind - kept { number as u64 } else { 0 };
            if let Some(frame) = self.last.get(number % LAST) {
                with(left_out, frame);
            }
        }
    }

    /// Walks up from `context`, which is overwritten. `kind` is the kind of its program counter.
    pub(super) fn walk(&mut self, context: &mut AlignedContext, kind: AddressKind) {
        (self.count, self.end) = (0, WalkEnd::FAULT);
        let (mut found_by, mut address_kind) = (FoundBy::CONTEXT, kind);
        self.end = loop {
            let CONTEXT { Rip: pc, Rsp: sp, .. } = context.0;
            if pc == 0 && self.count > 0 {
                break WalkEnd::ROOT;
            }
            if self.count == MAX_FRAMES {
                break WalkEnd::LIMIT;
            }
            self.push(Frame { pc, found_by, address_kind, sp: Some(sp), cfa: None });
            if sp % 8 != 0 || memory::u64_at(sp).is_none() {
                break WalkEnd::UNREADABLE;
            }
            let lookup = if address_kind == AddressKind::RETURN { pc.wrapping_sub(1) } else { pc };
            found_by = if unwind(context, lookup) {
                FoundBy::CFI
            } else if self.count == 1 {
                // No unwind data: a function that has not moved the stack pointer, or a call to an
                // address without code. The return address is at the stack pointer.
                context.0.Rip = memory::u64_at(sp).unwrap_or(0);
                context.0.Rsp = sp.wrapping_add(8);
                FoundBy::STACK_TOP
            } else {
                break WalkEnd::NO_RULE;
            };
            if context.0.Rsp <= sp {
                break WalkEnd::NO_PROGRESS;
            }
            address_kind = AddressKind::RETURN;
        };
    }
}

/// Unwinds to the caller by the unwind data of the function at `lookup`.
///
/// Returns `false` if it has none.
fn unwind(context: &mut AlignedContext, lookup: u64) -> bool {
    let mut base = 0;
    // SAFETY: one number is written; no history is kept.
    let entry = unsafe { RtlLookupFunctionEntry(lookup, &raw mut base, null_mut()) };
    if entry.is_null() {
        return false;
    }
    let (pc, mut handler_data, mut establisher) = (context.0.Rip, null_mut::<c_void>(), 0);
    // SAFETY: the entry is the function's. The call reads the stack; a fault gets to the filter,
    // which ends the walk.
    unsafe {
        RtlVirtualUnwind(
            UNW_FLAG_NHANDLER,
            base,
            pc,
            entry,
            context.get(),
            &raw mut handler_data,
            &raw mut establisher,
            null_mut(),
        );
    }
    true
}

/// Unwinds from a function that is running on this thread to its caller.
pub(super) fn step(context: &mut AlignedContext) {
    let pc = context.0.Rip;
    unwind(context, pc);
}
