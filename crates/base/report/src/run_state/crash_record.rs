//! The crash record: a small record in the mapped run state, the first thing written at a crash.
//!
//! It makes a crash known that left no report because of a kill, a second fault or a full disk a
//! microsecond later. Two records alternate, so that a torn record leaves the previous one intact.

use super::checksum::mix;
use super::layout::{CRASH_RECORD_WORDS, CRASH_WORD};
use super::numbers::{ExitKind, Scalar};
use super::writer::RunState;
use crate::wire::Monitor;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

/// A crash as recorded before any of the app's data is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrashRecord {
    /// The monitor that noticed the crash.
    pub monitor: Monitor,
    /// Signal number, or the exception of [`Monitor::MACH`]; 0 if there was neither.
    pub signal: i32,
    /// `si_code`, or `code[0]` of a Mach exception.
    pub code: i64,
    /// `si_errno`.
    pub errno: i32,
    /// `si_addr` of a signal that has one, or the address of `EXC_BAD_ACCESS`.
    pub address: Option<u64>,
    /// The thread that crashed.
    pub tid: u64,
    /// Time of the crash, in nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Program counter (avma).
    pub pc: u64,
    /// Stack pointer.
    pub sp: u64,
}

/// Number of words after the checksum, which the checksum covers after the record's number.
const CONTENT_WORDS: usize = 8;
/// The word after the content: the record's number again, once the process has continued.
const NOT_FATAL_WORD: usize = 2 + CONTENT_WORDS;
const _: () = assert!(NOT_FATAL_WORD < CRASH_RECORD_WORDS);

/// Flag in the content's first word: the record has an address.
const HAS_ADDRESS: u64 = 1 << 40;

impl RunState<'_> {
    /// Records a crash that ends the process; returns the record's number.
    ///
    /// The number is for [`set_crash_not_fatal`](Self::set_crash_not_fatal). The previous crash
    /// keeps its record; the one before that is overwritten.
    ///
    /// Async-signal-safe: some 20 stores and as many multiplications, no call, no wait. May be
    /// called from any number of threads at once. The caller must be the process whose run it is: a
    /// child created by `fork` shares its parent's mapping.
    #[inline(always)]
    pub fn set_crash(&self, record: &CrashRecord) -> u64 {
        let Some(counter) = self.words.get(CRASH_WORD) else { return 0 };
        // The numbers begin at 1: 0 means that there is no record.
        let number = counter.fetch_add(1, AcqRel).wrapping_add(1);
        let at = self.layout.crash_record(number);
        let Some(words) = self.words.get(at..at.wrapping_add(CRASH_RECORD_WORDS)) else { return 0 };
        let [number_word, check_word, content @ ..] = words else { return 0 };
        number_word.store(0, Relaxed);
        // The following stores must not become visible before the record is known to be invalid.
        fence(Release);
        let mut check = mix(0, number);
        for (to, value) in content.iter().zip(record.to_words()) {
            to.store(value.to_le(), Relaxed);
            check = mix(check, value);
        }
        check_word.store(check.to_le(), Relaxed);
        number_word.store(number.to_le(), Release);
        let exit = [(Scalar::EXIT_TIME, record.time_ns), (Scalar::EXIT, ExitKind::CRASHED.0.into())];
        for (scalar, value) in exit {
            if let Some(word) = self.scalar_word(scalar) {
                word.store(value.to_le(), Relaxed);
            }
        }
        self.publish(&[
            at..at.wrapping_add(CRASH_RECORD_WORDS),
            Self::word_range(CRASH_WORD),
            self.scalar_range(Scalar::EXIT_TIME),
            self.scalar_range(Scalar::EXIT),
        ]);
        number
    }

    /// Records that the process continued after the crash with that number.
    ///
    /// A handler repaired the fault, or the app's handler left it by a jump.
    ///
    /// Async-signal-safe. As for [`set_crash`](Self::set_crash), the caller must be the process
    /// whose run it is.
    pub fn set_crash_not_fatal(&self, number: u64) {
        if number == 0 {
            return;
        }
        let at = self.layout.crash_record(number);
        if self.load(at) == number
            && let Some(word) = self.words.get(at.wrapping_add(NOT_FATAL_WORD))
        {
            word.store(number.to_le(), Release);
            self.publish_range(Self::word_range(at.wrapping_add(NOT_FATAL_WORD)));
        }
        // An exit recorded since then is kept. The exit of another thread's crash is replaced, but
        // that crash has its own record.
        if let Some(exit) = self.scalar_word(Scalar::EXIT) {
            let (crashed, running) = (u64::from(ExitKind::CRASHED.0), u64::from(ExitKind::RUNNING.0));
            let _ = exit.compare_exchange(crashed.to_le(), running.to_le(), AcqRel, Acquire);
            self.publish_range(self.scalar_range(Scalar::EXIT));
        }
    }
}

impl CrashRecord {
    #[inline(always)]
    fn to_words(self) -> [u64; CONTENT_WORDS] {
        let low_half = |value: i32| u64::from(value.cast_unsigned());
        let has_address = if self.address.is_some() { HAS_ADDRESS } else { 0 };
        [
            low_half(self.signal) | u64::from(self.monitor.0) << 32 | has_address,
            self.code.cast_unsigned(),
            low_half(self.errno),
            self.address.unwrap_or(0),
            self.tid,
            self.time_ns,
            self.pc,
            self.sp,
        ]
    }
}

/// The error for a record that has a number but not the matching checksum.
#[cfg(feature = "std")]
pub(super) struct NotWhole;

/// Reads the record at a word, with its number; `None` if there is none.
#[cfg(feature = "std")]
pub(super) fn read_crash(
    at: usize,
    word: impl Fn(usize) -> u64,
) -> Result<Option<(u64, crate::model::CrashRecord)>, NotWhole> {
    use crate::model::{Address, Timestamp};
    let number = word(at);
    if number == 0 {
        return Ok(None);
    }
    let content: [u64; CONTENT_WORDS] = core::array::from_fn(|index| word(at + 2 + index));
    if content.into_iter().fold(mix(0, number), mix) != word(at + 1) {
        return Err(NotWhole);
    }
    let [what, code, errno, address, tid, time_ns, pc, sp] = content;
    let record = crate::model::CrashRecord {
        monitor: Monitor((what >> 32) as u8),
        signal: (what as u32).cast_signed(),
        code: code.cast_signed(),
        errno: (errno as u32).cast_signed(),
        address: (what & HAS_ADDRESS != 0).then_some(Address(address)),
        tid,
        time: Timestamp(time_ns),
        pc: Address(pc),
        sp: Address(sp),
        not_fatal: word(at + NOT_FATAL_WORD) == number,
    };
    Ok(Some((number, record)))
}
