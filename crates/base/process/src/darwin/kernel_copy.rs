//! Copies of memory by the kernel, on Darwin.

use mach2::kern_return::KERN_SUCCESS;
use mach2::traps::mach_task_self;
use mach2::vm::mach_vm_read_overwrite;

use crate::memory::{Memory, Unreadable};

/// The pages that are in memory: not determined on Darwin, so all may be.
#[derive(Debug)]
pub struct PresentPages(());

impl PresentPages {
    /// Creates the value. Async-signal-safe.
    pub fn open(_page_size: u32) -> PresentPages {
        PresentPages(())
    }

    /// Always true.
    pub fn contains(&self, _address: u64) -> bool {
        true
    }
}

/// Whether this process may currently read the byte at `address`. Whether it may write it is not
/// determined.
pub fn is_accessible(address: u64, _write: bool) -> bool {
    let mut byte = [0];
    KernelCopy::new().is_some_and(|mut copy| copy.read(address, &mut byte).is_ok())
}

/// Whether the 32-bit word at `address` is zero; `false` if it can't be read.
pub fn is_zero(address: u64) -> bool {
    let mut word = [1; 4];
    KernelCopy::new().is_some_and(|mut copy| copy.read(address, &mut word).is_ok()) && word == [0; 4]
}

/// A reader that copies this process's own memory through `mach_vm_read_overwrite`.
#[derive(Clone, Copy, Debug)]
pub struct KernelCopy {
    task: u32,
}

impl KernelCopy {
    /// Creates a reader; `None` if the kernel or a sandbox refuses the call.
    pub fn new() -> Option<Self> {
        // SAFETY: the port's name, a constant of the process (a child of fork has its own).
        let mut copy = KernelCopy { task: unsafe { mach_task_self() } };
        let probe = [0x5a_u8; 8];
        let mut got = [0; 8];
        copy.read(probe.as_ptr() as u64, &mut got).ok()?;
        (got == probe).then_some(copy)
    }
}

impl Memory for KernelCopy {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let mut copied = 0;
        // SAFETY: the kernel writes at most `into.len()` bytes into `into` and reports bad
        // addresses as an error. Async-signal-safe: one message to the kernel.
        let answer = unsafe {
            let to = into.as_mut_ptr() as u64;
            mach_vm_read_overwrite(self.task, address, into.len() as u64, to, &raw mut copied)
        };
        let whole = answer == KERN_SUCCESS && copied == into.len() as u64;
        if whole || into.is_empty() { Ok(()) } else { Err(Unreadable { address }) }
    }
}
