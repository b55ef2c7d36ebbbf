//! Finds valid addresses that differ from a bad one in one bit: faulty memory flips bits.
//!
//! Works like rust-minidump on x86_64 (`minidump-processor`'s `bit_flip`). Only values without
//! another explanation are examined: not null, not a fill pattern, not near a mapping, not text. A
//! single flipped high bit hits mapped memory by chance about once in 2^17, because a process uses
//! some GiB of 2^47.

use coroner_process::heap_sort;
use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{Address, BitFlip, CodeChangeKind, Explanation, FaultKind};

use crate::architecture;
use crate::bad_operand::NEAR_NULL;
use crate::memory_map;
use crate::pointer_authentication::is_error_code_bit;

/// Lowest bit examined. Lower bits lead to nearby memory, which a wrong offset also reaches.
const LOWEST_BIT: u32 = 24;
/// Bits below this one require that the valid address is close to a value that the thread held.
///
/// They lead to within 4 GiB, where a wrong index may also reach mapped memory.
const MIN_FAR_BIT: u32 = 32;
/// The bits of an address within its page. A large buffer may start at a page boundary, and its end
/// may be a power of two away, which is one bit.
const PAGE_OFFSET: u64 = 0xfff;
/// Maximum distance from another register's value to count as close, in bytes.
///
/// Such addresses are probably in the same object or frame.
const MAX_DISTANCE: u64 = 0x1000;
/// The same limit for lower bits, where a match by chance is more likely.
const MAX_DISTANCE_LOW_BITS: u64 = 0x400;
/// Compilers align accesses to their size, up to this one, in bytes.
const MAX_ALIGNMENT: u32 = 8;
/// Bits reached by a wrong index. An index of 2^32 - 1 is 0 minus 1: in an array with elements of
/// one to eight bytes, it leads to the address one element before the array, plus one of these
/// bits.
const INDEX_BITS: std::ops::RangeInclusive<u32> = 32..=35;
/// Maximum number of elements between that address and the array.
const MAX_ELEMENTS: u64 = 16;
/// If there are more candidates, none is reported.
const MAX_CANDIDATES: usize = 2;

/// Returns the addresses that may have become the bad one by a flipped bit.
pub(crate) fn find_candidates(report: &Report, explanation: &Explanation) -> Vec<BitFlip> {
    let is_open = matches!(explanation.kind, FaultKind::Unmapped | FaultKind::NonCanonical | FaultKind::JumpToNowhere);
    let thread = report.crashed_thread();
    let registers = thread.and_then(|thread| thread.registers.as_ref()).filter(|registers| !registers.only_preserved);
    let operand = explanation.operand.as_ref();
    let operand = operand.filter(|operand| operand.pattern.is_none());
    let found = operand.and_then(|operand| Some((operand.register.as_deref()?, operand.value?)));
    let (Some((register, bad)), Some(registers)) = (found.filter(|_| is_open), registers) else { return Vec::new() };
    let Some(arch) = registers.arch.filter(|_| bad.0 >= NEAR_NULL && bad.0 & PAGE_OFFSET != 0) else {
        return Vec::new();
    };
    // An address that is not aligned for its access would not be aligned with another high bit
    // either. (Copies larger than a register need no alignment.)
    let access = explanation.access.and_then(|access| Some((access.address?.0, access.width?)));
    let is_odd = |(address, width): (u64, u32)| width <= MAX_ALIGNMENT && !address.is_multiple_of(width.max(1).into());
    if access.is_some_and(is_odd) {
        return Vec::new();
    }
    // An arm64 memory tag (MTE) is not part of the address.
    let highest = match arch {
        Arch::X86_64 => 63,
        Arch::Aarch64 => 55,
    };
    let good = |bit: u32| {
        let address = Address(bad.0 ^ 1 << bit);
        let is_address = architecture::is_canonical(arch, address.0) && (NEAR_NULL..1 << 63).contains(&address.0);
        let others = || registers.named().filter(|(name, _)| *name != register && !name.ends_with("flags"));
        let reach = if bit < MIN_FAR_BIT { MAX_DISTANCE_LOW_BITS } else { MAX_DISTANCE };
        let beside = || others().find(|(_, value)| value.abs_diff(address.0) < reach && *value >= NEAR_NULL);
        let place = if !is_address {
            None
        } else if let Some(thread) = memory_map::thread_with_stack_at(report, address) {
            Some(format!("on the stack of thread {}", thread.tid))
        } else if let Some(image) = report.image_at(address) {
            Some(format!("in {}", image.name()))
        } else if let Some(mapping) = report.mappings.iter().find(|mapping| mapping.contains(address)) {
            (mapping.protection & 7 != 0).then(|| {
                format!("in {}", memory_map::mapping_name(mapping).unwrap_or_else(|| "anonymous memory".to_owned()))
            })
        } else {
            beside().map(|(name, value)| format!("near the value of {name} ({})", Address(value)))
        };
        let is_by_index = || {
            let size = 1_u64 << (bit % 32);
            let is_array = |value: u64| {
                value.checked_sub(address.0).is_some_and(|far| (size..=size * MAX_ELEMENTS).contains(&far))
            };
            others().any(|(_, value)| is_array(value)) || memory_map::saved_words(report).any(is_array)
        };
        let place = place.filter(|_| !(INDEX_BITS.contains(&bit) && is_by_index()));
        let is_near_saved = || memory_map::saved_words(report).any(|word| word.abs_diff(address.0) < reach);
        let place = place.filter(|_| bit >= MIN_FAR_BIT || beside().is_some() || is_near_saved());
        place.map(|place| (beside().is_none(), BitFlip { address, bit, place }))
    };
    let mut all: Vec<(bool, BitFlip)> =
        (LOWEST_BIT..=highest).filter(|bit| !is_error_code_bit(arch, *bit)).filter_map(good).collect();
    // Candidates close to another register are more likely.
    heap_sort(&mut all, |(first, one), (second, other)| (first, one.bit) < (second, other.bit));
    if all.len() > MAX_CANDIDATES { Vec::new() } else { all.into_iter().map(|(_, flip)| flip).collect() }
}

/// Describes the candidates in a sentence.
///
/// A wrong index or size leads to such addresses as well. Memory is only called faulty if a bit
/// differs in another place, too: in the code.
pub(crate) fn describe(explanation: &Explanation) -> Option<String> {
    let flips = &explanation.bit_flips;
    let change = explanation.code_change.as_ref();
    let is_confirmed = change.is_some_and(|change| change.kind == CodeChangeKind::OneBit);
    let cause = if is_confirmed { ", and so does code: memory may be faulty" } else { "" };
    let all: Vec<String> =
        flips.iter().map(|flip| format!("{}, {} (bit {})", flip.address, flip.place, flip.bit)).collect();
    (!all.is_empty()).then(|| format!("the address differs in one bit from {}{cause}", all.join(", and from ")))
}
