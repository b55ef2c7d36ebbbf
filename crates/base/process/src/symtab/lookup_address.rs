//! The address for which a name is looked up.

/// An address inside the instruction to be named, as an svma (the image's own address space).
///
/// A return address points after its call, and a call that never returns is the last instruction of
/// its function: the address itself may belong to the next function, or to the next line. So it is
/// looked up one byte lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupAddress(u64);

impl LookupAddress {
    /// Creates it from the address of an instruction that was about to run.
    ///
    /// A crashed or interrupted thread's program counter, or the pc of the frame that a signal
    /// interrupted.
    #[inline]
    pub const fn of_instruction(svma: u64) -> Self {
        Self(svma)
    }

    /// Creates it from a return address, from the stack or the link register.
    #[inline]
    pub const fn of_return_address(svma: u64) -> Self {
        Self(svma.saturating_sub(1))
    }

    /// Returns the svma to look up.
    #[inline]
    pub const fn svma(self) -> u64 {
        self.0
    }
}
