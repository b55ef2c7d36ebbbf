//! What a walk of the calling thread reads: its own stack by plain loads, everything else by a [`LiveReader`].
//!
//! Whether faults of loads are recovered on a thread is a question to the kernel, which costs as much as walking thirty frames. A
//! walk of ordinary frames whose rules are known never needs the answer: it reads nothing but the thread's own stack, of which all
//! above the stack pointer is mapped. So it is asked when a walk leaves that, and for the dynamic linker's list at every 64th walk.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use coroner_process::memory::{BLOCK, KernelCopy, LoadGuarded, Memory, Unreadable, Windowed};

use crate::{LiveReader, fault_handler, stack_bounds};

/// What is known of a thread that walks its own stack: kept by the caller, one for each thread. All zero is nothing. (Atomic, since a
/// signal handler of the thread may walk, too.)
#[derive(Debug, Default)]
pub struct ThreadStack {
    /// The stack: its lowest address, and that above the highest; 0 while they are not known. If the system returns none, the stack
    /// is empty.
    low: AtomicU64,
    high: AtomicU64,
    /// How many walks it made.
    walks: AtomicU32,
    /// Loads were recovered the last time that the kernel was asked.
    guards_loads: AtomicBool,
}

/// After so many walks of a thread it is asked again what reads the dynamic linker's list. That is right as long as the thread
/// begins to block SIGSEGV neither in between nor, what counts, at the very moment at which a library is unloaded that the list still
/// has.
const ASKED: u32 = 64;

impl ThreadStack {
    /// Nothing is known.
    #[must_use]
    pub const fn new() -> ThreadStack {
        ThreadStack {
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
            walks: AtomicU32::new(0),
            guards_loads: AtomicBool::new(false),
        }
    }

    /// The thread ended: the next one that uses this is another.
    pub fn forget(&self) {
        self.high.store(0, Relaxed);
        self.walks.store(0, Relaxed);
    }

    /// Begins a walk of the calling thread, whose this is, from a stack pointer of it.
    #[inline]
    pub fn reader(&self, sp: u64) -> StackReader<'static> {
        let mut elsewhere = None;
        let walks = self.walks.load(Relaxed);
        self.walks.store(walks.wrapping_add(1), Relaxed);
        let list = if walks.is_multiple_of(ASKED) || !self.guards_loads.load(Relaxed) || !fault_handler::has_owner() {
            let asked = self.renew();
            elsewhere = Some(asked);
            asked
        } else {
            // SAFETY: of the last 64 walks of the thread one asked, and they are recovered.
            Some(LiveReader::Loads(unsafe { LoadGuarded::new() }))
        };
        let high = self.high.load(Relaxed);
        let stack = if (self.low.load(Relaxed)..high).contains(&sp) { sp..high } else { sp..sp };
        StackReader { stack, list, elsewhere, windows: None }
    }

    /// Asks the system what there is to know of the calling thread.
    #[cold]
    fn renew(&self) -> Option<LiveReader> {
        if self.high.load(Relaxed) == 0 {
            // What walks while this is found out (an allocator's hook, say) does without.
            let stack = stack_bounds();
            self.low.store(stack.start, Relaxed);
            // In this order also for a handler on this thread.
            compiler_fence(Ordering::Release);
            self.high.store(stack.end.max(1), Relaxed);
        }
        let reader = LiveReader::asked_anew();
        self.guards_loads.store(matches!(reader, Some(LiveReader::Loads(_))), Relaxed);
        reader
    }
}

/// What the kernel copies, and what is kept of it for one walk.
pub type CopiedWindows = Windowed<KernelCopy, 4>;

/// See the module.
#[derive(Debug)]
pub struct StackReader<'w> {
    /// From the stack pointer up to the end of the stack; empty if the stack pointer is on another stack than the thread's own (a
    /// coroutine's, a signal's).
    stack: Range<u64>,
    list: Option<LiveReader>,
    /// What reads all else, once it was asked for.
    elsewhere: Option<Option<LiveReader>>,
    /// Read all that is not on the stack, if they are there.
    windows: Option<&'w mut CopiedWindows>,
}

impl<'w> StackReader<'w> {
    /// Reads all by `reader`, for a walk of a stack that is not the calling thread's, or not known. For what has a `StackReader` in other walks:
    /// the unwinder is compiled once for each kind of reader, and is large.
    #[must_use]
    pub fn of_elsewhere(reader: LiveReader) -> StackReader<'w> {
        StackReader { stack: u64::MAX..u64::MAX, list: Some(reader), elsewhere: Some(Some(reader)), windows: None }
    }

    /// The same for copies by the kernel.
    #[must_use]
    pub fn of_windows(windows: &'w mut CopiedWindows) -> StackReader<'w> {
        StackReader { stack: u64::MAX..u64::MAX, list: None, elsewhere: Some(None), windows: Some(windows) }
    }

    /// What reads the dynamic linker's list; `None` if that can't be read.
    #[inline]
    pub fn list(&mut self) -> Option<LiveReader> {
        self.list.or_else(|| self.elsewhere())
    }

    /// What reads everything; `None` if nothing can be read.
    #[inline]
    pub fn elsewhere(&mut self) -> Option<LiveReader> {
        *self.elsewhere.get_or_insert_with(LiveReader::new)
    }

    /// Whether the walk is of the thread's own stack, and all else is loaded, too: then this is the fastest reader. (If it is not,
    /// windows of what [`elsewhere`](Self::elsewhere) reads are.)
    #[inline]
    pub fn is_fastest(&self) -> bool {
        !self.stack.is_empty() && matches!(self.list, Some(LiveReader::Loads(_)))
    }

    /// Whether `bytes` bytes from `address` on are on the thread's own stack.
    #[inline]
    pub fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.stack.start && address <= self.stack.end.saturating_sub(bytes)
    }

    #[cold]
    fn reader_of(&mut self, address: u64) -> Result<LiveReader, Unreadable> {
        self.elsewhere().ok_or(Unreadable { address })
    }
}

impl Memory for StackReader<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if self.holds(address, into.len() as u64) {
            // SAFETY: the calling thread's own stack above its stack pointer: it is mapped, and nobody else writes it.
            unsafe { core::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
            return Ok(());
        }
        match &mut self.windows {
            Some(windows) => windows.read(address, into),
            None => self.reader_of(address)?.read(address, into),
        }
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        if self.holds(address, 8) {
            // SAFETY: as above.
            return Ok(unsafe { (address as *const u64).read_unaligned() });
        }
        match &mut self.windows {
            Some(windows) => windows.read_u64(address),
            None => self.reader_of(address)?.read_u64(address),
        }
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        if self.holds(address, 16) {
            // SAFETY: as above.
            return Ok(unsafe { (address as *const (u64, u64)).read_unaligned() });
        }
        match &mut self.windows {
            Some(windows) => windows.read_pair(address),
            None => self.reader_of(address)?.read_pair(address),
        }
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        if self.holds(address, BLOCK as u64) {
            return self.read(address, into);
        }
        match &mut self.windows {
            Some(windows) => windows.read_block(address, into),
            None => self.reader_of(address)?.read_block(address, into),
        }
    }
}
