//! Linux: what distinguishes a state of the dynamic linker's list from any other one.

use core::mem::MaybeUninit;

use coroner_process::images::{self, ImageStamp, Images, ListState};
use coroner_process::memory::Memory;

/// Words that are kept of the images that can be unloaded: one of each with a build id.
const WORDS: usize = 4096;

/// See the module. All zero is that of no list.
#[derive(Debug)]
pub(crate) struct ListStamp {
    /// Where the dynamic linker's list is.
    debug: u64,
    /// Of that list.
    fingerprint: u64,
    /// What distinguishes the images from others at their places, which the list does not.
    words: [MaybeUninit<ImageStamp>; WORDS],
    count: usize,
    /// Of all of that.
    identity: u64,
    /// The list stood still while it was read. If not, what was read is not held for what is there.
    is_settled: bool,
}

impl ListStamp {
    /// Brings a table up to date, and takes its stamp. The list may change while it is read: it is read again until it is, afterwards,
    /// the one that was read. That it is the same before and after doesn't do: a library that is loaded into the place of one that was
    /// unloaded meanwhile makes the same list again, and the table was made between the two.
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
            // An entry without an image is being unloaded: the next one in its place may have the same numbers. One that stays
            // is something else, and is lived with.
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

    /// Whether the images are still these.
    #[inline]
    pub(crate) fn is_current<M: Memory>(&self, memory: &mut M) -> bool {
        self.is_settled
            && images::fingerprint(memory, self.debug) == self.fingerprint
            && self.words().all(|word| word.holds(memory))
    }

    /// A number of this state of the images.
    #[inline]
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }
}
