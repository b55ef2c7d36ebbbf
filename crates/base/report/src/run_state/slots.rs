//! Keys and values: slots with two versions each.
//!
//! A slot belongs to one key. An update writes the version that is not the current one: first its
//! sequence number becomes 0 (not valid), then come data and checksum, then the new sequence
//! number. A process killed at any store leaves the other version as it was, and a reader takes the
//! valid version with the greatest sequence number.
//!
//! A change of several keys ([`RunState::together`]) marks its versions as pending. A reader
//! ignores a pending version if its sequence number is greater than the number that the last commit
//! stored, so no part of an uncommitted change counts. An update in such a change overwrites its
//! own earlier version of the key, and never the last committed one.
//!
//! If two threads set the same key at the same time, the second finds the slot claimed and gives
//! up. The result is the same as if it had set its value just before the other, so nobody has to
//! wait.

use super::checksum::mix;
use super::layout::{COMMITTED_WORD, MAX_KEY, SEQUENCE_WORD, Table, VERSION_HEADER_WORDS};
use super::numbers::Kind;
use super::writer::{Refused, RunState, put, word};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

/// Result of storing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The value was stored whole.
    Whole,
    /// The value was too long and was truncated.
    Cut,
}

/// Form of a slot's value.
pub(super) mod form {
    /// UTF-8.
    pub(in super::super) const TEXT: u8 = 1;
    /// One CBOR item.
    pub(in super::super) const CBOR: u8 = 2;
    /// The key was removed.
    pub(in super::super) const REMOVED: u8 = 3;
    /// Added to the form of a version that counts only if its change was committed.
    pub(in super::super) const PENDING: u8 = 0x80;
}

/// The second word of a version: kind, form, key length (16 bits), value length (32 bits).
fn meta(kind: Kind, form: u8, key_len: usize, value_len: usize) -> u64 {
    u64::from(kind.0) | u64::from(form) << 8 | (key_len as u64 & 0xFFFF) << 16 | (value_len as u64) << 32
}

fn form_of(meta: u64) -> u8 {
    (meta >> 8) as u8 & !form::PENDING
}

fn is_pending(meta: u64) -> bool {
    (meta >> 8) as u8 & form::PENDING != 0
}

/// Number of attempts to find a slot if new keys keep taking it.
const ATTEMPTS: usize = 4;

impl<'a> RunState<'a> {
    /// Returns a copy through which several keys are set and removed in one change.
    ///
    /// No part of the change counts until [`commit`](Self::commit). Only one such copy may be in
    /// use at a time.
    pub fn together(&self) -> RunState<'a> {
        RunState { together: true, ..*self }
    }

    /// Commits everything that was set through [`together`](Self::together) at once.
    pub fn commit(&self) {
        if let Some(committed) = self.words.get(COMMITTED_WORD) {
            committed.store(self.load(SEQUENCE_WORD).to_le(), Release);
            self.publish_range(Self::word_range(COMMITTED_WORD));
        }
    }

    /// Sets a text. If it is too long, it is truncated at a character boundary.
    ///
    /// # Errors
    /// [`Refused`]; the previous value is kept.
    pub fn set_text(&self, kind: Kind, key: &str, value: &str) -> Result<Stored, Refused> {
        let room = self.room(kind, key)?;
        let mut len = value.len();
        if len > room {
            len = room;
            // A byte 10xxxxxx continues a character.
            while len > 0 && value.as_bytes().get(len).is_some_and(|byte| byte & 0xC0 == 0x80) {
                len = len.wrapping_sub(1);
            }
        }
        let bytes = value.as_bytes().get(..len).unwrap_or_default();
        self.set(kind, form::TEXT, key.as_bytes(), bytes)?;
        Ok(if len < value.len() { Stored::Cut } else { Stored::Whole })
    }

    /// Sets a value that is one encoded CBOR item.
    ///
    /// Encode it with [`Encoder`](crate::wire::Encoder) or
    /// [`Value::to_cbor`](crate::model::Value::to_cbor).
    ///
    /// # Errors
    /// [`Refused`]; the previous value is kept.
    pub fn set_cbor(&self, kind: Kind, key: &str, cbor: &[u8]) -> Result<(), Refused> {
        if cbor.len() > self.room(kind, key)? {
            return Err(Refused::TooLarge);
        }
        self.set(kind, form::CBOR, key.as_bytes(), cbor)
    }

    /// Removes a key. Removing a missing key is not an error.
    ///
    /// # Errors
    /// [`Refused::Overtaken`] if another thread is setting the key.
    pub fn remove(&self, kind: Kind, key: &str) -> Result<(), Refused> {
        let table = self.table(kind);
        let hash = hash(kind, key.as_bytes());
        // Search all slots, not only the first: if the table is full, two threads may each have
        // created one for the same key.
        for number in 0..table.slots {
            if self.load(table.directory.wrapping_add(number)) == hash {
                self.update(table, number, hash, kind, form::REMOVED, key.as_bytes(), &[])?;
            }
        }
        Ok(())
    }

    fn table(&self, kind: Kind) -> &Table {
        if kind == Kind::TAG { &self.layout.small } else { &self.layout.large }
    }

    /// Returns the number of bytes available for a key's value.
    fn room(&self, kind: Kind, key: &str) -> Result<usize, Refused> {
        if key.len() > MAX_KEY {
            return Err(Refused::KeyTooLong);
        }
        let words = self.table(kind).data_words;
        words.checked_sub(key.len().div_ceil(8)).map(|words| words.wrapping_mul(8)).ok_or(Refused::KeyTooLong)
    }

    fn set(&self, kind: Kind, form: u8, key: &[u8], value: &[u8]) -> Result<(), Refused> {
        let table = self.table(kind);
        let hash = hash(kind, key);
        for _ in 0..ATTEMPTS {
            let number = self.slot_for(table, hash).ok_or(Refused::Full)?;
            if self.update(table, number, hash, kind, form, key, value)? {
                return Ok(());
            }
        }
        Err(Refused::Overtaken)
    }

    /// Returns the slot of the key with this hash, claimed if the key is new.
    ///
    /// `None` if all slots are in use.
    fn slot_for(&self, table: &Table, hash: u64) -> Option<usize> {
        let by_hash = usize::try_from(hash.checked_rem(table.slots as u64)?).ok()?;
        let start = if table.in_order { 0 } else { by_hash };
        let order = (start..table.slots).chain(0..start);
        for number in order.clone() {
            let entry = self.words.get(table.directory.wrapping_add(number))?;
            let mut owner = u64::from_le(entry.load(Acquire));
            if owner == 0 {
                owner = match entry.compare_exchange(0, hash.to_le(), AcqRel, Acquire) {
                    Ok(_) => hash,
                    Err(other) => u64::from_le(other),
                };
            }
            if owner == hash {
                return Some(number);
            }
        }
        // All slots have an owner: reuse one whose key was removed.
        for number in order {
            let removed = |state: &Self| {
                let current = state.current(table, number);
                current.is_some_and(|(version, meta)| {
                    form_of(meta) == form::REMOVED && state.is_committed(table, number, version, meta)
                })
            };
            if removed(self) && self.claim(table, number) {
                // Check again under the claim, since the key may have been set again in between.
                let ours = removed(self);
                if ours && let Some(entry) = self.words.get(table.directory.wrapping_add(number)) {
                    entry.store(hash.to_le(), Release);
                }
                self.release(table, number);
                if ours {
                    return Some(number);
                }
            }
        }
        None
    }

    /// Returns the current version of a slot and its second word; `None` if it has none.
    fn current(&self, table: &Table, number: usize) -> Option<(usize, u64)> {
        let sequence = |version| self.load(table.version(number, version));
        let (first, second) = (sequence(0), sequence(1));
        let version = usize::from(second > first);
        (first.max(second) > 0).then(|| (version, self.load(table.version(number, version).wrapping_add(1))))
    }

    /// Whether a version counts.
    fn is_committed(&self, table: &Table, number: usize, version: usize, meta: u64) -> bool {
        !is_pending(meta) || self.load(table.version(number, version)) <= self.load(COMMITTED_WORD)
    }

    fn claim(&self, table: &Table, number: usize) -> bool {
        self.words.get(table.slot(number)).is_some_and(|claim| claim.compare_exchange(0, 1, Acquire, Relaxed).is_ok())
    }

    fn release(&self, table: &Table, number: usize) {
        if let Some(claim) = self.words.get(table.slot(number)) {
            claim.store(0, Release);
        }
    }

    /// Writes a version. `false` if the slot now belongs to another key.
    #[allow(clippy::too_many_arguments)] // The parts of a version.
    fn update(
        &self,
        table: &Table,
        number: usize,
        hash: u64,
        kind: Kind,
        form: u8,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Refused> {
        if !self.claim(table, number) {
            return Err(Refused::Overtaken);
        }
        let ours = self.load(table.directory.wrapping_add(number)) == hash;
        if ours {
            let form = if self.together { form | form::PENDING } else { form };
            self.write_version(table, number, meta(kind, form, key.len(), value.len()), key, value);
        }
        self.release(table, number);
        Ok(ours)
    }

    fn write_version(&self, table: &Table, number: usize, meta: u64, key: &[u8], value: &[u8]) {
        // The version that counts must stay intact while this one is written.
        let kept = self.current(table, number).map_or(1, |(version, meta)| {
            if self.is_committed(table, number, version, meta) { version } else { 1 - version }
        });
        let at = table.version(number, 1 - kept);
        let sequence = match self.words.get(SEQUENCE_WORD) {
            Some(counter) => counter.fetch_add(1, Relaxed).wrapping_add(1),
            None => return,
        };
        self.store(at, 0);
        // The following stores must not become visible before the version is known to be invalid.
        fence(Release);
        let data = table.data_words.wrapping_add(VERSION_HEADER_WORDS);
        let Some(words) = self.words.get(at..at.wrapping_add(data)) else { return };
        let [sequence_word, meta_word, check_word, data @ ..] = words else { return };
        let mut data = data.iter();
        let check = put(&mut data, key, mix(mix(0, sequence), meta));
        let check = put(&mut data, value, check);
        meta_word.store(meta.to_le(), Relaxed);
        check_word.store(check.to_le(), Relaxed);
        sequence_word.store(sequence.to_le(), Release);
        let used = VERSION_HEADER_WORDS.wrapping_add(key.len().div_ceil(8)).wrapping_add(value.len().div_ceil(8));
        self.publish(&[
            Self::word_range(table.directory.wrapping_add(number)),
            at..at.wrapping_add(used),
            Self::word_range(SEQUENCE_WORD),
        ]);
    }
}

/// Returns a 64-bit hash of a key, never 0 (a directory entry without owner).
fn hash(kind: Kind, key: &[u8]) -> u64 {
    let start = mix(0, u64::from(kind.0) << 32 | key.len() as u64);
    key.chunks(8).map(word).fold(start, mix).max(1)
}
