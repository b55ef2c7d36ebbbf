//! Describes an address: in an image, on a stack, in a mapping, or between two.

use coroner_report::Report;
use coroner_report::model::{Address, Mapping, Segment, StackMemory, Thread};

use crate::bad_operand::NEAR_NULL;
use crate::grouped_digits::grouped;

/// Bits of [`Mapping::protection`] and [`Segment::protection`].
pub(crate) const MAY_EXECUTE: u8 = 1;
pub(crate) const MAY_WRITE: u8 = 2;
pub(crate) const MAY_READ: u8 = 4;
pub(crate) const MAY_ALL: u8 = 7;
/// Maximum distance in bytes from a mapping at which an address is described relative to it.
///
/// Larger distances don't indicate a relation.
const MAX_DISTANCE: u64 = 1 << 24;

/// Describes the location of an address in a sentence. `None` if the report does not contain it.
pub(crate) fn describe_address(report: &Report, address: Address) -> Option<String> {
    let mapping = report.mappings.iter().find(|mapping| mapping.contains(address));
    if let Some(image) = report.image_at(address) {
        let offset = address.0.wrapping_sub(image.load_address.0);
        let (what, protection) = match (mapping, segment(report, address)) {
            (Some(mapping), _) => ("", Some(mapping.protection)),
            (None, Some(segment)) => ("segment ", Some(segment.protection)),
            (None, None) => ("", None),
        };
        let allowed =
            protection.map_or_else(String::new, |bits| format!(" ({what}permissions {})", permissions_text(bits)));
        return Some(format!("{address} is in {} + {offset:#x}{allowed}", image.name()));
    }
    if let Some(mapping) = mapping {
        return Some(describe_in_mapping(report, mapping, address));
    }
    if let Some(thread) = thread_with_stack_at(report, address) {
        return Some(format!("{address} is on the stack of thread {}", thread.tid));
    }
    describe_nearest(report, address)
}

fn describe_in_mapping(report: &Report, mapping: &Mapping, address: Address) -> String {
    let permissions = permissions_text(mapping.protection);
    if mapping.protection & 7 == 0 {
        let end = Address(mapping.start.0.saturating_add(mapping.size));
        let above = report.mappings.iter().find(|above| above.start == end);
        let stack = above.and_then(|_| thread_with_stack_at(report, end));
        let whose = match (stack, above.filter(|above| above.name.as_deref().is_some_and(is_stack_name))) {
            (Some(thread), _) => format!(", below the stack of thread {}", thread.tid),
            (None, Some(_)) => ", below a stack".to_owned(),
            (None, None) => mapping_name(mapping).map_or_else(String::new, |name| format!(", in {name}")),
        };
        return format!("{address} is in an inaccessible region of {} bytes{whose}", grouped(mapping.size));
    }
    let what = match (mapping_name(mapping), thread_with_stack_at(report, address)) {
        (Some(name), _) => {
            let offset = address.0.wrapping_sub(mapping.start.0).wrapping_add(mapping.file_offset.unwrap_or(0));
            if is_file(mapping) { format!("{name} at {offset:#x}") } else { name }
        }
        (None, Some(thread)) => format!("the stack of thread {}", thread.tid),
        (None, None) => "anonymous memory".to_owned(),
    };
    format!("{address} is in {what} (permissions {permissions})")
}

/// Describes what is closest to an address at which nothing is mapped.
fn describe_nearest(report: &Report, address: Address) -> Option<String> {
    if address.0 < NEAR_NULL || report.mappings.is_empty() {
        return None;
    }
    let end = |mapping: &Mapping| mapping.start.0.saturating_add(mapping.size);
    let below = report.mappings.iter().filter(|mapping| end(mapping) <= address.0).max_by_key(|mapping| end(mapping));
    let above = report.mappings.iter().filter(|mapping| mapping.start > address).min_by_key(|mapping| mapping.start);
    let below = below.map(|mapping| (address.0 - end(mapping), "after", mapping));
    let above = above.map(|mapping| (mapping.start.0 - address.0, "before", mapping));
    let near = [below, above].into_iter().flatten().filter(|(distance, ..)| *distance < MAX_DISTANCE);
    let (distance, side, mapping) = near.min_by_key(|(distance, ..)| *distance)?;
    let what = mapping_name(mapping)
        .or_else(|| {
            thread_with_stack_at(report, mapping.start).map(|thread| format!("the stack of thread {}", thread.tid))
        })
        .unwrap_or_else(|| "anonymous memory".to_owned());
    let (distance, permissions) = (grouped(distance), permissions_text(mapping.protection));
    Some(format!("{address} is {distance} bytes {side} {what} (permissions {permissions})"))
}

/// Returns the writable memory that ends at an address or shortly below it, where an overrun of its
/// last object arrives first.
pub(crate) fn memory_that_ends_at(report: &Report, address: Address) -> Option<String> {
    const MAX_STEP: u64 = 256;
    let is_mapped = report.mappings.iter().any(|mapping| mapping.contains(address));
    let end = |mapping: &Mapping| mapping.start.0.saturating_add(mapping.size);
    let mut mappings = report.mappings.iter().filter(|mapping| mapping.protection & MAY_WRITE != 0 && !is_mapped);
    let mapping = mappings.find(|mapping| address.0.checked_sub(end(mapping)).is_some_and(|far| far < MAX_STEP))?;
    let stack =
        || thread_with_stack_at(report, mapping.start).map(|thread| format!("the stack of thread {}", thread.tid));
    Some(mapping_name(mapping).or_else(stack).unwrap_or_else(|| "anonymous memory".to_owned()))
}

/// Returns the thread whose stack contains an address.
pub(crate) fn thread_with_stack_at(report: &Report, address: Address) -> Option<&Thread> {
    let on_stack = |thread: &&Thread| thread.stack.is_some_and(|(start, end)| (start..end).contains(&address));
    report.threads.iter().find(on_stack)
}

fn is_file(mapping: &Mapping) -> bool {
    mapping.name.as_deref().is_some_and(|name| name.starts_with('/'))
}

fn is_stack_name(name: &str) -> bool {
    name.contains("stack")
}

/// Returns a mapping's name.
///
/// For a path, returns only the last component, because the others may contain personal data.
pub(crate) fn mapping_name(mapping: &Mapping) -> Option<String> {
    let name = mapping.name.as_deref()?;
    let name = if is_file(mapping) { name.rsplit('/').next().unwrap_or(name) } else { name };
    Some(name.to_owned())
}

/// Returns the image segment at an address.
fn segment(report: &Report, address: Address) -> Option<&Segment> {
    let image = report.image_at(address)?;
    image.segments.iter().find(|segment| address.0.wrapping_sub(segment.address.0) < segment.size)
}

/// Returns the access permissions at an address.
///
/// They are those of the mapping at the time of the crash, else those of the image segment.
pub(crate) fn permissions_at(report: &Report, address: Address) -> Option<u8> {
    let mapping = report.mappings.iter().find(|mapping| mapping.contains(address));
    mapping.map(|mapping| mapping.protection).or_else(|| segment(report, address).map(|segment| segment.protection))
}

/// Returns, for example, `rw-`.
fn permissions_text(protection: u8) -> String {
    let bit = |bit: u8, letter: char| if protection & bit == 0 { '-' } else { letter };
    [bit(4, 'r'), bit(2, 'w'), bit(1, 'x')].iter().collect()
}

/// Returns the words on the crashed thread's stack and at its registers' values, as far as they
/// were saved.
pub(crate) fn saved_words(report: &Report) -> impl Iterator<Item = u64> {
    const WORDS: usize = 1024;
    let tid = report.crash.as_ref().map(|crash| crash.tid);
    let pieces = report.stack_memory.iter().filter(move |piece| Some(piece.tid) == tid);
    let words = pieces.flat_map(|piece| piece.bytes.as_chunks::<8>().0).take(WORDS);
    words.map(|word| u64::from_le_bytes(*word))
}

/// Whether the report shows that memory was mapped at an address.
pub(crate) fn is_mapped(report: &Report, address: Address) -> bool {
    let saved = |piece: &StackMemory| address.0.wrapping_sub(piece.address.0) < piece.bytes.len() as u64;
    report.image_at(address).is_some()
        || thread_with_stack_at(report, address).is_some()
        || report.mappings.iter().any(|mapping| mapping.protection & MAY_ALL != 0 && mapping.contains(address))
        || report.stack_memory.iter().any(saved)
}
