//! The address that a name is looked up for.

/// An address inside the instruction that is to be named, as an svma (the image's own address space).
///
/// A return address points behind its call, and a call that never returns is the last instruction of its function: the
/// address itself may belong to the next function, or to the next line. So it is looked up one byte lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupAddress(u64);

impl LookupAddress {
    /// The address of an instruction that was about to run: a crashed or interrupted thread's program counter, or the
    /// pc of the frame that a signal interrupted.
    #[inline]
    pub const fn of_instruction(svma: u64) -> Self {
        Self(svma)
    }

    /// A return address, from the stack or the link register.
    #[inline]
    pub const fn of_return_address(svma: u64) -> Self {
        Self(svma.saturating_sub(1))
    }

    /// The svma to look up.
    #[inline]
    pub const fn svma(self) -> u64 {
        self.0
    }
}
