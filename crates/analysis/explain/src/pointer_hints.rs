//! Hints in a bad pointer's value: text that overran its buffer, the link of a freed block, an
//! index that leads out of its array.

use coroner_report::Report;
use coroner_report::model::{Address, BadOperand, Explanation, FaultKind};
use coroner_report::wire::Os;

use crate::bad_operand::NEAR_NULL;
use crate::grouped_digits::grouped;
use crate::memory_map;

/// The top of a process's address space on x86_64, and with 48-bit addresses on arm64.
const MAX_ADDRESS: u64 = 1 << 48;
/// Minimum distance of text from anything that is known to be mapped, in bytes: six characters may
/// also be an address.
const MIN_TEXT_DISTANCE: u64 = 1 << 32;
/// Maximum distance between a block and the next free one of its size, in bytes.
const MAX_LINK_DISTANCE: u64 = 1 << 20;

/// Adds what the bad register's value is, if it has a recognizable form.
pub(crate) fn add(report: &Report, explanation: &mut Explanation) {
    let is_open = matches!(
        explanation.kind,
        FaultKind::Unmapped
            | FaultKind::NonCanonical
            | FaultKind::JumpToNowhere
            | FaultKind::BadReturn
            | FaultKind::NearNull
            | FaultKind::GuardPage
            | FaultKind::AccessDenied
    );
    let Some(operand) = explanation.operand.as_mut().filter(|operand| is_open && operand.pattern.is_none()) else {
        return;
    };
    let Some(value) = operand.value.map(|value| value.0) else { return };
    if let Some(pattern) = describe_index(report, operand, value) {
        operand.pattern = Some(pattern);
    } else if is_text(report, value) {
        operand.pattern = Some("ASCII text, as if a string was written over it".to_owned());
        explanation.facts.push(
            "the value is text: a string was written beyond its buffer, or the value never was a pointer".to_owned(),
        );
    } else if is_freed_link(report, value) {
        operand.pattern = Some("a link as glibc leaves in a freed block".to_owned());
        explanation.facts.push(
            "the value has the form of a link in glibc's free lists (safe-linking), as if read from a block that had been freed"
                .to_owned(),
        );
    }
}

/// Describes the value of an index register whose base register holds the other part of the
/// address.
fn describe_index(report: &Report, operand: &BadOperand, value: u64) -> Option<String> {
    let register = operand.register.as_deref()?;
    let base = operand.index.as_ref().filter(|base| base.scale == 1 && memory_map::is_mapped(report, base.value))?;
    let is_index = operand.text.contains(&format!("+{register}")) || operand.text.contains(&format!("[{register}+"));
    // As compilers compute it: 32 bits for an int, of which negative ones are sign-extended.
    let signed = value as i64;
    let number = if signed < 0 { format!("-{}", grouped(signed.unsigned_abs())) } else { grouped(value) };
    (is_index && signed.unsigned_abs() < MAX_ADDRESS).then(|| format!("an index of {number} from {}", base.register))
}

/// Whether a value is six to eight characters of text, followed by zeros.
fn is_text(report: &Report, value: u64) -> bool {
    let bytes = value.to_le_bytes();
    let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let is_text = bytes[..length].iter().all(|byte| (0x20..0x7f).contains(byte));
    let is_ended = bytes[length..].iter().all(|byte| *byte == 0);
    is_text && is_ended && (length > 6 || length == 6 && !is_near_memory(report, value))
}

/// Whether something is mapped in the same 4 GiB or next to them, as far as the report shows.
fn is_near_memory(report: &Report, value: u64) -> bool {
    let images = report.images.iter().map(|image| image.load_address.0);
    let mappings = report.mappings.iter().map(|mapping| mapping.start.0);
    images
        .chain(mappings)
        .chain(known_addresses(report))
        .any(|known| known != value && known.abs_diff(value) < MIN_TEXT_DISTANCE)
}

/// Returns addresses that the crashed thread held: its registers' values, and the words on its
/// stack.
fn known_addresses(report: &Report) -> impl Iterator<Item = u64> {
    let registers = report.crashed_thread().and_then(|thread| thread.registers.as_ref());
    let registers = registers.into_iter().flat_map(|registers| registers.named().map(|(_, value)| value));
    let memory = report.stack_memory.iter().map(|piece| piece.address.0);
    registers.chain(memory).chain(memory_map::saved_words(report))
}

/// Whether a value is the link that glibc (since 2.32) writes into a block when it is freed: the
/// address of the next free block, or 0, combined with the link's own address shifted right by 12
/// bits (`PROTECT_PTR` in malloc.c).
fn is_freed_link(report: &Report, value: u64) -> bool {
    let is_heap = |address: u64| {
        let address = Address(address);
        report.image_at(address).is_none() && memory_map::thread_with_stack_at(report, address).is_none()
    };
    let mapped = |address: u64| {
        let mut mappings = report.mappings.iter();
        mappings.any(|mapping| mapping.protection & 7 == 6 && mapping.contains(Address(address)))
    };
    let is_glibc = |name: &str| name == "libc.so.6" || name.starts_with("libc-2.");
    if report.header.os != Os::LINUX || !report.images.iter().any(|image| is_glibc(image.name())) {
        return false;
    }
    let is_user = |address: u64| (NEAR_NULL..MAX_ADDRESS).contains(&address);
    // The last block of its list.
    if (NEAR_NULL..MAX_ADDRESS >> 12).contains(&value) {
        let page = value << 12;
        // A smaller value may be the upper half of another number.
        let is_held = || value >= 1 << 20 && known_addresses(report).any(|known| known >> 12 == value);
        return is_heap(page) && (mapped(page) || is_held());
    }
    // The two blocks are near each other. In different pages, their lowest 12 bits differ.
    let next = value ^ value >> 12 ^ value >> 24 ^ value >> 36;
    let is_held = || {
        known_addresses(report).any(|known| {
            known != value && is_heap(known) && known >> 12 != value >> 12 && known.abs_diff(next) < MAX_LINK_DISTANCE
        })
    };
    is_user(value) && is_user(next) && next >> 36 != 0 && is_heap(next) && !mapped(value) && (mapped(next) || is_held())
}
