//! dyld's list of images, `struct dyld_all_image_infos` (<mach-o/dyld_images.h>).

use mach2::kern_return::KERN_SUCCESS;
use mach2::task::task_info;
use mach2::task_info::{TASK_DYLD_INFO, task_dyld_info};
use mach2::traps::mach_task_self;

use crate::memory::{Memory, Unreadable};

/// Offsets of `dyldImageLoadAddress` in the structure, and of `dyldPath`, added in version 15.
const DYLD_AT: u64 = 32;
const DYLD_PATH_AT: u64 = 192;
/// Offset of `infoArrayChangeTimestamp`, added in the same version.
pub(super) const CHANGED_AT: u64 = 184;
const DYLD_PATH_VERSION: u32 = 15;

/// Size of `struct dyld_image_info`: header, path, modification date.
pub(super) const ENTRY: u64 = 24;

/// Returns the structure's address, which the kernel knows; 0 if it has none.
pub(super) fn address() -> u64 {
    // SAFETY: plain data; all zero is valid.
    let mut info: task_dyld_info = unsafe { core::mem::zeroed() };
    let mut count = (size_of::<task_dyld_info>() / 4) as u32;
    // SAFETY: the kernel writes at most `count` words of the structure. Async-signal-safe: one
    // message to the kernel.
    let answer = unsafe { task_info(mach_task_self(), TASK_DYLD_INFO, (&raw mut info).cast(), &raw mut count) };
    if answer == KERN_SUCCESS { info.all_image_info_addr } else { 0 }
}

/// The list at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct List {
    /// The address of the array of entries; 0 while dyld changes it.
    pub array: u64,
    pub count: u32,
    /// dyld's own header and path; 0 if it has none.
    pub dyld: (u64, u64),
}

impl List {
    /// Reads the list.
    ///
    /// # Errors
    /// [`Unreadable`] if the structure can't be read.
    pub(super) fn read<M: Memory>(memory: &mut M, at: u64) -> Result<List, Unreadable> {
        let mut head = [0; 16];
        memory.read(at, &mut head)?;
        let version = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let count = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let array = u64::from_le_bytes([head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15]]);
        let dyld = memory.read_u64(at.saturating_add(DYLD_AT))?;
        let path = if version >= DYLD_PATH_VERSION { memory.read_u64(at.saturating_add(DYLD_PATH_AT))? } else { 0 };
        Ok(List { array, count, dyld: (dyld, path) })
    }

    /// Returns the header and path of the entry at `index`.
    ///
    /// # Errors
    /// [`Unreadable`] if the entry can't be read.
    pub(super) fn entry<M: Memory>(&self, memory: &mut M, index: u32) -> Result<(u64, u64), Unreadable> {
        memory.read_pair(self.array.saturating_add(u64::from(index) * ENTRY))
    }
}
