//! Writes the run state: creation, scalars, facts.

use super::checksum::mix;
use super::facts::FactsEncoder;
use super::layout::{
    BREADCRUMB_WORD, CHECK_WORD, CRASH_RECORDS, CRASH_WORD, HEADER_WORDS, LIMITS_WORD, Layout, Limits, MAGIC,
    MAGIC_WORD, RUN_ID_WORD, SEQUENCE_WORD, SIZE_WORD, VERSION, VERSION_WORD,
};
use super::numbers::{ExitKind, Scalar};
use crate::wire::{Encoder, crc32c};
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use coroner_process::file_mirror::FileMirror;
use coroner_process::identity::ProcessIdentity;

/// The run state of this run.
///
/// It can be copied and used from any thread and in signal handlers: every word is an atomic, and
/// nothing waits.
#[derive(Clone, Copy, Debug)]
pub struct RunState<'a> {
    pub(super) words: &'a [AtomicU64],
    pub(super) layout: Layout,
    /// Whether values set through this copy count only after [`commit`](RunState::commit).
    pub(super) together: bool,
    /// The file to which changes are copied, unless the words are the file's mapping.
    pub(super) mirror: Option<&'a FileMirror>,
}

/// Why a run state can't be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateError {
    /// The region has fewer bytes than [`Limits::size`].
    TooSmall {
        /// Number of bytes needed.
        needed: usize,
    },
}

impl core::fmt::Display for CreateError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let CreateError::TooSmall { needed } = self;
        write!(f, "a run state of these limits needs {needed} bytes")
    }
}

impl core::error::Error for CreateError {}

/// Why a value was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The key is longer than [`MAX_KEY`](super::MAX_KEY) or leaves no room for a value.
    KeyTooLong,
    /// The value does not fit, and is not text that could be truncated.
    TooLarge,
    /// All slots are in use.
    Full,
    /// Another thread was setting this key at the same time.
    ///
    /// Its value is kept, as if it had been set just after this one.
    Overtaken,
    /// The value can be set only once, and is already set.
    AlreadySet,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Refused::KeyTooLong => "the key is too long",
            Refused::TooLarge => "the value is too large",
            Refused::Full => "there is no room for another key",
            Refused::Overtaken => "another thread set the same key at the same time",
            Refused::AlreadySet => "it is set already",
        })
    }
}

impl core::error::Error for Refused {}

/// Returns the words of a mapping in which to create a [`RunState`].
///
/// Returns `None` if `address` is null or not a multiple of 8.
///
/// # Safety
/// For all of `'a` the `len` bytes at `address` must be mapped, writable, and accessed by this
/// process only through the words returned here. (Another process may have mapped the same file.)
pub unsafe fn words_of_mapping<'a>(address: *mut u8, len: usize) -> Option<&'a [AtomicU64]> {
    if address.is_null() || !(address as usize).is_multiple_of(align_of::<AtomicU64>()) {
        return None;
    }
    #[allow(clippy::cast_ptr_alignment)] // Checked above.
    // SAFETY: not null, aligned, and as many bytes as the caller vouches for. Async-signal-safe: no
    // call.
    Some(unsafe { core::slice::from_raw_parts(address.cast::<AtomicU64>(), len / 8) })
}

impl<'a> RunState<'a> {
    /// Creates a run state in `words`, which must be zero, as in a new file.
    ///
    /// The magic number is written last: a process killed in between leaves a file that is not yet
    /// a run state.
    ///
    /// `process` identifies the process; unknown fields are zero.
    ///
    /// # Errors
    /// [`CreateError`] if the region is too small for the [allowed](Limits::allowed) limits.
    pub fn create(
        words: &'a [AtomicU64],
        limits: &Limits,
        run_id: [u8; 16],
        process: &ProcessIdentity,
    ) -> Result<RunState<'a>, CreateError> {
        let limits = limits.allowed();
        let layout = Layout::new(&limits);
        if words.len() < layout.words {
            return Err(CreateError::TooSmall { needed: limits.size() });
        }
        let state = RunState { words, layout, together: false, mirror: None };
        let (low, high) = run_id.split_at(8);
        let mut header = [0; CHECK_WORD - VERSION_WORD];
        let content = [u64::from(VERSION) | (HEADER_WORDS as u64) << 32, limits.size() as u64, word(low), word(high)];
        for (to, from) in header.iter_mut().zip(content.into_iter().chain(limits.to_words())) {
            *to = from;
        }
        const { assert!(SIZE_WORD == 2 && RUN_ID_WORD == 3 && LIMITS_WORD == 5 && CHECK_WORD == 9) };
        let mut check = 0;
        for (index, value) in header.iter().enumerate() {
            state.store(VERSION_WORD + index, *value);
            check = crc32c(check, &value.to_le_bytes());
        }
        state.store(CHECK_WORD, check.into());
        state.set_identity(process);
        if let Some(magic) = words.get(MAGIC_WORD) {
            magic.store(u64::from_le_bytes(*MAGIC).to_le(), Release);
        }
        Ok(state)
    }

    /// Opens the run state in `words`, created by [`RunState::create`] with these limits.
    ///
    /// For example a copy of another process's run state.
    pub fn reopen(words: &'a [AtomicU64], limits: &Limits) -> RunState<'a> {
        RunState { words, layout: Layout::new(&limits.allowed()), together: false, mirror: None }
    }

    /// Returns the state with a file to which changes are copied while the mirror has one.
    #[must_use]
    pub fn mirrored(self, mirror: &'a FileMirror) -> RunState<'a> {
        RunState { mirror: Some(mirror), ..self }
    }

    /// Copies the state's first `bytes` bytes to the file, which must be as the rest of the state.
    pub fn copy_to_file(&self, bytes: usize) {
        self.publish_range(0..self.words.len().min(bytes / 8));
    }

    /// Whether a part of the file is lost, so that it doesn't have all changes.
    pub fn is_file_cut(&self) -> bool {
        self.mirror.is_some_and(FileMirror::is_cut)
    }

    /// Copies changed words to the file.
    #[inline(always)]
    pub(super) fn publish(&self, ranges: &[Range<usize>]) {
        if let Some(mirror) = self.mirror {
            mirror.copy(self.words, ranges);
        }
    }

    /// Copies one range of changed words to the file.
    #[inline(always)]
    pub(super) fn publish_range(&self, range: Range<usize>) {
        self.publish(core::slice::from_ref(&range));
    }

    /// The range of the word at an index.
    #[inline(always)]
    pub(super) fn word_range(index: usize) -> Range<usize> {
        index..index.wrapping_add(1)
    }

    /// Turns a copy of another process's state into that of this process's new run.
    ///
    /// The run begins now. The app's own data is kept; the record of how the other run went is not.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    pub fn begin_again(&self, limits: &Limits, run_id: [u8; 16], process: &ProcessIdentity) -> Result<(), CreateError> {
        for scalar in (0..super::layout::SCALAR_WORDS as u8).map(Scalar) {
            if ![Scalar::LEVEL, Scalar::FOREGROUND, Scalar::FOREGROUND_CHANGED].contains(&scalar) {
                self.set_scalar(scalar, 0);
            }
        }
        for number in 0..CRASH_RECORDS as u64 {
            self.store(self.layout.crash_record(number), 0);
        }
        self.store(CRASH_WORD, 0);
        RunState::create(self.words, limits, run_id, process).map(|_| ())
    }

    /// Whether these words were created by [`RunState::create`] of this version with these limits.
    pub fn has_limits(&self, limits: &Limits) -> bool {
        let limits = limits.allowed();
        let content = [u64::from(VERSION) | (HEADER_WORDS as u64) << 32, limits.size() as u64];
        let same =
            |from: usize, words: &[u64]| words.iter().enumerate().all(|(index, word)| self.load(from + index) == *word);
        self.load(MAGIC_WORD) == u64::from_le_bytes(*MAGIC)
            && same(VERSION_WORD, &content)
            && same(LIMITS_WORD, &limits.to_words())
    }

    /// The run's id.
    pub fn run_id(&self) -> [u8; 16] {
        let words = [self.load(RUN_ID_WORD), self.load(RUN_ID_WORD + 1)];
        let mut id = [0; 16];
        for (to, from) in id.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
            *to = from;
        }
        id
    }

    /// Number of bytes from the state's start beyond which all are zero, as in a new file.
    ///
    /// Returns `None` if the app has set values or left breadcrumbs: then any may be in use.
    pub fn used_bytes(&self) -> Option<usize> {
        let is_unused = self.load(SEQUENCE_WORD) == 0 && self.load(BREADCRUMB_WORD) == 0;
        is_unused.then(|| self.layout.breadcrumbs.saturating_mul(8))
    }

    /// Copies the beginning of the facts to `into`, as far as it fits.
    ///
    /// Returns `false` if there are no facts, or they are damaged.
    pub fn facts_start(&self, into: &mut [u8]) -> bool {
        let head = self.load(self.layout.facts);
        let length = head as u32 as usize;
        let mut check = 0;
        for at in (0..length.min(self.layout.facts_words.saturating_mul(8))).step_by(8) {
            let word = self.load(self.layout.facts.wrapping_add(1 + at / 8)).to_le_bytes();
            let bytes = word.get(..(length - at).min(8)).unwrap_or_default();
            check = crc32c(check, bytes);
            into.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
        }
        head != 0 && u64::from(check) == head >> 32
    }

    /// Whether the run exited by itself, without a crash.
    pub fn ended_clean(&self) -> bool {
        self.scalar(Scalar::EXIT) == u64::from(ExitKind::CLEAN.0) && self.load(CRASH_WORD) == 0
    }

    /// Whether neither an exit nor a crash is recorded.
    pub fn is_open(&self) -> bool {
        self.scalar(Scalar::EXIT) == u64::from(ExitKind::RUNNING.0) && self.load(CRASH_WORD) == 0
    }

    /// Sets a word that changes during the run.
    #[inline(always)]
    pub fn set_scalar(&self, scalar: Scalar, value: u64) {
        if let Some(word) = self.scalar_word(scalar) {
            word.store(value.to_le(), Relaxed);
            self.publish_range(self.scalar_range(scalar));
        }
    }

    /// The range of a scalar's word.
    #[inline(always)]
    pub(super) fn scalar_range(&self, scalar: Scalar) -> Range<usize> {
        Self::word_range(self.layout.scalars.wrapping_add(usize::from(scalar.0)))
    }

    /// Adds to a word that changes during the run; returns its previous value.
    pub fn add_scalar(&self, scalar: Scalar, value: u64) -> u64 {
        let Some(word) = self.scalar_word(scalar) else { return 0 };
        let before = word.fetch_add(value, AcqRel);
        self.publish_range(self.scalar_range(scalar));
        before
    }

    /// Reads a word that changes during the run.
    pub fn scalar(&self, scalar: Scalar) -> u64 {
        self.scalar_word(scalar).map_or(0, |word| word.load(Acquire))
    }

    #[inline(always)]
    pub(super) fn scalar_word(&self, scalar: Scalar) -> Option<&'a AtomicU64> {
        let number = usize::from(scalar.0);
        if number >= super::layout::SCALAR_WORDS {
            return None;
        }
        self.words.get(self.layout.scalars.wrapping_add(number))
    }

    /// Writes the facts built by a [`FactsEncoder`], which can be set only once per run.
    ///
    /// # Errors
    /// [`Refused::TooLarge`], or [`Refused::AlreadySet`] if facts are already set.
    pub fn set_facts(&self, facts: &FactsEncoder<'_>) -> Result<(), Refused> {
        let bytes = facts.written();
        if bytes.len() > self.layout.facts_words.saturating_mul(8) {
            return Err(Refused::TooLarge);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let Some(head) = self.words.get(self.layout.facts) else { return Err(Refused::TooLarge) };
        if head.load(Acquire) != 0 {
            return Err(Refused::AlreadySet);
        }
        let mut index = self.layout.facts;
        for chunk in bytes.chunks(8) {
            index = index.wrapping_add(1);
            self.store(index, word(chunk));
        }
        let head_value = bytes.len() as u64 | u64::from(crc32c(0, bytes)) << 32;
        head.store(head_value.to_le(), Release);
        self.publish_range(self.layout.facts..index.wrapping_add(1));
        Ok(())
    }

    /// Builds facts in `buffer` and writes them, as a program does at install.
    ///
    /// # Errors
    /// Those of [`set_facts`](Self::set_facts).
    pub fn set_facts_with(&self, buffer: &mut [u8], write: impl FnOnce(&mut FactsEncoder<'_>)) -> Result<(), Refused> {
        let mut facts = FactsEncoder::new(Encoder::new(buffer));
        write(&mut facts);
        facts.finish();
        self.set_facts(&facts)
    }

    /// Returns all bytes of the file as they are at this moment.
    #[cfg(feature = "std")]
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.words.get(..self.layout.words).unwrap_or(self.words);
        words.iter().flat_map(|word| word.load(Acquire).to_ne_bytes()).collect()
    }

    #[inline(always)]
    pub(super) fn store(&self, index: usize, value: u64) {
        if let Some(word) = self.words.get(index) {
            word.store(value.to_le(), Relaxed);
        }
    }

    pub(super) fn load(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| u64::from_le(word.load(Acquire)))
    }
}

/// Stores bytes as zero-padded words, and adds them to a checksum.
pub(super) fn put(into: &mut core::slice::Iter<'_, AtomicU64>, bytes: &[u8], check: u64) -> u64 {
    let mut check = check;
    let mut store = |value: u64| {
        if let Some(to) = into.next() {
            to.store(value.to_le(), Relaxed);
            check = mix(check, value);
        }
    };
    let (words, rest) = bytes.as_chunks::<8>();
    for bytes in words {
        store(u64::from_le_bytes(*bytes));
    }
    if !rest.is_empty() {
        store(word(rest));
    }
    check
}

/// Returns up to eight bytes as a zero-padded little-endian word.
pub(super) fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}
