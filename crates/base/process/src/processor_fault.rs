//! The processor's description of a fault.

/// A faulting instruction's memory access. The numbers are part of the report format.
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

/// The processor's description of a fault, apart from the registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultState {
    /// The address reported by the processor: cr2 on x86_64, FAR on arm64.
    ///
    /// If this fault is not a memory fault, the address is that of an earlier one.
    pub address: u64,
    /// The trap number on x86_64 (14 is a page fault).
    ///
    /// On arm64 it is 0 on Linux, and the exception number on Darwin.
    pub trap: u64,
    /// The page-fault error code on x86_64, or the exception syndrome (ESR) on arm64.
    ///
    /// On arm64 only if the kernel provides it.
    pub error: u64,
}

impl FaultState {
    /// Returns the faulting instruction's memory access, if the processor reports it.
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

    /// Returns the faulting instruction's memory access, if the processor reports it.
    #[cfg(target_arch = "aarch64")]
    pub fn access(&self) -> Option<Access> {
        // The exception class: instruction or data abort from a lower or the same level (Arm ARM,
        // ESR_ELx).
        match self.error >> 26 & 0x3f {
            0x20 | 0x21 => Some(Access::Execute),
            // WnR, bit 6.
            0x24 | 0x25 => Some(if self.error & 0x40 != 0 { Access::Write } else { Access::Read }),
            _ => None,
        }
    }
}
