//! Encodes a run's id as the call stack of a thread that waits forever.
//!
//! Records that contain only the process's stacks (MetricKit, the system's crash reports) can then
//! be matched to the run.
//!
//! The stack consists of calls in sixteen consecutive pieces of code of the same size ([`thread`]).
//! Each frame is a digit, given by the piece that contains its return address. From the innermost
//! frame on, the stack contains the mark `0 15 0 15`, 32 digits, and two digits of a checksum.
//! Address and size of the pieces follow from the mark, so that only differences of addresses are
//! needed: neither symbols nor files of the app, and another app can read it.

#[cfg(all(supported, target_vendor = "apple"))]
pub(crate) mod thread;

#[cfg(any(all(supported, target_vendor = "apple"), feature = "system-reports"))]
use coroner_report::model::Id;

/// The digits at the start of the stack.
#[cfg(any(all(supported, target_vendor = "apple"), feature = "system-reports"))]
const MARK: [u8; 4] = [0, 15, 0, 15];
#[cfg(any(all(supported, target_vendor = "apple"), feature = "system-reports"))]
const LENGTH: usize = MARK.len() + 32 + 2;
/// The end of [`calls`]. It is not a digit.
#[cfg(any(all(supported, target_vendor = "apple"), all(test, feature = "system-reports")))]
const END: u8 = 0xff;

/// Returns an id's digits, starting with the innermost frame's.
#[cfg(any(all(supported, target_vendor = "apple"), feature = "system-reports"))]
fn digits(id: Id) -> [u8; LENGTH] {
    let mut digits = [0; LENGTH];
    let sum = id.0.iter().fold(0x5a_u8, |sum, byte| sum.rotate_left(3) ^ byte);
    let bytes = id.0.iter().chain([&sum]).flat_map(|byte| [byte >> 4, byte & 15]);
    digits.iter_mut().zip(MARK.into_iter().chain(bytes)).for_each(|(to, digit)| *to = digit);
    digits
}

/// Returns the calls that create the stack, the outermost first, and the end.
#[cfg(any(all(supported, target_vendor = "apple"), all(test, feature = "system-reports")))]
fn calls(id: Id) -> [u8; LENGTH + 1] {
    let mut calls = [END; LENGTH + 1];
    calls.iter_mut().zip(digits(id).into_iter().rev()).for_each(|(to, digit)| *to = digit);
    calls
}

/// Returns the id that a stack encodes, given the addresses of its frames in either order.
#[cfg(feature = "system-reports")]
pub(crate) fn read(addresses: &[u64]) -> Option<Id> {
    let innermost_first = addresses.windows(LENGTH).find_map(|frames| read_at(frames.iter().copied()));
    innermost_first.or_else(|| addresses.windows(LENGTH).find_map(|frames| read_at(frames.iter().rev().copied())))
}

#[cfg(feature = "system-reports")]
fn read_at(mut frames: impl Iterator<Item = u64> + Clone) -> Option<Id> {
    let (first, last) = frames.clone().next().zip(frames.clone().nth(1))?;
    let size = last.checked_sub(first).filter(|span| *span > 0 && span.is_multiple_of(15))? / 15;
    let digit = |address: u64| {
        let offset = address.checked_sub(first)?;
        u8::try_from(offset / size).ok().filter(|digit| offset.is_multiple_of(size) && *digit < 16)
    };
    let mut found = [0; LENGTH];
    for value in &mut found {
        *value = digit(frames.next()?)?;
    }
    let mut id = Id::default();
    for (byte, pair) in id.0.iter_mut().zip(found[MARK.len()..].as_chunks::<2>().0.iter()) {
        *byte = pair[0] << 4 | pair[1];
    }
    (digits(id) == found).then_some(id)
}

#[cfg(all(test, feature = "system-reports"))]
mod tests;
