//! Darwin: stamp that identifies a state of dyld's list. dyld records when it last changed the
//! list.

use coroner_process::images::{self, Images};
use coroner_process::memory::Memory;

/// Stamp of dyld's list. See the module. All zero is that of no list.
#[derive(Debug)]
pub(crate) struct ListStamp {
    debug: u64,
    fingerprint: u64,
    /// Whether the list stayed unchanged while it was read. If not, the stamp doesn't count as
    /// current.
    is_settled: bool,
}

impl ListStamp {
    /// Updates a table and takes its stamp. The list may change while it is read: it is read again
    /// until it is the same before and after.
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

    /// Returns `true` if the images haven't changed.
    #[inline]
    pub(crate) fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.is_settled && images::fingerprint(memory, self.debug) == self.fingerprint
    }

    /// Returns a number that identifies this state of the images.
    #[inline]
    pub(crate) fn identity(&self) -> u64 {
        self.fingerprint
    }
}
