//! The task's mappings, by `mach_vm_region_recurse`.

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
        // `VM_PROT_*`.
        let has = |protection| info.protection & protection != 0;
        let permissions = Permissions { read: has(1), write: has(2), execute: has(4), shared: false };
        Ok(Some(Mapping { start, end: start.saturating_add(size), permissions, ..Mapping::default() }))
    }

    /// Nothing is given back.
    pub fn close(self) {}
}
