//! Darwin: what distinguishes a state of dyld's list from any other one. dyld says when it changed the list last.

use coroner_process::images::{self, Images};
use coroner_process::memory::Memory;

/// See the module. All zero is that of no list.
#[derive(Debug)]
pub(crate) struct ListStamp {
    debug: u64,
    fingerprint: u64,
    /// The list stood still while it was read. If not, what was read is not held for what is there.
    is_settled: bool,
}

impl ListStamp {
    /// Brings a table up to date, and takes its stamp. The list may change while it is read: it is read again until it is the same
    /// before and after.
    pub(crate) fn refresh<M: Memory>(&mut self, table: &mut Images, memory: &mut M) {
        self.debug = table.debug_address();
        for _ in 0..16 {
            let before = images::fingerprint(memory, self.debug);
            table.refresh(memory);
            self.debug = table.debug_address();
            self.fingerprint = images::fingerprint(memory, self.debug);
            self.is_settled = self.fingerprint == before;
            if self.is_settled {
                break;
            }
        }
    }

    /// Whether the images are still these.
    #[inline]
    pub(crate) fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.is_settled && images::fingerprint(memory, self.debug) == self.fingerprint
    }

    /// A number of this state of the images.
    #[inline]
    pub(crate) fn identity(&self) -> u64 {
        self.fingerprint
    }
}
