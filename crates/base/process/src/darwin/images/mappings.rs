//! The task's mappings, through `mach_vm_region_recurse`.

use mach2::kern_return::KERN_SUCCESS;
use mach2::traps::mach_task_self;
use mach2::vm::mach_vm_region_recurse;
use mach2::vm_region::vm_region_submap_info_64;

use crate::darwin::syscall::Result;
use crate::mapping::{Mapping, Permissions};

/// The kernel's list of the task's mappings.
#[derive(Debug)]
pub struct Mappings(());

impl Mappings {
    /// Opens the list; nothing has to be opened on Darwin.
    ///
    /// # Errors
    /// None; the same signature as on other systems.
    pub fn open() -> Result<Mappings> {
        Ok(Mappings(()))
    }

    /// Returns the mapping at an address, if there is one.
    ///
    /// # Errors
    /// None; the same signature as on other systems.
    pub fn at(&self, address: u64) -> Result<Option<Mapping>> {
        Ok(self.at_or_after(address)?.filter(|mapping| mapping.contains(address)))
    }

    /// Returns the mapping at an address or, if nothing is mapped there, the next one.
    ///
    /// # Errors
    /// None: if the kernel refuses, the result is `None`.
    pub fn at_or_after(&self, address: u64) -> Result<Option<Mapping>> {
        Ok(self.look_up(address).map(|(mapping, _)| mapping))
    }

    /// Calls `each` with the mappings around an address, in ascending order.
    ///
    /// This is the one that contains the address. If there is none, or it allows no access, the
    /// nearest ones below and above are included. Each comes with its purpose, as far as the kernel
    /// knows it (`stack`, `malloc`; into `name`).
    pub fn around(&self, address: u64, _name: &mut [u8], mut each: impl FnMut(&Mapping, &[u8])) {
        let Some(found) = self.look_up(address) else { return };
        let at = Some(found).filter(|(mapping, _)| mapping.contains(address));
        let is_whole = at.is_some_and(|(mapping, _)| !mapping.permissions.is_guard());
        let below = if is_whole { None } else { self.below(found.0.start.min(address)) };
        let above = match at {
            Some(_) if is_whole => None,
            Some((guard, _)) => self.look_up(guard.end),
            None => Some(found),
        };
        for (mapping, tag) in [below, at, above].into_iter().flatten() {
            each(&mapping, purpose(tag));
        }
    }

    /// Calls `each` with up to four mappings that contain an address one bit away from `address`.
    ///
    /// The address may have been one of these before memory failed. Each mapping comes with its
    /// purpose. Bits below the 25th lead to memory nearby and are not tried.
    pub fn one_bit_away(&self, address: u64, _name: &mut [u8], mut each: impl FnMut(&Mapping, &[u8])) {
        let good = |bit: u32| {
            let other = address ^ 1 << bit;
            self.look_up(other).filter(|(mapping, _)| mapping.contains(other) && mapping.permissions.read)
        };
        for (mapping, tag) in (24..56).filter_map(good).take(4) {
            each(&mapping, purpose(tag));
        }
    }

    /// Returns the last mapping that begins below an address.
    ///
    /// The kernel can only return the next mapping: this searches for one at increasing distances
    /// below, and then for the last one from there.
    fn below(&self, address: u64) -> Option<(Mapping, u32)> {
        /// Maximum number of mappings between two, one of which is four times as far away.
        const MAX_STEPS: u32 = 512;
        let is_below = |found: &(Mapping, u32)| found.0.start < address;
        let mut distance = 0x4000;
        let mut last = loop {
            let from = address.checked_sub(distance)?;
            if let Some(found) = self.look_up(from).filter(is_below) {
                break found;
            }
            distance = distance.saturating_mul(4);
        };
        for _ in 0..MAX_STEPS {
            match self.look_up(last.0.end).filter(is_below) {
                Some(next) => last = next,
                None => break,
            }
        }
        Some(last)
    }

    /// Returns the mapping at or after an address, with the tag for its purpose.
    #[allow(clippy::unused_self)]
    fn look_up(&self, address: u64) -> Option<(Mapping, u32)> {
        let (mut start, mut size) = (address, 0);
        // As deep as submaps go: the shared cache is one.
        let mut depth = u32::MAX;
        let mut info = vm_region_submap_info_64::default();
        let mut count = vm_region_submap_info_64::count();
        // SAFETY: the kernel writes the places named, at most `count` words of the structure.
        // Async-signal-safe: one message to the kernel.
        let answer = unsafe {
            let info = (&raw mut info).cast();
            mach_vm_region_recurse(
                mach_task_self(),
                &raw mut start,
                &raw mut size,
                &raw mut depth,
                info,
                &raw mut count,
            )
        };
        if answer != KERN_SUCCESS {
            return None;
        }
        // `VM_PROT_*`.
        let has = |protection| info.protection & protection != 0;
        let permissions = Permissions { read: has(1), write: has(2), execute: has(4), shared: false };
        Some((Mapping { start, end: start.saturating_add(size), permissions, ..Mapping::default() }, info.user_tag))
    }

    /// Does nothing: there is nothing to close.
    pub fn close(self) {}
}

/// Returns the purpose of memory with that tag (`VM_MEMORY_…` in <mach/vm_statistics.h>).
fn purpose(tag: u32) -> &'static [u8] {
    match tag {
        1..=4 | 6..=9 | 11 | 12 => b"malloc",
        30 => b"stack",
        31 => b"guard",
        33 => b"dyld",
        _ => b"",
    }
}
