//! Linux: stamp that identifies a state of the dynamic linker's list.

use core::mem::MaybeUninit;

use coroner_process::images::{self, ImageStamp, Images, ListState};
use coroner_process::memory::Memory;

/// Maximum number of words kept of the images that can be unloaded: one for each with a build ID.
const MAX_WORDS: usize = 4096;

/// Stamp of the dynamic linker's list. See the module. All zero is that of no list.
#[derive(Debug)]
pub(crate) struct ListStamp {
    /// Address of the dynamic linker's list.
    debug: u64,
    /// Fingerprint of that list.
    fingerprint: u64,
    /// Words that distinguish the images from others at their places, which the list does not.
    words: [MaybeUninit<ImageStamp>; MAX_WORDS],
    count: usize,
    /// Combined hash of the fingerprint and the words.
    identity: u64,
    /// Whether the list stayed unchanged while it was read. If not, the stamp doesn't count as
    /// current.
    is_settled: bool,
}

impl ListStamp {
    /// Updates a table and takes its stamp. The list may change while it is read: it is read again
    /// until it is, afterwards, the one that was read. It is not sufficient that it is the same
    /// before and after: a library that is loaded into the place of one that was unloaded in the
    /// meantime results in the same list again, and the table was created between the two.
    pub(crate) fn refresh<M: Memory>(&mut self, table: &mut Images, memory: &mut M) {
        for left in (0..16).rev() {
            let found = table.refresh(memory);
            self.debug = table.debug_address();
            self.fingerprint = found.fingerprint;
            self.count = 0;
            let mut fits = true;
            table.stamps(memory, |word| match self.words.get_mut(self.count) {
                Some(place) => {
                    place.write(word);
                    self.count += 1;
                }
                None => fits = false,
            });
            // An entry without an image is being unloaded: the next one in its place may have the
            // same numbers. An entry that stays is something else, and is accepted.
            self.is_settled = fits && (found.refused == 0 || left == 0) && found.list != ListState::Changing;
            if self.is_settled && self.is_current(memory) {
                break;
            }
            self.is_settled = false;
        }
        self.identity = self.words().fold(self.fingerprint, |identity, word| {
            (identity ^ word.value).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
    }

    fn words(&self) -> impl Iterator<Item = &ImageStamp> {
        // SAFETY: the first `count` were written.
        self.words.iter().take(self.count).map(|word| unsafe { word.assume_init_ref() })
    }

    /// Returns `true` if the images haven't changed.
    #[inline]
    pub(crate) fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.is_settled
            && images::fingerprint(memory, self.debug) == self.fingerprint
            && self.words().all(|word| word.holds(memory))
    }

    /// Returns a number that identifies this state of the images.
    #[inline]
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }
}
