//! The process identity, by which processes of the same boot check whether this one is alive.

use super::checksum::mix;
use super::writer::{RunState, word};
use coroner_process::identity::ProcessIdentity;

/// Number of words in use, without the checksum that follows them.
const WORDS: usize = 5;

impl RunState<'_> {
    /// Writes the identity. In a copy of another process's state, it replaces that process's
    /// identity.
    pub fn set_identity(&self, process: &ProcessIdentity) {
        let (low, high) = process.boot_id.split_at(8);
        let content = [process.pid.into(), process.start, word(low), word(high), process.pid_namespace];
        const { assert!(WORDS == 5) };
        let mut index = self.layout.identity;
        for value in content {
            self.store(index, value);
            index = index.wrapping_add(1);
        }
        self.store(index, content.into_iter().fold(0, mix));
        self.publish_range(self.layout.identity..index.wrapping_add(1));
    }
}

/// Reads the identity at a word; `None` if it is not whole or not set.
#[cfg(feature = "std")]
pub(super) fn read_identity(at: usize, word: impl Fn(usize) -> u64) -> Option<crate::model::ProcessIdentity> {
    let content: [u64; WORDS] = core::array::from_fn(|index| word(at + index));
    let whole = content.into_iter().fold(0, mix) == word(at + WORDS);
    let [pid, start, low, high, pid_namespace] = content;
    let mut boot_id = [0; 16];
    boot_id[..8].copy_from_slice(&low.to_le_bytes());
    boot_id[8..].copy_from_slice(&high.to_le_bytes());
    let boot_id = crate::model::Id(boot_id);
    let pid = u32::try_from(pid).ok()?;
    (whole && pid != 0).then_some(crate::model::ProcessIdentity { pid, start, boot_id, pid_namespace })
}
