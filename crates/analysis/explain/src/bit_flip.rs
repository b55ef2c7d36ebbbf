//! Good addresses that differ from a bad one by one bit: memory that fails flips bits.
//!
//! As rust-minidump does on x86_64 (`minidump-processor`'s `bit_flip`). Only what nothing else explains is looked at: no null, no fill pattern, nothing near
//! what is mapped, no text. A single flip of a high bit hits what is mapped by chance about once in 2^17, since a process has some GiB in 2^47.

use coroner_process::heap_sort;
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, BitFlip, Explanation, FaultKind};

use crate::architecture;
use crate::bad_operand::NEAR_NULL;
use crate::memory_map;
use crate::pointer_authentication::is_of_code;

/// Lower bits lead to memory nearby, where a wrong offset leads, too.
const LOWEST: u32 = 24;
/// Bits below this one lead to within 4 GiB, where a wrong index may lead to what is mapped, too: the good address has to be beside something that the thread
/// held.
const FAR: u32 = 32;
/// Bits of an address in its page. Where a page begins, a large buffer may: what lies a power of two behind that is one bit away.
const IN_PAGE: u64 = 0xfff;
/// How near to another register's value an address is called beside it: of one object or frame.
const BESIDE: u64 = 0x1000;
/// The same of lower bits, where chance leads to what is held sooner.
const BESIDE_LOW: u64 = 0x400;
/// Compilers align what they access to its size, up to this one.
const ALIGNED: u32 = 8;
/// An index of 2^32 - 1 is a 0 from which 1 was taken: so many elements lead, from an array of elements of one byte to eight, to one of these bits from what lies
/// an element before it.
const OF_INDEX: std::ops::RangeInclusive<u32> = 32..=35;
/// Elements that the array may have been before.
const ELEMENTS: u64 = 16;
/// More candidates than these are none.
const MAX_CANDIDATES: usize = 2;

/// What the bad address might have been made of by one flipped bit.
pub(crate) fn candidates(report: &Report, explanation: &Explanation) -> Vec<BitFlip> {
    let is_open = matches!(explanation.kind, FaultKind::Unmapped | FaultKind::NonCanonical | FaultKind::JumpToNowhere);
    let thread = report.crashed_thread();
    let registers = thread.and_then(|thread| thread.registers.as_ref()).filter(|registers| !registers.only_preserved);
    let operand = explanation.operand.as_ref();
    let found = operand.and_then(|operand| Some((operand.register.as_deref()?, operand.value?)));
    let (Some((register, bad)), Some(registers)) = (found.filter(|_| is_open), registers) else { return Vec::new() };
    let Some(arch) = registers.arch.filter(|_| !is_text(bad.0) && bad.0 >= NEAR_NULL && bad.0 & IN_PAGE != 0) else {
        return Vec::new();
    };
    // What is not aligned as its access would not be so with another high bit either. (More than a register are copied from anywhere.)
    let access = explanation.access.and_then(|access| Some((access.address?.0, access.width?)));
    let is_odd = |(address, width): (u64, u32)| width <= ALIGNED && !address.is_multiple_of(width.max(1).into());
    if access.is_some_and(is_odd) {
        return Vec::new();
    }
    // A tag of arm64 (MTE) is not the address.
    let highest = match arch {
        Arch::X86_64 => 63,
        Arch::Aarch64 => 55,
    };
    let good = |bit: u32| {
        let address = Address(bad.0 ^ 1 << bit);
        let is_address = architecture::is_canonical(arch, address.0) && (NEAR_NULL..1 << 63).contains(&address.0);
        let others = || registers.named().filter(|(name, _)| *name != register && !name.ends_with("flags"));
        let reach = if bit < FAR { BESIDE_LOW } else { BESIDE };
        let beside = || others().find(|(_, value)| value.abs_diff(address.0) < reach && *value >= NEAR_NULL);
        let place = if !is_address {
            None
        } else if let Some(thread) = memory_map::thread_with(report, address) {
            Some(format!("on the stack of thread {}", thread.tid))
        } else if let Some(image) = report.image_at(address) {
            Some(format!("in {}", image.name()))
        } else if let Some(mapping) = report.mappings.iter().find(|mapping| mapping.contains(address)) {
            (mapping.protection & 7 != 0).then(|| {
                format!("in {}", memory_map::named(mapping).unwrap_or_else(|| "memory without a file".to_owned()))
            })
        } else {
            beside().map(|(name, value)| format!("beside what {name} holds ({})", Address(value)))
        };
        let is_by_index = || {
            let size = 1_u64 << (bit % 32);
            let is_array =
                |value: u64| value.checked_sub(address.0).is_some_and(|far| (size..=size * ELEMENTS).contains(&far));
            others().any(|(_, value)| is_array(value)) || saved_words(report).any(is_array)
        };
        let place = place.filter(|_| !(OF_INDEX.contains(&bit) && is_by_index()));
        let is_near_saved = || saved_words(report).any(|word| word.abs_diff(address.0) < reach);
        let place = place.filter(|_| bit >= FAR || beside().is_some() || is_near_saved());
        place.map(|place| (beside().is_none(), BitFlip { address, bit, place }))
    };
    let mut all: Vec<(bool, BitFlip)> =
        (LOWEST..=highest).filter(|bit| !is_of_code(arch, *bit)).filter_map(good).collect();
    // Beside another register is likelier.
    heap_sort(&mut all, |(first, one), (second, other)| (first, one.bit) < (second, other.bit));
    if all.len() > MAX_CANDIDATES { Vec::new() } else { all.into_iter().map(|(_, flip)| flip).collect() }
}

/// The words of the crashed thread's stack, as far as it was saved.
fn saved_words(report: &Report) -> impl Iterator<Item = u64> {
    const WORDS: usize = 1024;
    let tid = report.crash.as_ref().map(|crash| crash.tid);
    let pieces = report.stack_memory.iter().filter(move |piece| Some(piece.tid) == tid);
    let words = pieces.flat_map(|piece| piece.bytes.as_chunks::<8>().0).take(WORDS);
    words.map(|word| u64::from_le_bytes(*word))
}

/// Whether a value is eight characters of text, as a string that was written over a pointer leaves it.
fn is_text(value: u64) -> bool {
    value.to_le_bytes().iter().all(|byte| (0x20..0x7f).contains(byte))
}

/// What is said of them.
pub(crate) fn sentence(flips: &[BitFlip]) -> Option<String> {
    let all: Vec<String> =
        flips.iter().map(|flip| format!("{}, {} (bit {})", flip.address, flip.place, flip.bit)).collect();
    (!all.is_empty())
        .then(|| format!("one bit makes the difference to {}: memory may have failed", all.join("; or to ")))
}
