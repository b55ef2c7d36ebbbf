//! Memory for live walks.

use coroner_machine::memory::{BLOCK, KernelCopy, LoadGuarded, Memory, Unreadable};

use crate::os;

/// Memory for a live walk: loads, where Coroner makes their faults good, else copies by the kernel.
#[derive(Clone, Copy, Debug)]
pub enum Reader {
    /// Coroner's handler takes the faults of this thread: that of SIGSEGV and SIGBUS, which the thread does not block, on Linux;
    /// that of the task's exceptions on Darwin.
    Loads(LoadGuarded),
    /// It does not. Put it behind a [`Windowed`](coroner_machine::memory::Windowed): a copy costs a microsecond.
    Copies(KernelCopy),
}

impl Reader {
    /// The best reader that is right on this thread now; nothing where the kernel refuses copies, too.
    ///
    /// An app that replaces Coroner's handler or takes its ports while a walk runs, or blocks its signals in it, gets what it
    /// asked for.
    pub fn new() -> Option<Reader> {
        if os::live::guards_loads() {
            // SAFETY: just checked.
            return Some(Reader::Loads(unsafe { LoadGuarded::new() }));
        }
        KernelCopy::new().map(Reader::Copies)
    }

    /// As [`Self::new`], which does not ask at every call whether Coroner's handler (on Darwin: its port) is still the one that
    /// faults come to; this does.
    pub fn asked_anew() -> Option<Reader> {
        os::live::ask_again();
        Reader::new()
    }
}

impl Memory for Reader {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read(address, into),
            Reader::Copies(memory) => memory.read(address, into),
        }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_u64(address),
            Reader::Copies(memory) => memory.read_u64(address),
        }
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_pair(address),
            Reader::Copies(memory) => memory.read_pair(address),
        }
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        match self {
            Reader::Loads(memory) => memory.read_block(address, into),
            Reader::Copies(memory) => memory.read_block(address, into),
        }
    }
}
