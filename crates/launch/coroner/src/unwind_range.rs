//! Unwind rules for the app's own code without unwind data: JITs, interpreters, trampolines.

use std::fmt;
use std::ops::Range;

use coroner_unwind::{Architecture, RegisterError, Registration, Row, Rule};

use crate::system::walk::{MAX_RANGES, Native, RANGES};

/// A rule for finding a frame's caller, valid at every instruction of a range.
///
/// It defines the value of the stack pointer before the call (the *canonical frame address*, CFA),
/// and where, relative to it, the caller's registers were saved. Registers have their DWARF numbers
/// (System V AMD64 psABI, figure 3.36; AADWARF64, section 4.1). Callee-saved registers that the
/// rule doesn't list still have the caller's values.
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
    /// DWARF number of the stack pointer.
    pub const STACK_POINTER: u8 = <Native as Architecture>::SP;
    /// DWARF number of the frame pointer.
    pub const FRAME_POINTER: u8 = <Native as Architecture>::FP;
    /// DWARF number of the return address.
    pub const RETURN_ADDRESS: u8 = <Native as Architecture>::RA;

    /// Creates the rule `cfa = register + offset`, with `offset` in bytes.
    ///
    /// No registers are saved except, on x86_64, the return address at `cfa - 8`; on arm64 it is in
    /// x30 unless [`saved`](Self::saved) changes that.
    ///
    /// # Errors
    /// [`UnwindRangeError::BadRule`] if there is no such register.
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

    /// Creates the rule for a frame record at `register + offset` bytes.
    ///
    /// A frame record is the caller's frame pointer and, 8 bytes above it, the return address. The
    /// caller's stack is above the record: `cfa = register + offset + 16`. Code with frame pointers
    /// has its record at `(FRAME_POINTER, 0)`; ART's generic JNI trampoline at
    /// `(STACK_POINTER, 0xd0)`.
    ///
    /// # Errors
    /// [`UnwindRangeError::BadRule`] if there is no such register.
    pub fn frame_record(register: u8, offset: i32) -> Result<UnwindRule, UnwindRangeError> {
        let rule = Self::frame(register, offset.checked_add(16).ok_or(UnwindRangeError::BadRule)?)?;
        rule.saved(Self::FRAME_POINTER, -16)?.saved(Self::RETURN_ADDRESS, -8)
    }

    /// Creates the rule for the end of a stack: a thread's or coroutine's first function.
    pub const fn outermost() -> UnwindRule {
        UnwindRule(Rule::Outermost)
    }

    /// Adds a saved register: the caller's `register` is at `cfa + offset` bytes.
    ///
    /// `offset` must be a multiple of 8.
    ///
    /// # Errors
    /// [`UnwindRangeError::BadRule`] if the register can't be saved, if the offset is more than 256
    /// KiB, or if this is the rule for the end of a stack.
    pub fn saved(self, register: u8, offset: i32) -> Result<UnwindRule, UnwindRangeError> {
        let UnwindRule(Rule::Row(row)) = self else { return Err(UnwindRangeError::BadRule) };
        let row = row.with_saved::<Native>(register, offset.into()).ok_or(UnwindRangeError::BadRule)?;
        Ok(UnwindRule(Rule::Row(row)))
    }
}

/// The reason that a range was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnwindRangeError {
    /// The range is empty, or code can't have its addresses.
    BadRange,
    /// The rule contains an invalid register or offset.
    BadRule,
    /// 512 ranges are already registered, the maximum.
    Full,
}

impl std::error::Error for UnwindRangeError {}

impl fmt::Display for UnwindRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnwindRangeError::BadRange => f.write_str("invalid range: it is empty, or code can't have its addresses"),
            UnwindRangeError::BadRule => f.write_str("invalid rule: unsupported register or offset"),
            UnwindRangeError::Full => {
                write!(f, "can't register another range: {MAX_RANGES} are already registered, the maximum")
            }
        }
    }
}

/// A registered range, which is unregistered when dropped. See [`register_unwind_range`].
#[must_use = "dropping it unregisters the range"]
#[derive(Debug)]
pub struct UnwindRange(Registration);

impl UnwindRange {
    /// Keeps the range registered, and returns a number for [`UnwindRange::from_number`].
    ///
    /// For bindings, or for a range that is never unregistered.
    pub fn into_number(self) -> u64 {
        let number = self.0.to_number();
        std::mem::forget(self);
        number
    }

    /// Returns the range with this number; `None` if the number is invalid.
    ///
    /// If the range was unregistered in the meantime, dropping it again does nothing.
    pub fn from_number(number: u64) -> Option<UnwindRange> {
        Registration::from_number(number).map(UnwindRange)
    }

    /// Unregisters the range.
    ///
    /// Returns `false` if that was already done by another value with the same number.
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

/// Registers the rule for finding the callers of frames whose program counter is in `range`.
///
/// This covers walks of crashes and of live backtraces. The rule takes precedence over unwind data,
/// frame pointers and everything else; where ranges overlap, the shortest applies. Frames that were
/// unwound by it are marked as found by a registered range.
///
/// The rule must be valid at every instruction of the range. Code that builds its frame in steps
/// needs several ranges: for its first instructions, its body, and its last instructions.
///
/// Takes no lock, doesn't allocate, and works before [`install`](crate::install) and after
/// [`uninstall`](crate::Coroner::uninstall), too; any threads may call it concurrently. Unregister
/// the range before the code is removed: a walk in progress then only finds wrong callers, or none.
///
/// At most 512 ranges can be registered at a time, so a JIT should register each memory mapping
/// rather than each function.
///
/// ```
/// use coroner::UnwindRule;
///
/// # fn map_code() -> std::ops::Range<usize> { 0x1000_0000..0x1001_0000 }
/// let code = map_code();
/// // Our interpreter keeps its frame record 64 bytes above its stack pointer.
/// let rule = UnwindRule::frame_record(UnwindRule::STACK_POINTER, 64)?;
/// let registered = coroner::register_unwind_range(code, rule)?;
/// // … while the code is mapped …
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
