//! App memory for crash reports: memory that the app registered (a ring of log lines, a game's
//! state), and the output of its crash callback.
//!
//! A static table, which the app fills during normal operation and the crash path reads: no locks;
//! each entry has a word that marks it as complete. The memory is read guarded, since it may be
//! gone by then.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use coroner_process::memory::Memory;
use coroner_report::wire::{AppMemory, Encoder};

use super::output_tail;

/// Maximum number of registered memory regions.
pub const MAX_REGIONS: usize = 16;
/// Number of sections that [`encode`] numbers: one for each region, and for stderr and stdout
/// ([`keep_output`](super::keep_output)).
pub(crate) const SECTIONS: usize = MAX_REGIONS + output_tail::COUNT;
/// Maximum length of a name in bytes.
pub const MAX_NAME: usize = 64;
/// Maximum number of bytes kept of each region and output, and written by the callback.
pub const MAX_BYTES: usize = 60 << 10;

/// Bytes that are read at once: the memory may end after any of them.
const STEP: usize = 256;

/// Function that is called when the process crashes, after everything else is in the report. It
/// must be async-signal-safe: it must not allocate, lock, wait or throw. It writes at most `room`
/// bytes to `into` and returns their number. A fault in it ends it, as does the report's deadline.
pub type CrashCallback = unsafe extern "C" fn(context: *mut c_void, into: *mut u8, room: usize) -> usize;

const FREE: u32 = 0;
const CHANGING: u32 = 1;
const WHOLE: u32 = 2;

struct Region {
    state: AtomicU32,
    name: [AtomicU64; MAX_NAME / 8],
    name_length: AtomicUsize,
    address: AtomicU64,
    size: AtomicUsize,
}

static REGIONS: [Region; MAX_REGIONS] = [const {
    Region {
        state: AtomicU32::new(FREE),
        name: [const { AtomicU64::new(0) }; MAX_NAME / 8],
        name_length: AtomicUsize::new(0),
        address: AtomicU64::new(0),
        size: AtomicUsize::new(0),
    }
}; MAX_REGIONS];

/// A callback's address and its context, which belong together.
struct Pair {
    state: AtomicU32,
    /// Number of times that the place was filled.
    filled: AtomicU64,
    callback: AtomicUsize,
    context: AtomicUsize,
}

/// Pairs, of which [`CURRENT`] is in use: threads that set callbacks at the same time fill
/// different places.
static PAIRS: [Pair; 16] = [const {
    Pair {
        state: AtomicU32::new(FREE),
        filled: AtomicU64::new(0),
        callback: AtomicUsize::new(0),
        context: AtomicUsize::new(0),
    }
}; 16];

/// One more than the place of the callback in [`PAIRS`]; 0 for none.
static CURRENT: AtomicUsize = AtomicUsize::new(0);

/// Registers memory under a name, which is truncated if it is too long. Returns the region's
/// number, or `None` if [`MAX_REGIONS`] are already registered.
pub fn register(name: &str, address: u64, size: usize) -> Option<usize> {
    let take =
        |region: &Region| region.state.compare_exchange(FREE, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let number = REGIONS.iter().position(take)?;
    let region = REGIONS.get(number)?;
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let mut words = [[0; 8]; MAX_NAME / 8];
    for (to, from) in words.as_flattened_mut().iter_mut().zip(name.as_bytes().iter().take(end)) {
        *to = *from;
    }
    for (to, word) in region.name.iter().zip(words) {
        to.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    region.name_length.store(end, Ordering::Relaxed);
    region.address.store(address, Ordering::Relaxed);
    region.size.store(size, Ordering::Relaxed);
    region.state.store(WHOLE, Ordering::Release);
    Some(number)
}

/// Unregisters the region with that number. Its memory may be freed once this has returned: a crash
/// on another thread reads the memory guarded.
pub fn unregister(number: usize) {
    if let Some(region) = REGIONS.get(number) {
        region.state.store(FREE, Ordering::Release);
    }
}

/// Sets the function that is called when the process crashes; `None` for none.
///
/// # Safety
/// The function must be as [`CrashCallback`] describes it, and `context` valid for it until another
/// function is set and no crash is being reported.
pub unsafe fn set_callback(callback: Option<CrashCallback>, context: *mut c_void) {
    let current = callback.map_or(0, |callback| fill_pair(callback as usize, context as usize));
    let before = CURRENT.swap(current, Ordering::AcqRel);
    if let Some(pair) = before.checked_sub(1).and_then(|place| PAIRS.get(place)) {
        pair.state.store(FREE, Ordering::Release);
    }
}

/// Stores a callback and its context in a free place; returns one more than the place.
fn fill_pair(callback: usize, context: usize) -> usize {
    loop {
        let take =
            |pair: &Pair| pair.state.compare_exchange(FREE, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Usually the first or second one. Others are taken only for the length of this call.
        if let Some(place) = PAIRS.iter().position(take)
            && let Some(pair) = PAIRS.get(place)
        {
            pair.filled.fetch_add(1, Ordering::AcqRel);
            pair.callback.store(callback, Ordering::Release);
            pair.context.store(context, Ordering::Release);
            return place.wrapping_add(1);
        }
        core::hint::spin_loop();
    }
}

/// Returns the callback's address with its context; `None` if there is none, or it is being
/// replaced.
fn current_pair() -> Option<(usize, usize)> {
    let current = CURRENT.load(Ordering::Acquire);
    let pair = PAIRS.get(current.checked_sub(1)?)?;
    let filled = pair.filled.load(Ordering::Acquire);
    let found = (pair.callback.load(Ordering::Acquire), pair.context.load(Ordering::Acquire));
    let is_same = CURRENT.load(Ordering::Acquire) == current && pair.filled.load(Ordering::Acquire) == filled;
    is_same.then_some(found)
}

/// Encodes the section with that number into a report's buffer; returns its length in bytes, 0 for
/// nothing.
pub(crate) fn encode<M: Memory>(number: usize, payload: &mut [u8], memory: &mut M) -> usize {
    if let Some(number) = number.checked_sub(MAX_REGIONS) {
        let Some((front, into)) = split(payload) else { return 0 };
        return output_tail::read(number, into).map_or(0, |output| section(front, &output));
    }
    let Some(region) = REGIONS.get(number).filter(|region| region.state.load(Ordering::Acquire) == WHOLE) else {
        return 0;
    };
    let mut name = [[0; 8]; MAX_NAME / 8];
    for (to, word) in name.iter_mut().zip(&region.name) {
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
    let name = name.as_flattened();
    let name = name.get(..region.name_length.load(Ordering::Relaxed)).unwrap_or_default();
    let (address, size) = (region.address.load(Ordering::Relaxed), region.size.load(Ordering::Relaxed));
    let Some((front, into)) = split(payload) else { return 0 };
    let mut filled = 0_usize;
    for step in into.get_mut(..size.min(MAX_BYTES)).unwrap_or_default().chunks_mut(STEP) {
        if memory.read(address.wrapping_add(filled as u64), step).is_err() {
            break;
        }
        filled = filled.saturating_add(step.len());
    }
    let bytes = into.get(..filled).unwrap_or_default();
    section(front, &AppMemory { name, bytes, address: Some(address), size: Some(size as u64) })
}

/// Calls the app's function, and encodes what it writes as [`encode`] does.
///
/// Not inlined, so that `xtask signal-safety` can identify the call by name.
#[inline(never)]
pub(crate) fn call_back(payload: &mut [u8]) -> usize {
    let Some((callback, context)) = current_pair() else { return 0 };
    let Some((front, into)) = split(payload) else { return 0 };
    let room = into.len().min(MAX_BYTES);
    // SAFETY: a function of this type, by `set_callback`; async-signal-safe by its contract; there
    // is room for that many bytes.
    let written = unsafe {
        let callback = core::mem::transmute::<usize, CrashCallback>(callback);
        callback(context as *mut c_void, into.as_mut_ptr(), room)
    };
    let bytes = into.get(..written.min(room)).unwrap_or_default();
    if bytes.is_empty() {
        0
    } else {
        section(front, &AppMemory { name: b"crash_callback", bytes, ..AppMemory::default() })
    }
}

/// Splits off the end of the buffer, where the bytes are read to; they are encoded in front of it.
fn split(payload: &mut [u8]) -> Option<(&mut [u8], &mut [u8])> {
    payload.split_at_mut_checked(payload.len().saturating_sub(MAX_BYTES))
}

fn section(front: &mut [u8], memory: &AppMemory<'_>) -> usize {
    let mut encoder = Encoder::new(front);
    encoder.begin_array();
    memory.encode(&mut encoder);
    encoder.end();
    encoder.position()
}

#[cfg(test)]
mod tests;
