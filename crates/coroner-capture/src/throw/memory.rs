//! The memory of a throw: the thread's own stack by plain loads, everything else guarded.

use coroner_machine::memory::{Memory, Unreadable};

use crate::live::Reader;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnStack {
    /// From the stack pointer up to the stack's highest address.
    pub low: u64,
    pub high: u64,
    /// For what is not stack: unwind data, the dynamic linker's list. None where nothing can be read safely.
    pub elsewhere: Option<Reader>,
}

impl OwnStack {
    /// Whether `bytes` bytes from `address` on are on the stack.
    #[inline]
    pub(super) fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.low && address.saturating_add(bytes) <= self.high
    }
}

impl Memory for OwnStack {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if self.holds(address, into.len() as u64) {
            // SAFETY: this thread's own stack above its stack pointer is mapped and readable, and only this thread writes it.
            unsafe { core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
            return Ok(());
        }
        self.elsewhere.as_mut().ok_or(Unreadable { address })?.read(address, into)
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        if self.holds(address, 8) {
            // SAFETY: as above.
            return Ok(unsafe { (address as *const u64).read_unaligned() });
        }
        self.elsewhere.as_mut().ok_or(Unreadable { address })?.read_u64(address)
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        if self.holds(address, 16) {
            // SAFETY: as above.
            return Ok(unsafe { (address as *const (u64, u64)).read_unaligned() });
        }
        self.elsewhere.as_mut().ok_or(Unreadable { address })?.read_pair(address)
    }
}
