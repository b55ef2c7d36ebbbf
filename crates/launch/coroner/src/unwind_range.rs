//! Code that the app makes itself and that no unwind data describe: JITs, interpreters, trampolines.

use std::fmt;
use std::ops::Range;

use coroner_unwind::{Architecture, RegisterError, Registration, Row, Rule};

use crate::system::walk::{MAX_RANGES, Native, RANGES};

/// How the caller of a frame is found, at every instruction of a range: where the stack pointer was before the call (the *canonical
/// frame address*, CFA) and where, from there, the caller's registers were saved.
///
/// Registers have the numbers of DWARF (System V AMD64 psABI, figure 3.36; AADWARF64, section 4.1). Those that a call preserves and
/// that the rule does not name are the caller's still.
///
/// | | x86_64 | arm64 |
/// |---|---|---|
/// | [`UnwindRule::STACK_POINTER`] | 7 (rsp) | 31 (sp) |
/// | [`UnwindRule::FRAME_POINTER`] | 6 (rbp) | 29 (x29) |
/// | [`UnwindRule::RETURN_ADDRESS`] | 16 (none has it) | 30 (x30) |
/// | others that can be saved | 3 (rbx), 12 to 15 (r12 to r15) | 19 to 28 (x19 to x28) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindRule(Rule);

impl UnwindRule {
    /// The number of the stack pointer.
    pub const STACK_POINTER: u8 = <Native as Architecture>::SP;
    /// The number of the frame pointer.
    pub const FRAME_POINTER: u8 = <Native as Architecture>::FP;
    /// The number of the return address.
    pub const RETURN_ADDRESS: u8 = <Native as Architecture>::RA;

    /// `cfa = register + offset` bytes. Nothing is saved but, on x86_64, the return address, at `cfa - 8`; on arm64 it is in
    /// x30 until [`saved`](Self::saved) says otherwise.
    ///
    /// # Errors
    /// [`UnwindRangeError::BadRule`] where there is no such register.
    pub fn frame(register: u8, offset: i32) -> Result<UnwindRule, UnwindRangeError> {
        // x0 to x30 and sp; rax to r15.
        let last = if <Native as Architecture>::LINK_REGISTER { 31 } else { 15 };
        if register > last {
            return Err(UnwindRangeError::BadRule);
        }
        let row = Row::new(register, offset);
        let rule = UnwindRule(Rule::Row(row));
        if <Native as Architecture>::LINK_REGISTER { Ok(rule) } else { rule.saved(Self::RETURN_ADDRESS, -8) }
    }

    /// A frame record (the caller's frame pointer, 8 bytes above it the return address) at `register + offset` bytes, with the
    /// caller's stack above it: `cfa = register + offset + 16`. Code that keeps frame pointers has its own at
    /// `(FRAME_POINTER, 0)`; ART's generic JNI trampoline at `(STACK_POINTER, 0xd0)`.
    ///
    /// # Errors
    /// [`UnwindRangeError::BadRule`] where there is no such register.
    pub fn frame_record(register: u8, offset: i32) -> Result<UnwindRule, UnwindRangeError> {
        let rule = Self::frame(register, offset.checked_add(16).ok_or(UnwindRangeError::BadRule)?)?;
        rule.saved(Self::FRAME_POINTER, -16)?.saved(Self::RETURN_ADDRESS, -8)
    }

    /// Here stacks end: a thread's or coroutine's first function.
    pub const fn outermost() -> UnwindRule {
        UnwindRule(Rule::Outermost)
    }

    /// The same rule, and the caller's `register` was saved at `cfa + offset` bytes, a multiple of 8.
    ///
    /// # Errors
    /// [`UnwindRangeError::BadRule`] where such a register can't be saved, or not there (more than 256 KiB away), or the stack
    /// has its end here.
    pub fn saved(self, register: u8, offset: i32) -> Result<UnwindRule, UnwindRangeError> {
        let UnwindRule(Rule::Row(row)) = self else { return Err(UnwindRangeError::BadRule) };
        let row = row.with_saved::<Native>(register, offset.into()).ok_or(UnwindRangeError::BadRule)?;
        Ok(UnwindRule(Rule::Row(row)))
    }
}

/// Why a range was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnwindRangeError {
    /// It holds no addresses, or none that code can have.
    BadRange,
    /// The rule names a register, or a place, that it can't.
    BadRule,
    /// 512 ranges are registered.
    Full,
}

impl std::error::Error for UnwindRangeError {}

impl fmt::Display for UnwindRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnwindRangeError::BadRange => f.write_str("the range holds no addresses that code can have"),
            UnwindRangeError::BadRule => f.write_str("the rule names a register or a place that it can't"),
            UnwindRangeError::Full => write!(f, "{MAX_RANGES} ranges are registered, the most that can be"),
        }
    }
}

/// A range that is registered: dropping it takes it back. See [`register_unwind_range`].
#[must_use = "dropping it takes the range back"]
#[derive(Debug)]
pub struct UnwindRange(Registration);

impl UnwindRange {
    /// Leaves it registered, and gives a number for [`UnwindRange::from_number`]: for other languages, or for ever.
    pub fn into_number(self) -> u64 {
        let number = self.0.to_number();
        std::mem::forget(self);
        number
    }

    /// What had that number; `None` for numbers that none has. If it was taken back meanwhile, dropping it again does nothing.
    pub fn from_number(number: u64) -> Option<UnwindRange> {
        Registration::from_number(number).map(UnwindRange)
    }

    /// Takes the range back; `false` where that was done before, by another one of the same number.
    pub fn unregister(self) -> bool {
        let registration = self.0;
        std::mem::forget(self);
        RANGES.unregister(registration)
    }
}

impl Drop for UnwindRange {
    fn drop(&mut self) {
        RANGES.unregister(self.0);
    }
}

/// Tells every walk of this process, of crashes and of live backtraces, how to find the caller of a frame whose program counter is
/// in `range`. It comes before unwind data, frame pointers and all else; where ranges overlap the shortest counts. Frames that were
/// left by it are marked as found by a registered range.
///
/// The rule holds at every instruction of the range. Code that builds its frame by steps has several ranges: its first
/// instructions, its body, its last ones.
///
/// Takes no lock, allocates nothing, and works before [`install`](crate::install) and after [`uninstall`](crate::Coroner::uninstall)
/// as well; any threads may do it at once. Take the range back before the code goes: a walk that is under way then only finds wrong
/// callers, or none.
///
/// At most 512 ranges are registered at a time, so a JIT does it for each piece of memory that it maps and not for each function.
///
/// ```
/// use coroner::UnwindRule;
///
/// # fn map_code() -> std::ops::Range<usize> { 0x1000_0000..0x1001_0000 }
/// let code = map_code();
/// // Our interpreter keeps its frame record 64 bytes above its stack pointer.
/// let rule = UnwindRule::frame_record(UnwindRule::STACK_POINTER, 64)?;
/// let registered = coroner::register_unwind_range(code, rule)?;
/// // … as long as the code is there …
/// drop(registered);
/// # Ok::<(), coroner::UnwindRangeError>(())
/// ```
///
/// # Errors
/// See [`UnwindRangeError`].
pub fn register_unwind_range(range: Range<usize>, rule: UnwindRule) -> Result<UnwindRange, UnwindRangeError> {
    let range = (range.start as u64..range.end as u64).into();
    RANGES.register(range, &rule.0).map(UnwindRange).map_err(|error| match error {
        RegisterError::BadRange => UnwindRangeError::BadRange,
        RegisterError::Full => UnwindRangeError::Full,
        _ => UnwindRangeError::BadRule,
    })
}
