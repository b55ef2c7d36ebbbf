//! A thread's last walk, taken again where it would come out the same.
//!
//! Programs that throw often throw again and again from the same place. A walk is a function of the registers it begins with, of
//! the words of the stack that it reads, and of the images. So these are kept with its result: where the next throw begins
//! with the same registers, with the same images loaded, and finds the same words, it has the same frames. To compare the
//! words costs a tenth of a walk.
//!
//! Only walks are kept of which that is the whole truth: those that read nothing but the thread's own stack (all rules were
//! known), and that came from each frame to the next by the stack and frame pointers alone.
//!
//! Everything is the thread's own; words are atomic since a slot is shared, and cost what plain ones do.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use coroner_machine::memory::{Memory, Unreadable};

use super::memory::OwnStack;

/// Words of the stack that are kept of a walk: two for each frame and some more.
const WORDS: usize = 160;

/// What a walk begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    /// The highest address of the stack.
    pub high: u64,
    /// That of the list of images; 0 where it is not known, and no walk is like another.
    pub fingerprint: u64,
}

/// See the module. All zero is none.
pub(super) struct Replay {
    start: [AtomicU64; 5],
    /// The number of the walk; 0 for none.
    walk: AtomicU64,
    /// How many words it read.
    count: AtomicU32,
    places: [AtomicU64; WORDS],
    words: [AtomicU64; WORDS],
}

impl Start {
    fn words(&self) -> [u64; 5] {
        [self.pc, self.sp, self.fp, self.high, self.fingerprint]
    }
}

impl Replay {
    /// The number of the walk that a walk from there would repeat.
    #[inline]
    pub(super) fn of(&self, start: &Start) -> Option<u64> {
        let walk = self.walk.load(Ordering::Relaxed);
        let is_same = |(kept, now): (&AtomicU64, u64)| kept.load(Ordering::Relaxed) == now;
        if walk == 0 || start.fingerprint == 0 || !self.start.iter().zip(start.words()).all(is_same) {
            return None;
        }
        let count = self.count.load(Ordering::Relaxed) as usize;
        let unchanged = self.places.iter().zip(&self.words).take(count).all(|(place, word)| {
            // SAFETY: it was read on this thread's stack, between the same stack pointer and the stack's highest address.
            let now = unsafe { (place.load(Ordering::Relaxed) as *const u64).read_unaligned() };
            now == word.load(Ordering::Relaxed)
        });
        unchanged.then_some(walk)
    }

    /// Forgets the walk: a new one begins, or the thread ends.
    #[inline]
    pub(super) fn forget(&self) {
        self.walk.store(0, Ordering::Relaxed);
    }

    /// Keeps the walk that was noted, which is told apart from others by its number.
    pub(super) fn keep(&self, start: &Start, noted: &Noting<'_>, number: u64) {
        if !noted.is_whole || noted.count > WORDS || start.fingerprint == 0 {
            return;
        }
        for (kept, now) in self.start.iter().zip(start.words()) {
            kept.store(now, Ordering::Relaxed);
        }
        self.count.store(noted.count as u32, Ordering::Relaxed);
        self.walk.store(number, Ordering::Relaxed);
    }
}

/// The memory of a throw that notes what is read of the stack.
pub(super) struct Noting<'r> {
    memory: OwnStack,
    replay: &'r Replay,
    count: usize,
    /// Nothing was read but words of the stack.
    is_whole: bool,
}

impl<'r> Noting<'r> {
    /// Notes into `replay`, which is forgotten.
    pub(super) fn new(memory: OwnStack, replay: &'r Replay) -> Self {
        replay.forget();
        Noting { memory, replay, count: 0, is_whole: true }
    }

    #[inline]
    fn note(&mut self, place: u64, word: u64) {
        if let (Some(place_at), Some(word_at)) = (self.replay.places.get(self.count), self.replay.words.get(self.count))
        {
            place_at.store(place, Ordering::Relaxed);
            word_at.store(word, Ordering::Relaxed);
        }
        self.count += 1;
    }
}

impl Memory for Noting<'_> {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.is_whole = false;
        self.memory.read(address, into)
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        // First, so that a walk that went on after a word that can't be read isn't whole.
        self.is_whole &= self.memory.holds(address, 8);
        let word = self.memory.read_u64(address)?;
        self.note(address, word);
        Ok(word)
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        self.is_whole &= self.memory.holds(address, 16);
        let pair = self.memory.read_pair(address)?;
        self.note(address, pair.0);
        self.note(address.wrapping_add(8), pair.1);
        Ok(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Replay {
        Replay {
            start: [const { AtomicU64::new(0) }; 5],
            walk: AtomicU64::new(0),
            count: AtomicU32::new(0),
            places: [const { AtomicU64::new(0) }; WORDS],
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// A stack of some words, the walk that read two of them, and what it began with.
    fn walked(stack: &[u64; 8], replay: &Replay) -> Start {
        let low = stack.as_ptr() as u64;
        let start = Start { pc: 1, sp: low, fp: 3, high: low + 64, fingerprint: 5 };
        let mut noting = Noting::new(OwnStack { low, high: low + 64, elsewhere: None }, replay);
        assert_eq!(noting.read_u64(low + 8), Ok(stack[1]));
        assert_eq!(noting.read_pair(low + 32), Ok((stack[4], stack[5])));
        replay.keep(&start, &noting, 7);
        start
    }

    #[test]
    fn it_is_the_same_walk_where_all_that_it_depends_on_is_the_same() {
        let (mut stack, replay) = ([10, 11, 12, 13, 14, 15, 16, 17], nothing());
        let start = walked(&stack, &replay);
        assert_eq!(replay.of(&start), Some(7));
        // What was not read does not matter; each word that was does.
        stack[2] = 0;
        assert_eq!(replay.of(core::hint::black_box(&start)), Some(7));
        for index in [1, 4, 5] {
            stack[index] += 1;
            core::hint::black_box(&mut stack);
            assert_eq!(replay.of(&start), None, "word {index}");
            stack[index] -= 1;
            core::hint::black_box(&mut stack);
            assert_eq!(replay.of(&start), Some(7));
        }
        for other in [
            Start { pc: 0, ..start },
            Start { sp: start.sp + 8, ..start },
            Start { fp: 0, ..start },
            Start { high: start.high + 8, ..start },
            Start { fingerprint: 6, ..start },
        ] {
            assert_eq!(replay.of(&other), None, "{other:?}");
        }
        replay.forget();
        assert_eq!(replay.of(&start), None);
    }

    #[test]
    fn a_walk_that_reads_anything_else_is_not_kept() {
        let (stack, elsewhere) = ([0_u64; 8], [1_u64; 2]);
        let low = stack.as_ptr() as u64;
        // The second word is none of the stack, and readable: as a guarded read of another stack would be.
        let memory = OwnStack { low, high: low + 64, elsewhere: crate::live::Reader::new() };
        let start = Start { pc: 1, sp: low, fp: 3, high: low + 64, fingerprint: 5 };
        let replay = nothing();
        let mut noting = Noting::new(memory, &replay);
        // An emulator may have no guarded reads before an install: what could not be read makes no whole walk either.
        let read = noting.read_u64(elsewhere.as_ptr() as u64);
        assert!(read == Ok(1) || cfg!(target_arch = "aarch64") && read.is_err(), "{read:?}");
        replay.keep(&start, &noting, 7);
        assert_eq!(replay.of(&start), None);
        let mut noting = Noting::new(memory, &replay);
        assert_eq!(noting.read(low, &mut [0; 4]), Ok(()));
        replay.keep(&start, &noting, 7);
        assert_eq!(replay.of(&start), None);
        let mut noting = Noting::new(memory, &replay);
        for _ in 0..=WORDS {
            assert_eq!(noting.read_u64(low), Ok(0));
        }
        replay.keep(&start, &noting, 7);
        assert_eq!(replay.of(&start), None);
        let noting = Noting::new(memory, &replay);
        replay.keep(&Start { fingerprint: 0, ..start }, &noting, 7);
        assert_eq!(replay.of(&Start { fingerprint: 0, ..start }), None);
    }
}
