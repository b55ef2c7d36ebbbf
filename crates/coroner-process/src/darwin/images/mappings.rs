//! The task's mappings, by `mach_vm_region_recurse`.

use mach2::kern_return::KERN_SUCCESS;
use mach2::traps::mach_task_self;
use mach2::vm::mach_vm_region_recurse;
use mach2::vm_region::vm_region_submap_info_64;

use crate::darwin::syscall::Result;

/// What may be done with a mapping's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// It can be read.
    pub read: bool,
    /// It can be written.
    pub write: bool,
    /// It can be executed.
    pub execute: bool,
}

impl Permissions {
    /// Nothing may be done with it: a guard page.
    pub fn is_guard(&self) -> bool {
        !self.read && !self.write && !self.execute
    }
}

/// Addresses that are mapped alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The address behind the last.
    pub end: u64,
    /// What may be done there.
    pub permissions: Permissions,
}

impl Mapping {
    /// Whether it holds an address.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// The kernel's list of the task's mappings.
#[derive(Debug)]
pub struct Mappings(());

impl Mappings {
    /// The list; nothing is opened.
    ///
    /// # Errors
    /// None; the same signature as elsewhere.
    pub fn open() -> Result<Mappings> {
        Ok(Mappings(()))
    }

    /// The mapping at an address, if there is one.
    ///
    /// # Errors
    /// None; the same signature as elsewhere.
    pub fn at(&self, address: u64) -> Result<Option<Mapping>> {
        Ok(self.at_or_after(address)?.filter(|mapping| mapping.contains(address)))
    }

    /// The mapping at an address or, where nothing is mapped, the next one.
    ///
    /// # Errors
    /// None: where the kernel refuses there is no mapping.
    #[allow(clippy::unused_self)]
    pub fn at_or_after(&self, address: u64) -> Result<Option<Mapping>> {
        let (mut start, mut size) = (address, 0);
        // As deep as submaps go: the shared cache is one.
        let mut depth = u32::MAX;
        let mut info = vm_region_submap_info_64::default();
        let mut count = vm_region_submap_info_64::count();
        // SAFETY: the kernel writes the places named, at most `count` words of the structure. Async-signal-safe: one message to
        // the kernel.
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
            return Ok(None);
        }
        let protection = info.protection;
        // `VM_PROT_*`.
        let permissions =
            Permissions { read: protection & 1 != 0, write: protection & 2 != 0, execute: protection & 4 != 0 };
        Ok(Some(Mapping { start, end: start.saturating_add(size), permissions }))
    }

    /// Nothing is given back.
    pub fn close(self) {}
}
