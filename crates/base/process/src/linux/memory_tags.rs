//! arm64 memory tags (MTE).
//!
//! If the process has enabled tag checks, a load through an address with the wrong tag faults.

/// Whether this machine has memory tags.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryTags {
    are_there: bool,
}

impl MemoryTags {
    /// Reads the capabilities passed at the process's start (`AT_HWCAP2`; not async-signal-safe).
    pub fn of_this_machine() -> Self {
        /// `HWCAP2_MTE` of asm/hwcap.h.
        const MTE: u64 = 1 << 18;
        // SAFETY: getauxval reads a table that the C library set up before `main`.
        let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP2) };
        MemoryTags { are_there: cfg!(target_arch = "aarch64") && capabilities & MTE != 0 }
    }

    /// Disables tag checks for the calling thread until the result is dropped.
    ///
    /// A signal handler begins with checks, so it has to disable them itself
    /// (Documentation/arch/arm64/memory-tagging-extension.rst, "Tag Check Override").
    pub fn unchecked(self) -> Unchecked {
        if self.are_there {
            set_override(true);
        }
        Unchecked { is_set: self.are_there }
    }
}

/// Disabled tag checks. See [`MemoryTags::unchecked`].
#[derive(Debug)]
pub struct Unchecked {
    is_set: bool,
}

impl Drop for Unchecked {
    fn drop(&mut self) {
        if self.is_set {
            set_override(false);
        }
    }
}

#[cfg(target_arch = "aarch64")]
fn set_override(unchecked: bool) {
    let value = u64::from(unchecked) << 25;
    // SAFETY: TCO (Arm's reference manual, C5.2.27), by its number, since assemblers require an
    // extension for its name; the caller knows that the processor has it. It changes no memory and
    // no other register. Async-signal-safe: one instruction.
    unsafe { core::arch::asm!("msr S3_3_C4_C2_7, {}", in(reg) value, options(nostack, preserves_flags)) };
}

#[cfg(not(target_arch = "aarch64"))]
fn set_override(_: bool) {}
