//! Thread slots: one for each thread that throws, with its last throws in a ring.
//!
//! A thread finds its slot by a thread-specific value (`pthread_getspecific`), whose destructor
//! returns the slot when the thread ends. Slots are in chunks that are mapped when they are needed
//! and never unmapped: other threads may read them ([`find`]). Returned slots are reused first,
//! without a lock.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use coroner_walk::{StackReader, ThreadStack, ticks};

use super::{FRAMES, KEPT};

/// Number of slots per chunk, and maximum number of chunks.
const CHUNK: usize = 64;
const CHUNKS: usize = 64;

/// A throw. Its words are atomic since other threads may read them; `object` is 0 while they are
/// written.
struct Throw {
    object: AtomicU64,
    type_info: AtomicU64,
    /// When it was thrown, by the processor's clock.
    when: AtomicU64,
    count: AtomicU32,
    frames: Frames,
}

pub(super) struct Frames {
    pcs: [AtomicU64; FRAMES],
    found: [AtomicU8; FRAMES],
}

impl Frames {
    /// Stores one frame: its address, and the number of the method by which it was found.
    #[inline]
    pub(super) fn set(&self, index: usize, pc: u64, found: u8) {
        if let (Some(pc_at), Some(found_at)) = (self.pcs.get(index), self.found.get(index)) {
            pc_at.store(pc, Ordering::Relaxed);
            found_at.store(found, Ordering::Relaxed);
        }
    }
}

/// A thread's slot. All zero is an empty one.
struct Slot {
    /// Whether the thread is using the slot: a throw from an interrupting signal handler is then
    /// not captured.
    busy: AtomicBool,
    /// Index of the throw that is replaced next.
    next: AtomicUsize,
    stack: ThreadStack,
    /// Number of throws that were captured in the slot, by all threads that have had it.
    captured: AtomicU64,
    /// Number of the next slot in the free list, plus one.
    next_free: AtomicU32,
    throws: [Throw; KEPT],
}

static CHUNK_AT: [AtomicUsize; CHUNKS] = [const { AtomicUsize::new(0) }; CHUNKS];
/// Number of slots that were ever handed out.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Number of the first free slot plus one, and a count of changes in the upper half, so that a slot
/// which was taken and returned in the meantime is noticed.
static FREE: AtomicU64 = AtomicU64::new(0);

/// No key yet.
const NO_KEY: usize = usize::MAX;
/// Key of the thread-specific value: the address of the thread's slot.
static KEY: AtomicUsize = AtomicUsize::new(NO_KEY);

/// Creates the key and the first chunk (not async-signal-safe). Returns `false` if the system
/// provides none.
pub(super) fn prepare() -> bool {
    if KEY.load(Ordering::Acquire) == NO_KEY {
        let mut key: libc::pthread_key_t = 0;
        // SAFETY: writes one key; the destructor is sound for every value that `mine` sets.
        if unsafe { libc::pthread_key_create(&raw mut key, Some(release)) } != 0 {
            return false;
        }
        KEY.store(key as usize, Ordering::Release);
    }
    slot_at(0).is_some()
}

/// Returns the slot with that number; maps its chunk if necessary.
fn slot_at(number: usize) -> Option<&'static Slot> {
    let chunk = CHUNK_AT.get(number / CHUNK)?;
    let mut at = chunk.load(Ordering::Acquire);
    if at == 0 {
        let size = CHUNK * size_of::<Slot>();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the system's choice touches nothing that exists.
        let mapped =
            unsafe { libc::mmap(core::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        match chunk.compare_exchange(0, mapped as usize, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => at = mapped as usize,
            Err(other) => {
                // SAFETY: another thread was first; nothing else uses this mapping.
                unsafe { libc::munmap(mapped, size) };
                at = other;
            }
        }
    }
    // SAFETY: a chunk of zeroed slots that is never unmapped; all fields are atomic.
    Some(unsafe { &*(at as *const Slot).add(number % CHUNK) })
}

fn number_of(slot: &Slot) -> Option<usize> {
    let address = core::ptr::from_ref(slot) as usize;
    let size = CHUNK * size_of::<Slot>();
    let chunk = CHUNK_AT.iter().position(|chunk| {
        let at = chunk.load(Ordering::Acquire);
        at != 0 && (at..at + size).contains(&address)
    })?;
    let start = CHUNK_AT.get(chunk)?.load(Ordering::Acquire);
    Some(chunk * CHUNK + (address - start) / size_of::<Slot>())
}

/// Returns a slot that no thread has: a returned one, or a new one.
fn take() -> Option<&'static Slot> {
    let mut head = FREE.load(Ordering::Acquire);
    while head as u32 != 0 {
        let slot = slot_at((head as u32 - 1) as usize)?;
        let next = (head >> 32).wrapping_add(1) << 32 | u64::from(slot.next_free.load(Ordering::Relaxed));
        match FREE.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(slot),
            Err(now) => head = now,
        }
    }
    let number = USED.fetch_add(1, Ordering::AcqRel);
    let slot = slot_at(number);
    if slot.is_none() {
        USED.fetch_sub(1, Ordering::AcqRel);
    }
    slot
}

/// Returns a slot to the free list. Its throws can still be found until another thread overwrites
/// them.
fn give_back(slot: &'static Slot) {
    let Some(number) = number_of(slot) else { return };
    let mut head = FREE.load(Ordering::Acquire);
    loop {
        slot.next_free.store(head as u32, Ordering::Relaxed);
        let next = (head >> 32).wrapping_add(1) << 32 | (number as u64 + 1);
        match FREE.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Destructor of the thread-specific value: a thread with a slot ends.
unsafe extern "C" fn release(slot: *mut c_void) {
    // SAFETY: the value is what `mine` set.
    let slot = unsafe { &*slot.cast::<Slot>() };
    slot.stack.forget();
    slot.busy.store(false, Ordering::Release);
    give_back(slot);
}

/// Returns the calling thread's slot, created if it has none. Returns `None` if there is no memory,
/// or too many threads have one.
#[inline]
fn mine() -> Option<&'static Slot> {
    let key = KEY.load(Ordering::Acquire);
    if key == NO_KEY {
        return None;
    }
    // SAFETY: the key is valid; the value is a slot's address or null.
    let slot = unsafe { libc::pthread_getspecific(key as libc::pthread_key_t) }.cast::<Slot>();
    // SAFETY: slots are never unmapped.
    unsafe { slot.as_ref() }.or_else(|| first_time(key))
}

#[cold]
fn first_time(key: usize) -> Option<&'static Slot> {
    let slot = take()?;
    let value = core::ptr::from_ref(slot).cast::<c_void>();
    // SAFETY: the key is valid.
    if unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, value) } != 0 {
        give_back(slot);
        return None;
    }
    Some(slot)
}

/// The calling thread's slot, while the thread uses it.
pub(super) struct Entered(&'static Slot);

/// Enters the calling thread's slot. Returns `None` if it has none, or is already in it.
#[inline]
pub(super) fn enter() -> Option<Entered> {
    let slot = mine()?;
    // Only the thread itself and code that interrupts it: no other processor accesses it.
    if slot.busy.load(Ordering::Relaxed) {
        return None;
    }
    slot.busy.store(true, Ordering::Release);
    Some(Entered(slot))
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Entered {
    /// Returns the reader of the thread's memory for a walk from that stack pointer.
    #[inline]
    pub(super) fn stack_reader(&self, sp: u64) -> StackReader<'static> {
        self.0.stack.reader(sp)
    }

    /// Records a throw: it replaces the one of the same object, which is over, or the oldest.
    /// `fill` writes its frames, and returns their number.
    #[inline]
    pub(super) fn record(&mut self, object: u64, type_info: u64, fill: impl FnOnce(&Frames) -> usize) {
        let slot = self.0;
        let same = slot.throws.iter().find(|throw| throw.object.load(Ordering::Relaxed) == object);
        let Some(throw) = same.or_else(|| self.oldest()) else { return };
        throw.object.store(0, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::Release);
        throw.count.store(fill(&throw.frames).min(FRAMES) as u32, Ordering::Relaxed);
        throw.type_info.store(type_info, Ordering::Relaxed);
        throw.when.store(ticks(), Ordering::Relaxed);
        throw.object.store(object, Ordering::Release);
        // The thread's own word, which others only read.
        slot.captured.store(slot.captured.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the throw that is replaced next.
    #[inline]
    fn oldest(&self) -> Option<&'static Throw> {
        let next = self.0.next.load(Ordering::Relaxed);
        self.0.next.store(next.wrapping_add(1) % KEPT, Ordering::Relaxed);
        self.0.throws.get(next % KEPT)
    }

    /// Marks the throw of that object as new; returns `false` if there is none.
    pub(super) fn refresh(&mut self, object: u64, type_info: u64) -> bool {
        let same = self.0.throws.iter().find(|throw| throw.is_of(object, type_info));
        if let Some(throw) = same {
            throw.when.store(ticks(), Ordering::Relaxed);
        }
        same.is_some()
    }
}

impl Throw {
    fn is_of(&self, object: u64, type_info: u64) -> bool {
        self.object.load(Ordering::Acquire) == object && self.type_info.load(Ordering::Relaxed) == type_info
    }
}

/// Iterates over all slots that were ever handed out.
fn slots() -> impl Iterator<Item = &'static Slot> {
    (0..USED.load(Ordering::Acquire).min(CHUNK * CHUNKS)).filter_map(slot_at)
}

fn all() -> impl Iterator<Item = &'static Throw> {
    slots().flat_map(|slot| slot.throws.iter())
}

pub(super) fn captured() -> u64 {
    slots().map(|slot| slot.captured.load(Ordering::Relaxed)).sum()
}

/// Returns `true` if a throw of that object is stored.
pub(super) fn has(object: u64, type_info: u64) -> bool {
    all().any(|throw| throw.is_of(object, type_info))
}

/// Calls `each` with the frames of the throw of that object, wherever it was thrown; the newest
/// one, if an object of the same type was thrown at the same address before. Returns their number.
pub(super) fn find(object: u64, type_info: u64, each: &mut impl FnMut(usize, u64, u8)) -> usize {
    let newest = all().filter(|throw| throw.is_of(object, type_info));
    let Some(throw) = newest.max_by_key(|throw| throw.when.load(Ordering::Relaxed)) else { return 0 };
    let count = (throw.count.load(Ordering::Relaxed) as usize).min(FRAMES);
    for (index, (pc, found)) in throw.frames.pcs.iter().zip(&throw.frames.found).take(count).enumerate() {
        each(index, pc.load(Ordering::Relaxed), found.load(Ordering::Relaxed));
    }
    // The thread may have thrown something else in the meantime; then this object is gone.
    core::sync::atomic::fence(Ordering::Acquire);
    if throw.is_of(object, type_info) { count } else { 0 }
}
