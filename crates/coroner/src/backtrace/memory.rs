//! What a capture of the calling thread reads: its own stack by plain loads, everything else guarded.
//!
//! Whether faults of loads are made good on a thread is a question to the kernel, which costs as much as walking thirty frames. A
//! walk of ordinary frames whose rules are known never needs the answer: it reads nothing but the thread's own stack, of which all
//! above the stack pointer is mapped. So it is asked where a walk leaves that, and for the dynamic linker's list now and then.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use coroner_capture::live::{self, Reader};
use coroner_machine::memory::{BLOCK, Memory, Unreadable};

/// What is known of a thread that captured before. Each is a cell of its own: a signal handler may capture, too.
struct Known {
    /// Its stack: the lowest address, and that above the highest; 0 while they are not known. Where the system does not tell, the
    /// stack is empty.
    low: Cell<u64>,
    high: Cell<u64>,
    /// How many captures it made.
    captures: Cell<u32>,
    /// What reads the dynamic linker's list, as of the last time that it was asked.
    list: Cell<Option<Reader>>,
}

/// After so many captures of a thread it is asked again what reads the dynamic linker's list. That is right as long as the thread
/// begins to block SIGSEGV neither in between nor, what counts, at the very moment at which a library is unloaded that the list still
/// has.
const ASKED: u32 = 64;

thread_local! {
    static KNOWN: Known = const {
        Known { low: Cell::new(0), high: Cell::new(0), captures: Cell::new(0), list: Cell::new(None) }
    };
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
        KNOWN.with(|known| {
            let elsewhere = OnceCell::new();
            let captures = known.captures.get();
            known.captures.set(captures.wrapping_add(1));
            let is_settled = matches!(known.list.get(), Some(Reader::Loads(_))) && live::is_installed();
            if captures.is_multiple_of(ASKED) || !is_settled {
                let _ = elsewhere.set(known.renew());
            }
            let high = known.high.get();
            let stack = if (known.low.get()..high).contains(&sp) { sp..high } else { sp..sp };
            Live { stack, list: known.list.get(), elsewhere }
        })
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

impl Known {
    /// Asks the system what there is to know of the calling thread.
    #[cold]
    fn renew(&self) -> Option<Reader> {
        if self.high.get() == 0 {
            // What captures while this is found out (an allocator's hook, say) does without.
            let stack = live::stack_bounds();
            self.low.set(stack.start);
            // In this order also for a handler on this thread.
            compiler_fence(Ordering::Release);
            self.high.set(stack.end.max(1));
        }
        let reader = Reader::asked_anew();
        self.list.set(reader);
        reader
    }
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
