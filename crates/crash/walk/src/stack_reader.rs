//! Reader for a walk of the calling thread: its own stack by plain loads, all other memory by a
//! [`LiveReader`].
//!
//! Determining whether faults of loads are recovered on a thread requires a query to the kernel,
//! which costs as much as walking thirty frames. A walk of ordinary frames whose rules are known
//! never needs the answer: it reads only the thread's own stack, of which everything above the
//! stack pointer is mapped. So the query is made when a walk leaves the stack, and for the dynamic
//! linker's list at every 64th walk.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};

use coroner_process::memory::{BLOCK, KernelCopy, LoadGuarded, Memory, Unreadable, Windowed};

use crate::{LiveReader, fault_handler, stack_bounds};

/// Data about a thread that walks its own stack: kept by the caller, one per thread. All zero means
/// that nothing is known. (Atomic, since a signal handler of the thread may walk, too.)
#[derive(Debug, Default)]
pub struct ThreadStack {
    /// The stack: its lowest address, and the address above the highest; 0 while they are unknown.
    /// If the system returns none, the stack is empty.
    low: AtomicU64,
    high: AtomicU64,
    /// Number of walks that the thread has made.
    walks: AtomicU32,
    /// Whether loads were recovered at the last query to the kernel.
    guards_loads: AtomicBool,
}

/// Number of walks of a thread between queries for the reader of the dynamic linker's list. This is
/// correct unless the thread begins to block SIGSEGV in between, and only matters if it does so at
/// the very moment at which a library is unloaded that the list still contains.
const WALKS_PER_QUERY: u32 = 64;

impl ThreadStack {
    /// Creates the data of a thread about which nothing is known.
    #[must_use]
    pub const fn new() -> ThreadStack {
        ThreadStack {
            low: AtomicU64::new(0),
            high: AtomicU64::new(0),
            walks: AtomicU32::new(0),
            guards_loads: AtomicBool::new(false),
        }
    }

    /// Clears the data when the thread has ended: the next thread to use this is a different one.
    pub fn forget(&self) {
        self.high.store(0, Relaxed);
        self.walks.store(0, Relaxed);
    }

    /// Begins a walk of the calling thread, which this data must belong to, from one of its stack
    /// pointers.
    #[inline]
    pub fn reader(&self, sp: u64) -> StackReader<'static> {
        let mut elsewhere = None;
        let walks = self.walks.load(Relaxed);
        self.walks.store(walks.wrapping_add(1), Relaxed);
        let list =
            if walks.is_multiple_of(WALKS_PER_QUERY) || !self.guards_loads.load(Relaxed) || !fault_handler::has_owner()
            {
                let asked = self.renew();
                elsewhere = Some(asked);
                asked
            } else {
                // SAFETY: one of the last 64 walks of the thread made the query, and faults are
                // recovered.
                Some(LiveReader::Loads(unsafe { LoadGuarded::new() }))
            };
        let high = self.high.load(Relaxed);
        let stack = if (self.low.load(Relaxed)..high).contains(&sp) { sp..high } else { sp..sp };
        StackReader { stack, list, elsewhere, windows: None }
    }

    /// Queries the system about the calling thread.
    #[cold]
    fn renew(&self) -> Option<LiveReader> {
        if self.high.load(Relaxed) == 0 {
            // Code that walks in the meantime (for example an allocator's hook) does without.
            let stack = stack_bounds();
            self.low.store(stack.start, Relaxed);
            // In this order also for a handler on this thread.
            compiler_fence(Ordering::Release);
            self.high.store(stack.end.max(1), Relaxed);
        }
        let reader = LiveReader::new_after_query();
        self.guards_loads.store(matches!(reader, Some(LiveReader::Loads(_))), Relaxed);
        reader
    }
}

/// Kernel copies, with the windows that are kept for one walk.
pub type CopiedWindows = Windowed<KernelCopy, 4>;

/// Reader for a walk. See the module.
#[derive(Debug)]
pub struct StackReader<'w> {
    /// From the stack pointer up to the end of the stack; empty if the stack pointer is on a stack
    /// other than the thread's own (a coroutine's, a signal's).
    stack: Range<u64>,
    list: Option<LiveReader>,
    /// Reader for all other memory, once it was needed.
    elsewhere: Option<Option<LiveReader>>,
    /// If set, these read everything that is not on the stack.
    windows: Option<&'w mut CopiedWindows>,
}

impl<'w> StackReader<'w> {
    /// Creates a reader that reads everything by `reader`, for a walk of a stack that is not the
    /// calling thread's, or not known. Other walks need a `StackReader`, too: the unwinder is
    /// compiled once for each kind of reader, and is large.
    #[must_use]
    pub fn with_reader(reader: LiveReader) -> StackReader<'w> {
        StackReader { stack: u64::MAX..u64::MAX, list: Some(reader), elsewhere: Some(Some(reader)), windows: None }
    }

    /// Same as [`Self::with_reader`], for copies by the kernel.
    #[must_use]
    pub fn with_windows(windows: &'w mut CopiedWindows) -> StackReader<'w> {
        StackReader { stack: u64::MAX..u64::MAX, list: None, elsewhere: Some(None), windows: Some(windows) }
    }

    /// Returns the reader of the dynamic linker's list; `None` if that can't be read.
    #[inline]
    pub fn list(&mut self) -> Option<LiveReader> {
        self.list.or_else(|| self.elsewhere())
    }

    /// Returns the reader of all memory; `None` if nothing can be read.
    #[inline]
    pub fn elsewhere(&mut self) -> Option<LiveReader> {
        *self.elsewhere.get_or_insert_with(LiveReader::new)
    }

    /// Returns `true` if the walk is of the thread's own stack, and all other memory is read by
    /// loads, too: then this is the fastest reader. (Otherwise windows of what
    /// [`elsewhere`](Self::elsewhere) reads are.)
    #[inline]
    pub fn is_fastest(&self) -> bool {
        !self.stack.is_empty() && matches!(self.list, Some(LiveReader::Loads(_)))
    }

    /// Returns `true` if `bytes` bytes from `address` on are on the thread's own stack.
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
            // SAFETY: the calling thread's own stack above its stack pointer: it is mapped, and
            // nobody else writes it.
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
