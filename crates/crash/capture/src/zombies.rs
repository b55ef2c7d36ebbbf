//! Deallocated Objective-C objects: a table of addresses and classes that the app's threads fill
//! during normal operation and the crash path reads, so that a report shows the class of the object
//! that a register points to. Apple calls such objects zombies.
//!
//! No object is kept: an address is remembered until another one takes its place in the table
//! ([`OBJECTS`] places, by a hash). Since the memory may have become another object, its current
//! content is checked when a lookup is made.
//!
//! Static tables of atomics without locks. They are zero, and use no memory, until the first object
//! is noted. A place that is being written is marked, and a second writer drops its object: an
//! address never stands beside the class of another.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use coroner_process::memory::Memory;

/// Maximum number of deallocated objects that are remembered; 16 bytes each.
pub const OBJECTS: usize = 1 << BITS;
const BITS: u32 = 15;
/// Maximum number of classes with names.
const CLASSES: usize = 1 << CLASS_BITS;
const CLASS_BITS: u32 = 12;
/// Number of places searched for a class.
const PROBES: usize = 16;
/// Maximum length in bytes of a class's name, a selector, or an exception's name and reason.
pub const MAX_TEXT: usize = 512;

/// Marks a place that is being written. Not a valid object address.
const BUSY: u64 = 1;

struct Place {
    address: AtomicU64,
    class: AtomicU64,
}

struct Class {
    class: AtomicU64,
    /// Address of the class's NUL-terminated name, which stays valid.
    name: AtomicU64,
}

static TABLE: [Place; OBJECTS] = [const { Place { address: AtomicU64::new(0), class: AtomicU64::new(0) } }; OBJECTS];
static KNOWN: [Class; CLASSES] = [const { Class { class: AtomicU64::new(0), name: AtomicU64::new(0) } }; CLASSES];

/// Mask that extracts the class from an object's first word; 0 while reports look for no objects.
static ISA_MASK: AtomicU64 = AtomicU64::new(0);
/// Start and end addresses of the functions that send messages.
static SENDERS: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

fn place_of(address: u64, bits: u32) -> usize {
    /// 2⁶⁴ divided by the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    ((address >> 3).wrapping_mul(SPREAD) >> (u64::BITS - bits)) as usize
}

/// Properties of the Objective-C runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runtime {
    /// Mask that extracts the class from an object's first word (`objc_debug_isa_class_mask`).
    pub isa_mask: u64,
    /// Address of the first byte of `objc_msgSend`, and of the first byte after it; 0 if unknown.
    pub message_send: (u64, u64),
    /// Like `message_send`, for `objc_msgSend_stret`, which has the receiver as its second argument
    /// (x86_64).
    pub message_send_stret: (u64, u64),
}

/// Makes reports look for deallocated objects from now on (not async-signal-safe).
pub fn enable(runtime: &Runtime) {
    for (place, (start, end)) in SENDERS.iter().zip([runtime.message_send, runtime.message_send_stret]) {
        place[0].store(start, Ordering::Relaxed);
        place[1].store(end, Ordering::Relaxed);
    }
    ISA_MASK.store(runtime.isa_mask, Ordering::Release);
}

/// Stops reports from looking for deallocated objects (not async-signal-safe).
pub fn disable() {
    ISA_MASK.store(0, Ordering::Release);
}

/// Notes that an object of a class is being deallocated. `name` returns the address of the class's
/// name; it is called when the class is seen for the first time. May be called on any thread; takes
/// no lock.
pub fn note(object: u64, class: u64, name: impl FnOnce() -> u64) {
    if object <= BUSY || class == 0 || !is_known(class, name) {
        return;
    }
    let Some(place) = TABLE.get(place_of(object, BITS)) else { return };
    if place.address.swap(BUSY, Ordering::Acquire) == BUSY {
        return;
    }
    // Whoever sees this class sees that the place is being written.
    place.class.store(class, Ordering::Release);
    place.address.store(object, Ordering::Release);
}

/// Returns `true` if the class now has a name in the table.
fn is_known(class: u64, name: impl FnOnce() -> u64) -> bool {
    for place in probes(class) {
        match place.class.load(Ordering::Acquire) {
            found if found == class => return true,
            0 => {}
            _ => continue,
        }
        if let Err(found) = place.class.compare_exchange(0, class, Ordering::AcqRel, Ordering::Acquire) {
            if found == class {
                return true;
            }
            continue;
        }
        place.name.store(name(), Ordering::Release);
        return true;
    }
    false
}

fn probes(class: u64) -> impl Iterator<Item = &'static Class> {
    let first = place_of(class, CLASS_BITS);
    (0..PROBES).filter_map(move |step| KNOWN.get(first.wrapping_add(step) % CLASSES))
}

/// Returns the class of the object that was last deallocated at that address, if it is remembered.
pub(crate) fn class_at(address: u64) -> Option<u64> {
    let place = TABLE.get(place_of(address, BITS)).filter(|_| address > BUSY)?;
    let is_there = || place.address.load(Ordering::Acquire) == address;
    let class = is_there().then(|| place.class.load(Ordering::Acquire))?;
    // Nobody has written in the meantime.
    is_there().then_some(class)
}

/// Copies the name of a class that was noted; empty if it is not known.
pub(crate) fn class_name<'b>(memory: &mut impl Memory, class: u64, into: &'b mut [u8]) -> &'b [u8] {
    let known = probes(class).find(|place| place.class.load(Ordering::Acquire) == class);
    match known.map_or(0, |place| place.name.load(Ordering::Acquire)) {
        0 => &[],
        name => copy_text(memory, name, into),
    }
}

/// Returns the class of the object at an address, or `None` if there is no object.
///
/// A class is identified by its chain of metaclasses: the class of its class's class is a root
/// metaclass, which is its own.
pub(crate) fn class_now(memory: &mut impl Memory, address: u64) -> Option<u64> {
    let mask = ISA_MASK.load(Ordering::Acquire);
    let mut isa = |of: u64| memory.read_u64(of).ok().map(|word| word & mask).filter(|class| *class != 0);
    let class = isa(address)?;
    let metaclass = isa(class)?;
    let root = isa(metaclass)?;
    (isa(root)? == root).then_some(class)
}

/// Returns `true` if reports look for deallocated objects.
#[cfg(target_vendor = "apple")]
pub(crate) fn is_on() -> bool {
    ISA_MASK.load(Ordering::Acquire) != 0
}

/// Returns the index of the receiver argument if `pc` is in a function that sends a message. The
/// selector is the next argument.
pub(crate) fn receiver_argument(pc: u64) -> Option<usize> {
    SENDERS.iter().position(|[start, end]| {
        let (start, end) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
        (start..end).contains(&pc)
    })
}

/// Copies a NUL-terminated text; empty if it isn't terminated, is too long, can't be read, or isn't
/// printable ASCII.
pub(crate) fn copy_text<'b>(memory: &mut impl Memory, address: u64, into: &'b mut [u8]) -> &'b [u8] {
    let mut length = 0_usize;
    for place in into.iter_mut() {
        let mut byte = [0];
        if memory.read(address.wrapping_add(length as u64), &mut byte).is_err() {
            return &[];
        }
        match byte {
            [0] => return into.get(..length).unwrap_or_default(),
            [letter @ b' '..=b'~'] => *place = letter,
            _ => return &[],
        }
        length = length.saturating_add(1);
    }
    &[]
}

/// The exception that was deallocated last.
struct LastException {
    /// Odd while it is being written.
    version: AtomicU32,
    address: AtomicU64,
    class: AtomicU64,
    name: Text,
    reason: Text,
}

struct Text {
    words: [AtomicU64; MAX_TEXT / 8],
    length: AtomicU32,
}

impl Text {
    const fn empty() -> Text {
        Text { words: [const { AtomicU64::new(0) }; MAX_TEXT / 8], length: AtomicU32::new(0) }
    }

    fn set(&self, text: &[u8]) {
        let (mut words, mut length) = ([[0_u8; 8]; MAX_TEXT / 8], 0_u32);
        for (to, from) in words.as_flattened_mut().iter_mut().zip(text) {
            *to = *from;
            length = length.wrapping_add(1);
        }
        for (to, word) in self.words.iter().zip(words) {
            to.store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
        self.length.store(length, Ordering::Relaxed);
    }

    fn get<'b>(&self, into: &'b mut [u8; MAX_TEXT]) -> &'b [u8] {
        for (to, word) in into.as_chunks_mut::<8>().0.iter_mut().zip(&self.words) {
            *to = word.load(Ordering::Relaxed).to_le_bytes();
        }
        into.get(..self.length.load(Ordering::Relaxed) as usize).unwrap_or_default()
    }
}

static LAST: LastException = LastException {
    version: AtomicU32::new(0),
    address: AtomicU64::new(0),
    class: AtomicU64::new(0),
    name: Text::empty(),
    reason: Text::empty(),
};

/// Notes the name and reason of an `NSException` that is being deallocated. If another thread does
/// so at the same moment, the other thread's exception is kept.
pub fn note_exception(object: u64, class: u64, name: &[u8], reason: &[u8]) {
    let version = LAST.version.load(Ordering::Relaxed);
    let next = version.wrapping_add(1);
    let is_free = version.is_multiple_of(2);
    if !is_free || LAST.version.compare_exchange(version, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    LAST.address.store(object, Ordering::Relaxed);
    LAST.class.store(class, Ordering::Relaxed);
    LAST.name.set(name);
    LAST.reason.set(reason);
    LAST.version.store(next.wrapping_add(1), Ordering::Release);
}

/// Passes the exception that was deallocated last to `then`: its address, class, name and reason.
/// Returns `None` if there is none, or if it is being written.
pub(crate) fn with_last_exception<R>(then: impl FnOnce(u64, u64, &[u8], &[u8]) -> R) -> Option<R> {
    let version = LAST.version.load(Ordering::Acquire);
    if version == 0 || !version.is_multiple_of(2) {
        return None;
    }
    let (mut name, mut reason) = ([0; MAX_TEXT], [0; MAX_TEXT]);
    let (address, class) = (LAST.address.load(Ordering::Relaxed), LAST.class.load(Ordering::Relaxed));
    let (name, reason) = (LAST.name.get(&mut name), LAST.reason.get(&mut reason));
    core::sync::atomic::fence(Ordering::Acquire);
    (LAST.version.load(Ordering::Relaxed) == version).then(|| then(address, class, name, reason))
}

#[cfg(test)]
mod tests;
