//! What a capture of the calling thread reads: its own stack by plain loads, everything else guarded.
//!
//! Whether faults of loads are made good on a thread is a question to the kernel, which costs as much as walking thirty frames. A
//! walk of ordinary frames whose rules are known never needs the answer: it reads nothing but the thread's own stack, of which all
//! above the stack pointer is mapped. So it is asked where a walk leaves that, and for the dynamic linker's list now and then.

use std::cell::{Cell, OnceCell};
use std::ops::Range;

use coroner_capture::live::{self, Reader};
use coroner_machine::memory::{BLOCK, Memory, Unreadable};

/// What is known of a thread that captured before.
#[derive(Clone, Copy)]
struct Known {
    /// Its stack; empty while that is not known, and where the system does not tell.
    low: u64,
    high: u64,
    /// How many captures it made.
    captures: u32,
    /// What reads the dynamic linker's list, as of the last time that it was asked.
    list: Option<Reader>,
}

/// After so many captures of a thread it is asked again what reads the dynamic linker's list. That is right as long as the thread
/// begins to block SIGSEGV neither in between nor, what counts, at the very moment at which a library is unloaded that the list still
/// has.
const ASKED: u32 = 64;

thread_local! {
    static KNOWN: Cell<Known> = const { Cell::new(Known { low: 0, high: 0, captures: 0, list: None }) };
}

/// What reads, on the calling thread.
pub(super) struct Live {
    /// From the stack pointer up to the end of the stack; empty if the stack pointer is on another stack than the thread's own.
    stack: Range<u64>,
    list: Option<Reader>,
    /// What reads all else, once it was asked for.
    elsewhere: OnceCell<Option<Reader>>,
}

impl Live {
    /// Begins a capture of the calling thread, from a stack pointer of it.
    #[inline]
    pub(super) fn from(sp: u64) -> Live {
        let mut known = KNOWN.get();
        let elsewhere = OnceCell::new();
        if known.captures.is_multiple_of(ASKED) {
            let _ = elsewhere.set(renew(&mut known));
        }
        known.captures = known.captures.wrapping_add(1);
        KNOWN.set(known);
        let stack = if (known.low..known.high).contains(&sp) { sp..known.high } else { sp..sp };
        Live { stack, list: known.list, elsewhere }
    }

    /// What reads the dynamic linker's list; nothing where that can't be read.
    #[inline]
    pub(super) fn list(&mut self) -> Option<Reader> {
        self.list.or_else(|| self.anywhere())
    }

    /// What reads the thread's own stack by plain loads. Nothing where the capture is of another stack, and where all else would
    /// be copied word by word: that goes through windows.
    #[inline]
    pub(super) fn own_stack(&mut self) -> Option<OwnStack<'_>> {
        let is_usual = !self.stack.is_empty() && matches!(self.list, Some(Reader::Loads(_)));
        is_usual.then_some(OwnStack(self))
    }

    /// What reads everything.
    #[inline]
    pub(super) fn anywhere(&mut self) -> Option<Reader> {
        *self.elsewhere.get_or_init(Reader::new)
    }
}

/// Asks the system what there is to know of a thread.
#[cold]
fn renew(known: &mut Known) -> Option<Reader> {
    if known.high == 0 {
        // What captures while this is found out (an allocator's hook, say) does without.
        known.captures = 1;
        KNOWN.set(*known);
        let stack = live::stack_bounds();
        (known.low, known.high) = (stack.start, stack.end.max(1));
    }
    let reader = Reader::asked_anew();
    known.list = reader;
    reader
}

/// See the module.
pub(super) struct OwnStack<'l>(&'l mut Live);

impl OwnStack<'_> {
    #[inline]
    fn holds(&self, address: u64, bytes: u64) -> bool {
        let stack = &self.0.stack;
        address >= stack.start && address <= stack.end.saturating_sub(bytes)
    }

    #[cold]
    fn elsewhere(&mut self, address: u64) -> Result<Reader, Unreadable> {
        self.0.anywhere().ok_or(Unreadable { address })
    }
}

impl Memory for OwnStack<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if self.holds(address, into.len() as u64) {
            // SAFETY: the calling thread's own stack above its stack pointer: it is mapped, and nobody else writes it.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
            return Ok(());
        }
        self.elsewhere(address)?.read(address, into)
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        if self.holds(address, 8) {
            // SAFETY: as above.
            return Ok(unsafe { (address as *const u64).read_unaligned() });
        }
        self.elsewhere(address)?.read_u64(address)
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        if self.holds(address, 16) {
            // SAFETY: as above.
            return Ok(unsafe { (address as *const (u64, u64)).read_unaligned() });
        }
        self.elsewhere(address)?.read_pair(address)
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        if self.holds(address, BLOCK as u64) {
            return self.read(address, into);
        }
        self.elsewhere(address)?.read_block(address, into)
    }
}
