//! Code that the app makes itself and that no unwind data describe: JITs, interpreters, trampolines.

use std::ffi::c_void;

use coroner::{UnwindRange, UnwindRangeError};

use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};

/// A register that was saved; see coroner_unwind_rule.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SavedRegister {
    /// Its number in DWARF.
    pub number: u8,
    /// Where it was saved: so many bytes from the canonical frame address, a multiple of 8, mostly below 0.
    pub offset: i32,
}

/// How the caller of a frame is found, at every instruction of a range: where the stack pointer was before the call (the canonical
/// frame address), and where, from there, the caller's registers were saved.
///
/// Registers have the numbers of DWARF. x86_64: 7 is rsp, 6 rbp, 16 the return address; 3 (rbx) and 12 to 15 (r12 to r15) can be
/// saved, too. arm64: 31 is sp, 29 x29 (the frame pointer), 30 x30 (the return address); 19 to 28 can be saved, too.
///
/// A frame record 0xd0 bytes above the stack pointer, as that of ART's generic JNI trampoline, is on x86_64 the canonical frame
/// address 7 + 0xe0 with {6, -16} and {16, -8} saved, on arm64 31 + 0xe0 with {29, -16} and {30, -8}.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UnwindRule {
    /// `sizeof(coroner_unwind_rule)`: which fields the caller knows. Those after it are 0.
    pub size: usize,
    /// The canonical frame address is this register's value ...
    pub cfa_register: u8,
    /// ... and so many bytes.
    pub cfa_offset: i32,
    /// The registers that were saved. Without 16 on x86_64 the return address is 8 bytes below the canonical frame address; without
    /// 30 on arm64 it is in x30. Those that a call preserves and that are not named are the caller's still.
    pub saved: *const SavedRegister,
    /// How many there are; with 0 `saved` may be NULL.
    pub saved_count: usize,
    /// Stacks end in this range: a thread's or coroutine's first function. The rest is not looked at.
    pub outermost: bool,
}

// SAFETY: its size comes first, and numbers, flags and pointers may be 0.
unsafe impl SizedStruct for UnwindRule {
    const NAME: &'static str = "coroner_unwind_rule";
    const LEAST: usize = std::mem::offset_of!(UnwindRule, outermost);
}

/// # Safety
/// `rule.saved` points to `rule.saved_count` elements.
unsafe fn rule_of(rule: &UnwindRule) -> Result<coroner::UnwindRule, UnwindRangeError> {
    if rule.outermost {
        return Ok(coroner::UnwindRule::outermost());
    }
    let made = coroner::UnwindRule::frame(rule.cfa_register, rule.cfa_offset)?;
    if rule.saved_count == 0 {
        return Ok(made);
    }
    // More than there are registers is a mistake, and would be a long read.
    if rule.saved.is_null() || rule.saved_count > 32 {
        return Err(UnwindRangeError::BadRule);
    }
    // SAFETY: as the caller promises.
    let saved = unsafe { std::slice::from_raw_parts(rule.saved, rule.saved_count) };
    saved.iter().try_fold(made, |rule, register| rule.saved(register.number, register.offset))
}

/// Tells every walk of this process, of crashes and of live backtraces, how to find the caller of a frame whose program counter is in
/// the `size` bytes at `start`: code of a JIT, of an interpreter, of a trampoline. It comes before unwind data, frame pointers and
/// all else; where ranges overlap the shortest counts. The rule holds at every instruction of the range.
///
/// It works before coroner_install and after coroner_uninstall as well. At most 512 ranges are registered at a time, beyond which this
/// answers CORONER_STATUS_FULL: a JIT registers each piece of memory that it maps, and not each function.
///
/// `registration` gets a number to take the range back with, before the code goes; NULL if it never will be.
///
/// # Safety
/// `rule` points to as many bytes as its `size` says, its `saved` to `saved_count` elements; `registration` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_register_unwind_range(
    start: *const c_void,
    size: usize,
    rule: *const UnwindRule,
    registration: *mut u64,
) -> Status {
    guarded(|| {
        if rule.is_null() {
            return Err(fail(Status::InvalidArgument, "rule is NULL"));
        }
        // SAFETY: as the caller promises.
        let rule = unsafe { sized::read(rule) }?;
        let start = start as usize;
        let registered = start.checked_add(size).ok_or(UnwindRangeError::BadRange).and_then(|end| {
            // SAFETY: as the caller promises.
            let rule = unsafe { rule_of(&rule) }?;
            coroner::register_unwind_range(start..end, rule)
        });
        let number = registered.map_err(|error| {
            let status = if error == UnwindRangeError::Full { Status::Full } else { Status::InvalidArgument };
            fail(status, error.to_string())
        })?;
        let number = number.into_number();
        // SAFETY: as the caller promises.
        if let Some(registration) = unsafe { registration.as_mut() } {
            *registration = number;
        }
        Ok(())
    })
}

/// Takes a range back that coroner_register_unwind_range registered under this number. CORONER_STATUS_INVALID_ARGUMENT where none is.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_unregister_unwind_range(registration: u64) -> Status {
    guarded(|| match UnwindRange::from_number(registration).map(UnwindRange::unregister) {
        Some(true) => Ok(()),
        _ => Err(fail(Status::InvalidArgument, "no range is registered under this number")),
    })
}
