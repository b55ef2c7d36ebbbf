//! A thread's last walk, of which the next one takes what would come out the same.
//!
//! Programs that throw often throw again and again from the same place, or from places with the same callers. A walk is a
//! function of the registers it begins with, of the words of the stack that it reads, and of the images. So these are kept with
//! its frames, and the next throw compares the words, which costs a tenth of a walk:
//!
//! * Where it begins with the same registers and finds the same words, it has the same frames ([`Likeness::Same`]).
//! * Else it walks until it comes to a frame of the last walk ([`Meeting`]) from which on all words are the same, and has the same
//!   frames from there on. Two walks are at the same frame where program counter, stack pointer and canonical frame address
//!   are the same: the rule is that of the address, so the frame pointer is the same where the rule needs it. Where a frame
//!   further out needs the frame pointer, and this one neither saves it nor needs it, nothing is known of it: such a frame
//!   is no meeting.
//!
//! Only walks are kept of which that is the whole truth: those that read nothing but the thread's own stack (all rules were
//! known), and that came from each frame to the next by the stack and frame pointers alone.
//!
//! What is kept lies outermost first, so that a walk which meets the last one writes over its inner frames and nothing else.
//! Everything is the thread's own; words are atomic since a slot is shared, and cost what plain ones do.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use coroner_machine::memory::{Memory, Unreadable};
use coroner_unwind::{FpUse, Frame};

use super::FRAMES;
use super::memory::OwnStack;
use super::slots::Frames;

/// Frames that are kept: those of a throw, and some further in that came later.
const KEPT_FRAMES: usize = 96;

/// Words of the stack that are kept: two for each frame and some more.
const WORDS: usize = 224;

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

/// A frame of the last walk.
struct Kept {
    pc: AtomicU64,
    sp: AtomicU64,
    /// How it was found, as the report has it.
    found: AtomicU8,
    /// Whether another walk may meet this one here.
    is_meeting: AtomicBool,
    /// Whether the way from here to the end depends on the frame pointer that this frame was entered with.
    needs_fp: AtomicBool,
    /// How many of the words are of this frame and those further out.
    words: AtomicU16,
}

/// See the module. All zero is none.
pub(super) struct Replay {
    start: [AtomicU64; 5],
    /// The number of the walk; 0 for none.
    walk: AtomicU64,
    /// Whether the outermost frame is the last one of the stack.
    is_to_end: AtomicBool,
    /// How many frames there are, and how many words.
    frames: AtomicU32,
    words: AtomicU32,
    kept: [Kept; KEPT_FRAMES],
    /// The words that were read, by falling address.
    read: [Word; WORDS],
}

/// A word of the stack.
struct Word {
    place: AtomicU64,
    word: AtomicU64,
}

/// How a throw's stack is like that of the last walk.
pub(super) enum Likeness<'r> {
    /// It is the same: the number of the walk.
    Same(u64),
    /// It may be the same from some frame on.
    Partly(Meeting<'r>),
}

impl Start {
    fn words(&self) -> [u64; 5] {
        [self.pc, self.sp, self.fp, self.high, self.fingerprint]
    }
}

impl Replay {
    /// None.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Replay {
            start: [const { AtomicU64::new(0) }; 5],
            walk: AtomicU64::new(0),
            is_to_end: AtomicBool::new(false),
            frames: AtomicU32::new(0),
            words: AtomicU32::new(0),
            kept: [const {
                Kept {
                    pc: AtomicU64::new(0),
                    sp: AtomicU64::new(0),
                    found: AtomicU8::new(0),
                    is_meeting: AtomicBool::new(false),
                    needs_fp: AtomicBool::new(false),
                    words: AtomicU16::new(0),
                }
            }; KEPT_FRAMES],
            read: [const { Word { place: AtomicU64::new(0), word: AtomicU64::new(0) } }; WORDS],
        }
    }

    /// Compares the stack, as a walk from `start` would find it, with the last walk.
    #[inline]
    pub(super) fn compare(&self, start: &Start) -> Likeness<'_> {
        let walk = self.walk.load(Ordering::Relaxed);
        let is_same = |(kept, now): (&AtomicU64, u64)| kept.load(Ordering::Relaxed) == now;
        let [pc, sp, fp, high, fingerprint] = &self.start;
        let is_comparable = walk != 0
            && start.fingerprint != 0
            && is_same((high, start.high))
            && is_same((fingerprint, start.fingerprint));
        if !is_comparable {
            return Likeness::Partly(Meeting { replay: self, candidate: 0, attempts: 0 });
        }
        let count = self.words.load(Ordering::Relaxed) as usize;
        let unchanged = self.unchanged(start, count);
        if unchanged == count && is_same((pc, start.pc)) && is_same((sp, start.sp)) && is_same((fp, start.fp)) {
            return Likeness::Same(walk);
        }
        Likeness::Partly(Meeting::new(self, start, unchanged))
    }

    /// How many of the first `count` words, from the outermost on, are as they were and are on the stack still.
    #[inline]
    fn unchanged(&self, start: &Start, count: usize) -> usize {
        let mut unchanged = 0;
        for Word { place, word } in self.read.iter().take(count) {
            let place = place.load(Ordering::Relaxed);
            // SAFETY: it was read on this thread's stack, whose highest address is the same, and is above the stack pointer.
            if place < start.sp || unsafe { (place as *const u64).read_unaligned() } != word.load(Ordering::Relaxed) {
                break;
            }
            unchanged += 1;
        }
        unchanged
    }

    /// Forgets the walk: the thread ends, or the next one is not kept.
    #[inline]
    pub(super) fn forget(&self) {
        self.walk.store(0, Ordering::Relaxed);
    }

    /// Keeps a walk that was noted and met the last one at the frame `met`, or at none. It is told apart from others by its
    /// number; `ended` says whether it came to the stack's end, if it met none.
    pub(super) fn keep(&self, start: &Start, notes: &Notes, number: u64, met: Option<usize>, ended: bool) {
        self.forget();
        let mut noted = notes.left.frames.get(..notes.left.count).unwrap_or_default();
        if met.is_none() {
            self.is_to_end.store(ended, Ordering::Relaxed);
        } else if let Some((_, inner)) = noted.split_last() {
            // The frame of the meeting is the last one noted, and kept already.
            noted = inner;
        }
        let (mut count, mut words, mut needs_fp, end) = met
            .and_then(|met| {
                let at = self.kept.get(met)?;
                let words = usize::from(at.words.load(Ordering::Relaxed));
                Some((met + 1, words, at.needs_fp.load(Ordering::Relaxed), at.sp.load(Ordering::Relaxed)))
            })
            .unwrap_or((0, 0, false, u64::MAX));
        let first = words;
        for (place, word) in notes.read.places.iter().take(notes.read.count).rev().filter(|(place, _)| *place < end) {
            if !self.put_word(first, words, *place, *word) {
                return;
            }
            words += 1;
        }
        let mut counted = first;
        for frame in noted.iter().rev() {
            let Some(kept) = self.kept.get(count) else { return };
            while counted < words
                && self.read.get(counted).is_some_and(|read| read.place.load(Ordering::Relaxed) >= frame.sp)
            {
                counted += 1;
            }
            kept.pc.store(frame.pc, Ordering::Relaxed);
            kept.sp.store(frame.sp, Ordering::Relaxed);
            kept.found.store(frame.found, Ordering::Relaxed);
            kept.words.store(counted as u16, Ordering::Relaxed);
            kept.is_meeting.store(frame.saves_fp || frame.needs_fp || !needs_fp, Ordering::Relaxed);
            needs_fp = frame.needs_fp || !frame.saves_fp && needs_fp;
            kept.needs_fp.store(needs_fp, Ordering::Relaxed);
            count += 1;
        }
        for (kept, now) in self.start.iter().zip(start.words()) {
            kept.store(now, Ordering::Relaxed);
        }
        self.frames.store(count as u32, Ordering::Relaxed);
        self.words.store(words as u32, Ordering::Relaxed);
        self.walk.store(number, Ordering::Relaxed);
    }

    /// Puts a word behind `count` others, of which those from `first` on may have to make room for it: a register that an inner
    /// frame saved is read when it is needed. False where there is no room at all.
    #[inline]
    fn put_word(&self, first: usize, count: usize, place: u64, word: u64) -> bool {
        let mut at = count;
        while at > first
            && let Some([before, here]) = self.read.get(at - 1..=at)
            && before.place.load(Ordering::Relaxed) < place
        {
            here.place.store(before.place.load(Ordering::Relaxed), Ordering::Relaxed);
            here.word.store(before.word.load(Ordering::Relaxed), Ordering::Relaxed);
            at -= 1;
        }
        let Some(here) = self.read.get(at) else { return false };
        here.place.store(place, Ordering::Relaxed);
        here.word.store(word, Ordering::Relaxed);
        count < WORDS
    }

    /// Writes the frames that are further out than the frame `inner`, from the innermost of them on, into `frames` from
    /// `count` on; answers how many there are then.
    #[inline]
    pub(super) fn copy(&self, inner: usize, frames: &Frames, count: usize) -> usize {
        let further_out = self.kept.get(..inner).unwrap_or_default().iter().rev();
        let mut at = count;
        for kept in further_out.take(FRAMES.saturating_sub(count)) {
            frames.set(at, kept.pc.load(Ordering::Relaxed), kept.found.load(Ordering::Relaxed));
            at += 1;
        }
        at
    }

    /// Writes all frames of the last walk; answers how many.
    #[inline]
    pub(super) fn copy_all(&self, frames: &Frames) -> usize {
        self.copy(self.frames.load(Ordering::Relaxed) as usize, frames, 0)
    }
}

/// Where a walk may meet the last one.
pub(super) struct Meeting<'r> {
    replay: &'r Replay,
    /// The frame of the last walk at which it may be next, plus one; 0 for none.
    candidate: usize,
    /// How often another one may be tried, so that a stack that has little to do with the last one is walked without a pause.
    attempts: u8,
}

impl<'r> Meeting<'r> {
    /// None.
    pub(super) fn none(replay: &'r Replay) -> Self {
        Meeting { replay, candidate: 0, attempts: 0 }
    }

    fn new(replay: &'r Replay, start: &Start, unchanged: usize) -> Self {
        let frames = replay.frames.load(Ordering::Relaxed) as usize;
        let mut meeting = Meeting { replay, candidate: frames + 1, attempts: 4 };
        // The frame that throws has an address that no frame further out has.
        let is_top = |kept: &Kept| kept.sp.load(Ordering::Relaxed) <= start.sp;
        meeting.seek(|kept| !is_top(kept) && usize::from(kept.words.load(Ordering::Relaxed)) <= unchanged);
        // The innermost one of the last walk threw, too.
        if meeting.candidate == frames {
            meeting.seek(|_| true);
        }
        meeting
    }

    /// Goes to the next candidate that is as wanted, further out. The outermost frame is none.
    #[inline]
    fn seek(&mut self, is_wanted: impl Fn(&Kept) -> bool) {
        self.candidate = self.candidate.saturating_sub(1);
        while self.candidate > 1 {
            if self
                .replay
                .kept
                .get(self.candidate - 1)
                .is_some_and(|kept| kept.is_meeting.load(Ordering::Relaxed) && is_wanted(kept))
            {
                return;
            }
            self.candidate -= 1;
        }
        self.candidate = 0;
    }

    #[inline]
    fn candidate(&self) -> Option<&'r Kept> {
        self.replay.kept.get(self.candidate.checked_sub(1)?)
    }

    /// The walk's frames below this address are of interest before those further out.
    #[inline]
    pub(super) fn stop(&self) -> u64 {
        self.candidate().map_or(u64::MAX, |kept| kept.sp.load(Ordering::Relaxed).saturating_add(1))
    }

    /// The walk has come to a frame with that stack pointer.
    #[inline]
    pub(super) fn go_on(&mut self, sp: u64) {
        match self.attempts.checked_sub(1) {
            Some(left) => {
                self.attempts = left;
                self.seek(|kept| kept.sp.load(Ordering::Relaxed) >= sp);
            }
            None => self.candidate = 0,
        }
    }

    /// Whether this frame, the `count`th of the walk, is the candidate, and there are as many frames further out as are wanted.
    #[inline]
    pub(super) fn is_at(&self, frame: &Frame, count: usize) -> bool {
        let Some((kept, outer)) = self.candidate().zip(self.candidate.checked_sub(2)) else { return false };
        frame.sp == kept.sp.load(Ordering::Relaxed)
            && frame.pc == kept.pc.load(Ordering::Relaxed)
            && self.replay.kept.get(outer).is_some_and(|outer| frame.cfa == Some(outer.sp.load(Ordering::Relaxed)))
            && (count + outer + 1 >= FRAMES || self.replay.is_to_end.load(Ordering::Relaxed))
    }

    /// The candidate's number.
    #[inline]
    pub(super) fn met(&self) -> Option<usize> {
        self.candidate.checked_sub(1)
    }

    /// The last walk.
    #[inline]
    pub(super) fn replay(&self) -> &'r Replay {
        self.replay
    }
}

/// What a walk came by.
#[derive(Debug)]
pub(super) struct Notes {
    read: ReadWords,
    left: LeftFrames,
}

/// The words that a walk read, in that order.
#[derive(Debug)]
pub(super) struct ReadWords {
    places: [(u64, u64); WORDS],
    /// How many were read, which may be more than there is room for.
    count: usize,
    /// Nothing was read but words of the stack.
    is_whole: bool,
}

/// The frames that it left, innermost first.
#[derive(Debug)]
pub(super) struct LeftFrames {
    frames: [LeftFrame; FRAMES],
    count: usize,
}

#[derive(Clone, Copy, Debug)]
struct LeftFrame {
    pc: u64,
    sp: u64,
    found: u8,
    needs_fp: bool,
    saves_fp: bool,
}

impl Notes {
    /// None.
    pub(super) const NONE: Notes = Notes {
        read: ReadWords { places: [(0, 0); WORDS], count: 0, is_whole: true },
        left: LeftFrames {
            frames: [LeftFrame { pc: 0, sp: 0, found: 0, needs_fp: false, saves_fp: false }; FRAMES],
            count: 0,
        },
    };

    /// Forgets all: a walk begins.
    #[inline]
    pub(super) fn begin(&mut self) -> (&mut ReadWords, &mut LeftFrames) {
        (self.read.count, self.read.is_whole, self.left.count) = (0, true, 0);
        (&mut self.read, &mut self.left)
    }

    /// Whether all that the walk read was noted, and was the stack's.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.read.is_whole && self.read.count <= WORDS
    }
}

impl ReadWords {
    #[inline]
    fn push(&mut self, place: u64, word: u64) {
        if let Some(noted) = self.places.get_mut(self.count) {
            *noted = (place, word);
        }
        self.count += 1;
    }
}

impl LeftFrames {
    /// The walk has left a frame, whose rule makes that use of the frame pointer.
    #[inline]
    pub(super) fn push(&mut self, frame: &Frame, fp_use: FpUse) {
        if let Some(noted) = self.frames.get_mut(self.count) {
            let (needs_fp, saves_fp) = (fp_use == FpUse::Base, fp_use == FpUse::Saved);
            *noted = LeftFrame { pc: frame.pc, sp: frame.sp, found: frame.found as u8, needs_fp, saves_fp };
            self.count += 1;
        }
    }
}

/// The memory of a throw that notes what is read of the stack.
pub(super) struct Noting<'n> {
    memory: OwnStack,
    read: &'n mut ReadWords,
}

impl<'n> Noting<'n> {
    /// Notes into `read`.
    pub(super) fn new(memory: OwnStack, read: &'n mut ReadWords) -> Self {
        Noting { memory, read }
    }
}

impl Memory for Noting<'_> {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.read.is_whole = false;
        self.memory.read(address, into)
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        // First, so that a walk that went on after a word that can't be read isn't whole.
        self.read.is_whole &= self.memory.holds(address, 8);
        let word = self.memory.read_u64(address)?;
        self.read.push(address, word);
        Ok(word)
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        self.read.is_whole &= self.memory.holds(address, 16);
        let pair = self.memory.read_pair(address)?;
        self.read.push(address, pair.0);
        self.read.push(address.wrapping_add(8), pair.1);
        Ok(pair)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_unwind::{AddressKind, Found};

    fn same(replay: &Replay, start: &Start) -> Option<u64> {
        match replay.compare(start) {
            Likeness::Same(walk) => Some(walk),
            Likeness::Partly(_) => None,
        }
    }

    /// A stack of some words, the walk that read two of them, and what it began with.
    fn walked(stack: &[u64; 8], replay: &Replay) -> Start {
        let low = stack.as_ptr() as u64;
        let start = Start { pc: 1, sp: low, fp: 3, high: low + 64, fingerprint: 5 };
        let mut notes = Notes::NONE;
        let mut noting = Noting::new(OwnStack { low, high: low + 64, elsewhere: None }, notes.begin().0);
        assert_eq!(noting.read_pair(low + 32), Ok((stack[4], stack[5])));
        // As a register is that an inner frame saved.
        assert_eq!(noting.read_u64(low + 8), Ok(stack[1]));
        assert!(notes.is_whole());
        replay.keep(&start, &notes, 7, None, true);
        start
    }

    #[test]
    fn it_is_the_same_walk_where_all_that_it_depends_on_is_the_same() {
        let (mut stack, replay) = ([10, 11, 12, 13, 14, 15, 16, 17], Replay::none());
        let start = walked(&stack, &replay);
        assert_eq!(same(&replay, &start), Some(7));
        // What was not read does not matter; each word that was does.
        stack[2] = 0;
        assert_eq!(same(&replay, core::hint::black_box(&start)), Some(7));
        for index in [1, 4, 5] {
            stack[index] += 1;
            core::hint::black_box(&mut stack);
            assert_eq!(same(&replay, &start), None, "word {index}");
            stack[index] -= 1;
            core::hint::black_box(&mut stack);
            assert_eq!(same(&replay, &start), Some(7));
        }
        for other in [
            Start { pc: 0, ..start },
            Start { sp: start.sp + 8, ..start },
            Start { fp: 0, ..start },
            Start { high: start.high + 8, ..start },
            Start { fingerprint: 6, ..start },
        ] {
            assert_eq!(same(&replay, &other), None, "{other:?}");
        }
        replay.forget();
        assert_eq!(same(&replay, &start), None);
    }

    #[test]
    fn a_walk_that_reads_anything_else_is_not_whole() {
        let (stack, elsewhere) = ([0_u64; 8], [1_u64; 2]);
        let low = stack.as_ptr() as u64;
        // The second word is none of the stack, and readable: as a guarded read of another stack would be.
        let memory = OwnStack { low, high: low + 64, elsewhere: crate::live::Reader::new() };
        let mut notes = Notes::NONE;
        // An emulator may have no guarded reads before an install: what could not be read makes no whole walk either.
        let read = Noting::new(memory, notes.begin().0).read_u64(elsewhere.as_ptr() as u64);
        assert!(read == Ok(1) || cfg!(target_arch = "aarch64") && read.is_err(), "{read:?}");
        assert!(!notes.is_whole());
        assert_eq!(Noting::new(memory, notes.begin().0).read(low, &mut [0; 4]), Ok(()));
        assert!(!notes.is_whole());
        let mut noting = Noting::new(memory, notes.begin().0);
        for _ in 0..=WORDS {
            assert_eq!(noting.read_u64(low), Ok(0));
        }
        assert!(!notes.is_whole());
        notes.begin();
        assert!(notes.is_whole());
        let start = Start { pc: 1, sp: low, fp: 3, high: low + 64, fingerprint: 0 };
        let replay = Replay::none();
        replay.keep(&start, &notes, 7, None, true);
        assert_eq!(same(&replay, &start), None);
    }

    /// Frames of two words each, whose return addresses are the second; what each does with the frame pointer.
    fn keep_frames(stack: &[u64; 16], uses: [FpUse; 8], replay: &Replay) -> Start {
        let low = stack.as_ptr() as u64;
        let start = Start { pc: 100, sp: low, fp: 3, high: low + 128, fingerprint: 5 };
        let mut notes = Notes::NONE;
        let (read, left) = notes.begin();
        let mut noting = Noting::new(OwnStack { low, high: low + 128, elsewhere: None }, read);
        for (index, fp_use) in uses.into_iter().enumerate() {
            let frame = frame_at(low, index as u64);
            let _ = noting.read_u64(frame.sp + 8);
            left.push(&frame, fp_use);
        }
        replay.keep(&start, &notes, 7, None, true);
        start
    }

    fn frame_at(low: u64, index: u64) -> Frame {
        let (pc, sp) = (100 + index, low + 16 * index);
        let (found, kind) = (Found::Cfi, AddressKind::ReturnAddress);
        Frame { pc, sp, cfa: Some(sp + 16), found, kind, signal_trampoline: false }
    }

    fn meeting<'r>(replay: &'r Replay, start: &Start) -> Meeting<'r> {
        match replay.compare(start) {
            Likeness::Same(_) => panic!("it is the same"),
            Likeness::Partly(meeting) => meeting,
        }
    }

    #[test]
    fn a_walk_meets_the_last_one_behind_the_last_word_that_changed() {
        let (mut stack, replay) = ([9; 16], Replay::none());
        let start = keep_frames(&stack, [FpUse::None; 8], &replay);
        let low = start.sp;
        // Of a deeper stack: the frame that threw has another address now, the next one may be the same.
        let deeper = Start { sp: low - 64, ..start };
        assert_eq!(meeting(&replay, &deeper).met(), Some(6));
        // Of a shallower one.
        let shallower = Start { sp: low + 48, ..start };
        let met = meeting(&replay, &shallower);
        assert_eq!((met.met(), met.stop()), (Some(3), low + 65));
        for index in 0..8 {
            stack[2 * index + 1] = 0;
            core::hint::black_box(&mut stack);
            // The outermost frame has no canonical frame address to be known by.
            let wanted = (index < 6).then(|| if index == 0 { 6 } else { 6 - index });
            assert_eq!(meeting(&replay, &deeper).met(), wanted, "frame {index}");
            stack[2 * index + 1] = 9;
        }
        core::hint::black_box(&mut stack);
        for other in [Start { high: low, ..deeper }, Start { fingerprint: 0, ..deeper }] {
            assert_eq!(meeting(&replay, &other).met(), None);
        }
    }

    #[test]
    fn two_walks_are_at_the_same_frame_where_its_addresses_are_the_same() {
        let (stack, replay) = ([9; 16], Replay::none());
        let start = keep_frames(&stack, [FpUse::None; 8], &replay);
        let mut met = meeting(&replay, &Start { sp: start.sp - 64, ..start });
        let frame = frame_at(start.sp, 1);
        assert!(met.is_at(&frame, 5));
        for other in [
            Frame { pc: 0, ..frame },
            Frame { sp: frame.sp + 8, ..frame },
            Frame { cfa: None, ..frame },
            Frame { cfa: Some(frame.sp + 24), ..frame },
        ] {
            assert!(!met.is_at(&other, 5), "{other:?}");
        }
        // It was passed by: the next one that is not below.
        met.go_on(start.sp + 40);
        assert!(met.is_at(&frame_at(start.sp, 3), 5));
        for _ in 0..4 {
            met.go_on(start.sp + 40);
        }
        assert_eq!((met.met(), met.stop()), (None, u64::MAX));
        // Where the last walk did not come to the end of the stack, there must be as many frames as are wanted.
        replay.is_to_end.store(false, Ordering::Relaxed);
        let met = meeting(&replay, &Start { sp: start.sp - 64, ..start });
        assert!(!met.is_at(&frame, FRAMES - 7));
        assert!(met.is_at(&frame, FRAMES - 6));
    }

    #[test]
    fn no_walk_meets_another_where_it_could_have_another_frame_pointer() {
        let (stack, replay) = ([9; 16], Replay::none());
        let candidates = |saved: &[usize], needed: &[usize]| {
            let mut uses = [FpUse::None; 8];
            for (frames, fp_use) in [(saved, FpUse::Saved), (needed, FpUse::Base)] {
                for frame in frames {
                    uses[*frame] = fp_use;
                }
            }
            let start = keep_frames(&stack, uses, &replay);
            let mut met = meeting(&replay, &Start { sp: start.sp - 64, ..start });
            core::iter::from_fn(move || {
                let now = met.met();
                met.seek(|_| true);
                now
            })
        };
        // Frame 5 needs it and has it from frame 2, which saved it: at those between nothing is known of it.
        assert!(candidates(&[2], &[5]).eq([6, 5, 2, 1]));
        assert!(candidates(&[], &[5, 6]).eq([2, 1]));
        assert!(candidates(&[], &[]).eq([6, 5, 4, 3, 2, 1]));
    }
}
