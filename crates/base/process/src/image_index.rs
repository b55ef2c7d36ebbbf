//! A sorted index of images by address, in preallocated memory.
//!
//! Sorting and searching don't allocate.

use crate::AddressRange;

/// Location of an image or its code.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Place {
    pub(crate) range: AddressRange,
    /// Index of the image in its table.
    pub(crate) slot: u32,
}

/// Returns the place that contains an address, from places sorted by address.
pub(crate) fn place_of(places: &[Place], address: u64) -> Option<&Place> {
    let above = places.partition_point(|place| place.range.start <= address);
    places.get(above.checked_sub(1)?).filter(|place| place.range.contains(address))
}

/// Sorts by address (heapsort: in place, no recursion, no bad worst case).
pub(crate) fn sort(places: &mut [Place]) {
    let count = places.len();
    for root in (0..count / 2).rev() {
        sift_down(places, root, count);
    }
    for end in (1..count).rev() {
        swap(places, 0, end);
        sift_down(places, 0, end);
    }
}

fn start_of(places: &[Place], index: usize) -> u64 {
    places.get(index).map_or(0, |place| place.range.start)
}

fn swap(places: &mut [Place], a: usize, b: usize) {
    if let (Some(one), Some(other)) = (places.get(a).copied(), places.get(b).copied()) {
        if let Some(place) = places.get_mut(a) {
            *place = other;
        }
        if let Some(place) = places.get_mut(b) {
            *place = one;
        }
    }
}

/// Sifts down the place at `root` in the heap of the first `end` places.
fn sift_down(places: &mut [Place], mut root: usize, end: usize) {
    loop {
        let left = root.saturating_mul(2).saturating_add(1);
        if left >= end {
            return;
        }
        let right = left.saturating_add(1);
        let child = if right < end && start_of(places, right) > start_of(places, left) { right } else { left };
        if start_of(places, child) <= start_of(places, root) {
            return;
        }
        swap(places, root, child);
        root = child;
    }
}

/// Keeps one place per start address; returns the number of remaining places.
#[cfg(any(target_os = "linux", target_os = "android", test))]
pub(crate) fn remove_doubles(places: &mut [Place]) -> usize {
    let mut kept = 0_usize;
    for index in 0..places.len() {
        let Some(place) = places.get(index).copied() else { break };
        if kept > 0 && start_of(places, kept.saturating_sub(1)) == place.range.start {
            continue;
        }
        if let Some(to) = places.get_mut(kept) {
            *to = place;
        }
        kept = kept.saturating_add(1);
    }
    kept
}

#[cfg(test)]
mod tests;
