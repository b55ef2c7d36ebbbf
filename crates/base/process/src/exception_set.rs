//! Sets of Mach exceptions (<mach/exception_types.h>).

/// A set of Mach exceptions, one bit each. Only Darwin has them.
///
/// Bit `n` is exception `n`, as in `exception_mask_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExceptionSet(u32);

impl ExceptionSet {
    /// No exception: all crashes are left to the signal monitor.
    pub const EMPTY: ExceptionSet = ExceptionSet(0);
    /// `EXC_BAD_ACCESS`: unmapped memory, or memory that doesn't allow the access.
    pub const BAD_ACCESS: ExceptionSet = ExceptionSet(1 << 1);
    /// `EXC_BAD_INSTRUCTION`: an undefined or privileged instruction.
    pub const BAD_INSTRUCTION: ExceptionSet = ExceptionSet(1 << 2);
    /// `EXC_ARITHMETIC`: a division by zero or a similar error.
    pub const ARITHMETIC: ExceptionSet = ExceptionSet(1 << 3);
    /// `EXC_SOFTWARE`: raised by software.
    pub const SOFTWARE: ExceptionSet = ExceptionSet(1 << 5);
    /// `EXC_BREAKPOINT`: a trap instruction.
    pub const BREAKPOINT: ExceptionSet = ExceptionSet(1 << 6);
    /// `EXC_GUARD`: a guarded resource was misused.
    pub const GUARD: ExceptionSet = ExceptionSet(1 << 12);

    /// All of the above.
    pub const CRASHES: ExceptionSet = ExceptionSet::BAD_ACCESS
        .with(ExceptionSet::BAD_INSTRUCTION)
        .with(ExceptionSet::ARITHMETIC)
        .with(ExceptionSet::SOFTWARE)
        .with(ExceptionSet::BREAKPOINT)
        .with(ExceptionSet::GUARD);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: ExceptionSet) -> ExceptionSet {
        ExceptionSet(self.0 | other.0)
    }

    /// Returns this set without the exceptions of `other`.
    #[must_use]
    pub const fn without(self, other: ExceptionSet) -> ExceptionSet {
        ExceptionSet(self.0 & !other.0)
    }

    /// Whether all of `other` are in the set.
    pub const fn contains(self, other: ExceptionSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set as `exception_mask_t`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}
