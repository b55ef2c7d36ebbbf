//! Keys and values: slots with two versions each.
//!
//! A slot belongs to one key. An update writes the version that is not the current one: first its sequence number
//! becomes 0 (not valid), then come data and checksum, then the new sequence number. A process killed at any store
//! leaves the other version as it was, and a reader takes the valid version with the greatest sequence number.
//!
//! A change of several keys ([`RunState::together`]) marks its versions as pending. A reader leaves a pending version out if its sequence
//! number is greater than the number that the last commit stored: so of a change that the process did not live to commit
//! nothing counts. An update in such a change overwrites its own earlier version of the key, and never the last committed one.
//!
//! Two threads that set one key at one moment: the second finds the slot claimed and leaves. That is as if it had set
//! its value just before the other, which neither can distinguish from what happened; so nobody waits.

use super::checksum::mix;
use super::layout::{COMMITTED_WORD, MAX_KEY, SEQUENCE_WORD, Table, VERSION_HEADER_WORDS};
use super::numbers::Kind;
use super::writer::{Refused, RunState, put, word};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

/// How a value was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// As it is.
    Whole,
    /// It was too long, and its end is cut off.
    Cut,
}

/// What the value of a slot is.
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

/// The second word of a version: kind, form, length of the key (16 bits), length of the value (32 bits).
fn meta(kind: Kind, form: u8, key_len: usize, value_len: usize) -> u64 {
    u64::from(kind.0) | u64::from(form) << 8 | (key_len as u64 & 0xFFFF) << 16 | (value_len as u64) << 32
}

fn form_of(meta: u64) -> u8 {
    (meta >> 8) as u8 & !form::PENDING
}

fn is_pending(meta: u64) -> bool {
    (meta >> 8) as u8 & form::PENDING != 0
}

/// How often to look again for a slot that was taken from under us by a new key.
const ATTEMPTS: usize = 4;

impl<'a> RunState<'a> {
    /// A copy through which several keys are set and removed in one change: none of it counts until [`commit`](Self::commit). Only one
    /// such copy may be in use at a time.
    pub fn together(&self) -> RunState<'a> {
        RunState { together: true, ..*self }
    }

    /// Makes everything that was set through [`together`](Self::together) count, at once.
    pub fn commit(&self) {
        if let Some(committed) = self.words.get(COMMITTED_WORD) {
            committed.store(self.load(SEQUENCE_WORD).to_le(), Release);
        }
    }

    /// Sets a text. Where it is too long it is cut at a character.
    ///
    /// # Errors
    /// [`Refused`]; the previous value stands.
    pub fn set_text(&self, kind: Kind, key: &str, value: &str) -> Result<Stored, Refused> {
        let room = self.room(kind, key)?;
        let mut len = value.len();
        if len > room {
            len = room;
            // A byte 10xxxxxx goes on with a character.
            while len > 0 && value.as_bytes().get(len).is_some_and(|byte| byte & 0xC0 == 0x80) {
                len = len.wrapping_sub(1);
            }
        }
        let bytes = value.as_bytes().get(..len).unwrap_or_default();
        self.set(kind, form::TEXT, key.as_bytes(), bytes)?;
        Ok(if len < value.len() { Stored::Cut } else { Stored::Whole })
    }

    /// Sets a value that is one CBOR item, encoded (by [`Encoder`](crate::wire::Encoder) or
    /// [`Value::to_cbor`](crate::model::Value::to_cbor)).
    ///
    /// # Errors
    /// [`Refused`]; the previous value stands.
    pub fn set_cbor(&self, kind: Kind, key: &str, cbor: &[u8]) -> Result<(), Refused> {
        if cbor.len() > self.room(kind, key)? {
            return Err(Refused::TooLarge);
        }
        self.set(kind, form::CBOR, key.as_bytes(), cbor)
    }

    /// Removes a key. One that is not there is no error.
    ///
    /// # Errors
    /// [`Refused::Overtaken`].
    pub fn remove(&self, kind: Kind, key: &str) -> Result<(), Refused> {
        let table = self.table(kind);
        let hash = hash(kind, key.as_bytes());
        // All slots and not the first: when the table is full two threads can have made one each for the same key.
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

    /// Bytes that there are for the value of a key.
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

    /// The slot of the key with this hash, claimed for it if it is new; `None` if all are in use.
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
        // All have an owner: one whose key was removed can have another.
        for number in order {
            let removed = |state: &Self| {
                let current = state.current(table, number);
                current.is_some_and(|(version, meta)| {
                    form_of(meta) == form::REMOVED && state.is_committed(table, number, version, meta)
                })
            };
            if removed(self) && self.claim(table, number) {
                // Looked at again under the claim, since it may have been set again before.
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

    /// The current version of a slot and its second word; `None` if it has none.
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

    /// Writes a version. `false`: the slot is another key's now.
    #[allow(clippy::too_many_arguments)] // What a version consists of.
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
        // The version that counts must outlive this one's being written.
        let kept = self.current(table, number).map_or(1, |(version, meta)| {
            if self.is_committed(table, number, version, meta) { version } else { 1 - version }
        });
        let at = table.version(number, 1 - kept);
        let sequence = match self.words.get(SEQUENCE_WORD) {
            Some(counter) => counter.fetch_add(1, Relaxed).wrapping_add(1),
            None => return,
        };
        self.store(at, 0);
        // What follows must not be seen before the version is known to be invalid.
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
    }
}

/// A 64-bit hash of a key, never 0 (which is a directory entry without owner).
fn hash(kind: Kind, key: &[u8]) -> u64 {
    let start = mix(0, u64::from(kind.0) << 32 | key.len() as u64);
    key.chunks(8).map(word).fold(start, mix).max(1)
}
