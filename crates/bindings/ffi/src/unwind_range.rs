//! Unwind rules for code without unwind data that the app generates: JITs, interpreters,
//! trampolines.

use std::ffi::c_void;

use coroner::{UnwindRange, UnwindRangeError};

use crate::sized::{self, SizedStruct};
use crate::status::{Status, fail, guarded};

/// A saved register; see coroner_unwind_rule.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SavedRegister {
    /// The register's DWARF number.
    pub number: u8,
    /// Offset in bytes from the canonical frame address, a multiple of 8, usually negative.
    pub offset: i32,
}

/// A rule to find a frame's caller, the same at every instruction of a range.
///
/// The canonical frame address is the stack pointer's value before the call; the caller's registers
/// were saved at offsets from it.
///
/// Registers have their DWARF numbers. x86_64: 7 is rsp, 6 rbp, 16 the return address; 3 (rbx) and
/// 12 to 15 (r12 to r15) can also be saved. arm64: 31 is sp, 29 x29 (the frame pointer), 30 x30
/// (the return address); 19 to 28 can also be saved.
///
/// Example: ART's generic JNI trampoline has a frame record 0xd0 bytes above the stack pointer. On
/// x86_64 its canonical frame address is 7 + 0xe0, with {6, -16} and {16, -8} saved; on arm64 it is
/// 31 + 0xe0, with {29, -16} and {30, -8}.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct UnwindRule {
    /// `sizeof(coroner_unwind_rule)`. Fields beyond it are taken as 0.
    pub size: usize,
    /// The register whose value plus `cfa_offset` is the canonical frame address.
    pub cfa_register: u8,
    /// Bytes to add to the value of `cfa_register`.
    pub cfa_offset: i32,
    /// The saved registers.
    ///
    /// If 16 is not listed on x86_64, the return address is 8 bytes below the canonical frame
    /// address; if 30 is not listed on arm64, it is in x30. Callee-saved registers that are not
    /// listed still have the caller's values.
    pub saved: *const SavedRegister,
    /// The number of saved registers; if it is 0, `saved` may be NULL.
    pub saved_count: usize,
    /// Whether stacks end in this range: a thread's or coroutine's first function.
    ///
    /// If set, the fields above are ignored.
    pub outermost: bool,
}

// SAFETY: the size is the first field, and 0 is valid for numbers, flags and pointers.
unsafe impl SizedStruct for UnwindRule {
    const NAME: &'static str = "coroner_unwind_rule";
    const MIN_SIZE: usize = std::mem::offset_of!(UnwindRule, outermost);
}

/// Converts a rule.
///
/// # Safety
/// `rule.saved` must point to `rule.saved_count` elements.
unsafe fn convert_rule(rule: &UnwindRule) -> Result<coroner::UnwindRule, UnwindRangeError> {
    if rule.outermost {
        return Ok(coroner::UnwindRule::outermost());
    }
    let frame = coroner::UnwindRule::frame(rule.cfa_register, rule.cfa_offset)?;
    if rule.saved_count == 0 {
        return Ok(frame);
    }
    // A count above the number of registers is a mistake, and would read far out of bounds.
    if rule.saved.is_null() || rule.saved_count > 32 {
        return Err(UnwindRangeError::BadRule);
    }
    // SAFETY: as the caller promises.
    let saved = unsafe { std::slice::from_raw_parts(rule.saved, rule.saved_count) };
    saved.iter().try_fold(frame, |rule, register| rule.saved(register.number, register.offset))
}

/// Registers the unwind rule for frames whose program counter is in `size` bytes at `start`.
///
/// For the code of a JIT, an interpreter or a trampoline. The rule holds at every instruction of
/// the range, applies to all crash and live backtraces of this process, and takes precedence over
/// unwind data, frame pointers and all other methods. Where ranges overlap, the shortest applies.
///
/// Can be called before coroner_install and after coroner_uninstall. Returns CORONER_STATUS_FULL if
/// 512 ranges are registered: a JIT should register each memory mapping rather than each function.
///
/// `registration` receives a number for coroner_unregister_unwind_range, to be called before the
/// code is unmapped. It may be NULL if the range is never unregistered.
///
/// # Safety
/// `rule->saved` must have `saved_count` elements; `registration` must be NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_register_unwind_range(
    start: *const c_void,
    size: usize,
    rule: *const UnwindRule,
    registration: *mut u64,
) -> Status {
    guarded(|| {
        if rule.is_null() {
            return Err(fail(Status::InvalidArgument, "`rule` is NULL"));
        }
        // SAFETY: as the caller promises.
        let rule = unsafe { sized::read(rule) }?;
        let start = start as usize;
        let registered = start.checked_add(size).ok_or(UnwindRangeError::BadRange).and_then(|end| {
            // SAFETY: as the caller promises.
            let rule = unsafe { convert_rule(&rule) }?;
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

/// Unregisters a range. Returns CORONER_STATUS_INVALID_ARGUMENT if the number is unknown.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_unregister_unwind_range(registration: u64) -> Status {
    guarded(|| match UnwindRange::from_number(registration).map(UnwindRange::unregister) {
        Some(true) => Ok(()),
        _ => Err(fail(Status::InvalidArgument, format!("no range is registered under the number {registration}"))),
    })
}
