//! Memory of a live process.

use coroner_process::memory::{BLOCK, KernelCopy, LoadGuarded, Memory, Unreadable};

use crate::fault_handler;

/// Reader for a live process's memory: guarded loads if their faults are recovered, otherwise
/// copies by the kernel.
#[derive(Clone, Copy, Debug)]
pub enum LiveReader {
    /// Faults of this thread's loads are recovered.
    Loads(LoadGuarded),
    /// Faults are not recovered. Wrap this reader in a
    /// [`Windowed`](coroner_process::memory::Windowed): a copy costs a microsecond.
    Copies(KernelCopy),
}

impl LiveReader {
    /// Returns the best reader that is currently valid on this thread; `None` if the kernel refuses
    /// copies, too.
    ///
    /// If an app replaces Coroner's handler or takes its ports during a walk, or blocks its
    /// signals, a fault of the walk has the consequences that the app chose.
    pub fn new() -> Option<LiveReader> {
        if fault_handler::guards_loads() {
            // SAFETY: just checked.
            return Some(LiveReader::Loads(unsafe { LoadGuarded::new() }));
        }
        KernelCopy::new().map(LiveReader::Copies)
    }

    /// Same as [`Self::new`], which does not check at every call whether the kernel still sends
    /// faults to Coroner; this function does.
    pub fn new_after_query() -> Option<LiveReader> {
        fault_handler::ask_again();
        LiveReader::new()
    }
}

impl Memory for LiveReader {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match self {
            LiveReader::Loads(memory) => memory.read(address, into),
            LiveReader::Copies(memory) => memory.read(address, into),
        }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        match self {
            LiveReader::Loads(memory) => memory.read_u64(address),
            LiveReader::Copies(memory) => memory.read_u64(address),
        }
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        match self {
            LiveReader::Loads(memory) => memory.read_pair(address),
            LiveReader::Copies(memory) => memory.read_pair(address),
        }
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        match self {
            LiveReader::Loads(memory) => memory.read_block(address, into),
            LiveReader::Copies(memory) => memory.read_block(address, into),
        }
    }
}
