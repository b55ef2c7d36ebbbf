//! What the processor says of a fault.

/// How a faulting instruction touched memory. The numbers are part of the report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// A load.
    Read = 1,
    /// A store.
    Write = 2,
    /// An instruction fetch.
    Execute = 3,
}

/// What the processor said of a fault, beside the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultState {
    /// The address that the processor reported: cr2 on x86_64, FAR on arm64. Of an earlier fault where this is no memory
    /// fault.
    pub address: u64,
    /// The trap's number on x86_64 (14 is a page fault); on arm64 0 on Linux and Darwin's exception number there.
    pub trap: u64,
    /// The page-fault error code on x86_64, the exception syndrome (ESR) on arm64 where the kernel gives it.
    pub error: u64,
}

impl FaultState {
    /// How the faulting instruction touched memory, if the processor says.
    #[cfg(target_arch = "x86_64")]
    pub fn access(&self) -> Option<Access> {
        /// The page-fault exception, #PF (Intel SDM volume 3, 6.15).
        const PAGE_FAULT: u64 = 14;
        if self.trap != PAGE_FAULT {
            return None;
        }
        // Bit 4 is an instruction fetch, bit 1 a write (Intel SDM volume 3, figure 4-12).
        Some(match (self.error & 0x10 != 0, self.error & 2 != 0) {
            (true, _) => Access::Execute,
            (false, true) => Access::Write,
            (false, false) => Access::Read,
        })
    }

    /// How the faulting instruction touched memory, if the processor says.
    #[cfg(target_arch = "aarch64")]
    pub fn access(&self) -> Option<Access> {
        // The exception class: instruction or data abort from a lower or the same level (Arm ARM, ESR_ELx).
        match self.error >> 26 & 0x3f {
            0x20 | 0x21 => Some(Access::Execute),
            // WnR, bit 6.
            0x24 | 0x25 => Some(if self.error & 0x40 != 0 { Access::Write } else { Access::Read }),
            _ => None,
        }
    }
}
