//! Addresses to name, noted while the stacks are walked, and the buffers for naming them.

use coroner_process::symtab::NameScan;
use coroner_report::wire::{AddressKind, Frame};

use crate::limits::ADDRESSES_PER_SCAN;
use crate::os::symbol_source::Paths;

/// Maximum number of addresses of one report that can be named. A thousand threads that wait in the
/// same function use one entry.
const CAPACITY: usize = 4096;

/// Number of hash table places: twice the capacity and a power of two, so that probe sequences are
/// short.
const PLACES: usize = 2 * CAPACITY;

/// Maximum length of a name in bytes; longer names are truncated.
const MAX_LENGTH: usize = 1024;

/// The address is after a call, and the call is what is named.
const BEHIND_CALL: u8 = 1;
const ASKED: u8 = 2;

/// The addresses of the report's frames, each once. All zero is a valid value: empty.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) addresses: [u64; CAPACITY],
    states: [u8; CAPACITY],
    /// Index + 1 of an address, at or after the place that its hash selects.
    places: [u16; PLACES],
    pub(crate) used: usize,
    /// Whether places may be in use.
    is_used: bool,
    /// Number of frames whose address found no room.
    pub(crate) dropped: u64,
}

impl Addresses {
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Addresses {
            addresses: [0; CAPACITY],
            states: [0; CAPACITY],
            places: [0; PLACES],
            used: 0,
            is_used: false,
            dropped: 0,
        }
    }

    /// Removes all addresses before the next report. A table that was never used isn't touched: it
    /// is zeros, which are cold at the first crash.
    pub(crate) fn clear(&mut self) {
        if self.is_used {
            self.places.fill(0);
        }
        self.is_used = false;
        self.used = 0;
        self.dropped = 0;
    }

    /// Notes a frame's address. If it was noted before, it keeps its first kind (after a call or
    /// not).
    #[inline]
    pub(crate) fn note(&mut self, frame: &Frame) {
        let address = frame.pc;
        self.is_used = true;
        let mut at = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PLACES;
        // At least half of the places are free.
        let place = loop {
            let Some(place) = self.places.get_mut(at) else { return };
            if *place == 0 {
                break place;
            }
            if self.addresses.get(usize::from(*place).wrapping_sub(1)) == Some(&address) {
                return;
            }
            at = at.wrapping_add(1) % PLACES;
        };
        let (Some(to), Some(state)) = (self.addresses.get_mut(self.used), self.states.get_mut(self.used)) else {
            self.dropped = self.dropped.saturating_add(1);
            return;
        };
        *to = address;
        *state = if frame.address_kind == AddressKind::INSTRUCTION { 0 } else { BEHIND_CALL };
        self.used = self.used.wrapping_add(1);
        *place = self.used as u16;
    }

    /// Returns the address to look up for entry `index`, if it wasn't looked up yet.
    pub(crate) fn unasked(&self, index: usize) -> Option<u64> {
        let (address, state) = (self.addresses.get(index)?, self.states.get(index)?);
        if index >= self.used || state & ASKED != 0 {
            return None;
        }
        Some(if state & BEHIND_CALL != 0 { address.wrapping_sub(1) } else { *address })
    }

    /// Returns the return address with that number, in the order in which they were noted.
    pub(crate) fn return_address(&self, number: usize) -> Option<u64> {
        // The program counter is the first entry.
        let index = number.wrapping_add(1);
        let is_one = index < self.used && self.states.get(index).is_some_and(|state| state & BEHIND_CALL != 0);
        self.addresses.get(index).copied().filter(|_| is_one)
    }

    pub(crate) fn set_asked(&mut self, index: usize) {
        if let Some(state) = self.states.get_mut(index) {
            *state |= ASKED;
        }
    }

    /// Returns the number of addresses that are still to be looked up.
    pub(crate) fn left(&self) -> u64 {
        let states = self.states.iter().take(self.used);
        states.filter(|state| **state & ASKED == 0).count() as u64
    }
}

/// Maximum number of images in one report that can be marked as having replaced files.
const REPLACED: usize = 64;

/// Load addresses of images whose files no longer match what is mapped. All zero is a valid value:
/// empty.
#[derive(Debug)]
pub(crate) struct Replaced {
    images: [u64; REPLACED],
    pub(crate) count: usize,
}

impl Replaced {
    /// Notes an image, once.
    pub(crate) fn note(&mut self, address: u64) {
        if self.iter().any(|noted| noted == address) {
            return;
        }
        if let Some(to) = self.images.get_mut(self.count) {
            *to = address;
            self.count = self.count.wrapping_add(1);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> {
        self.images.iter().take(self.count).copied()
    }
}

/// Buffers and tables for naming.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) addresses: Addresses,
    pub(crate) replaced: Replaced,
    pub(crate) scan: NameScan<ADDRESSES_PER_SCAN>,
    pub(crate) buffer: [u8; MAX_LENGTH],
    pub(crate) paths: Paths,
}

impl Names {
    /// Touches, at install, what every report's addresses need: only a report with many threads, or
    /// with something to name, needs more.
    pub(crate) fn touch(&mut self) {
        self.addresses.is_used = true;
        self.clear();
        let addresses = &mut self.addresses;
        if let Some(place) = addresses.addresses.first_mut() {
            *place = 0;
        }
        if let Some(state) = addresses.states.first_mut() {
            *state = 0;
        }
    }

    /// Removes everything before the next report.
    pub(crate) fn clear(&mut self) {
        self.addresses.clear();
        self.replaced.count = 0;
    }
}

#[cfg(test)]
mod tests;
