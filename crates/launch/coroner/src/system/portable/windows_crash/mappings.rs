//! Describes the mapping at an address, or its neighbors.
//!
//! The kernel provides the data. `docs/explanations.md` describes its use.

use std::ffi::c_void;

use coroner_report::wire::{Encoder, Mapping};
use windows_sys::Win32::System::Memory::{
    MEM_FREE, MEM_IMAGE, MEM_MAPPED, MEM_RESERVE, MEMORY_BASIC_INFORMATION, PAGE_EXECUTE, PAGE_EXECUTE_READ,
    PAGE_EXECUTE_READWRITE, PAGE_EXECUTE_WRITECOPY, PAGE_GUARD, PAGE_READONLY, PAGE_READWRITE, PAGE_WRITECOPY,
    VirtualQuery,
};

const EXECUTE: u8 = 1;
const WRITE: u8 = 2;
const READ: u8 = 4;

/// Encodes the mapping at an address or, if there is none, the mappings before and after it.
pub(super) fn encode_around(encoder: &mut Encoder<'_>, address: u64) {
    let Some(region) = region_at(address) else { return };
    if region.State != MEM_FREE {
        encode(encoder, &region);
        return;
    }
    let start = region.BaseAddress as u64;
    for next in [start.checked_sub(1), start.checked_add(region.RegionSize as u64)].into_iter().flatten() {
        if let Some(region) = region_at(next).filter(|region| region.State != MEM_FREE) {
            encode(encoder, &region);
        }
    }
}

/// Returns the pages with the same protection around an address.
///
/// `None` if a process can't have pages there.
fn region_at(address: u64) -> Option<MEMORY_BASIC_INFORMATION> {
    let mut region = MEMORY_BASIC_INFORMATION::default();
    // SAFETY: the address is only looked up, and one structure is written.
    let length =
        unsafe { VirtualQuery(address as *const c_void, &raw mut region, size_of::<MEMORY_BASIC_INFORMATION>()) };
    (length == size_of::<MEMORY_BASIC_INFORMATION>()).then_some(region)
}

fn encode(encoder: &mut Encoder<'_>, region: &MEMORY_BASIC_INFORMATION) {
    let name: &[u8] = match region.Type {
        MEM_IMAGE => b"an image",
        MEM_MAPPED => b"a mapped section",
        _ => b"",
    };
    let (start, size) = (region.BaseAddress as u64, region.RegionSize as u64);
    Mapping { start, size, protection: rights(region), name, file_offset: 0 }.encode(encoder);
}

/// Returns the allowed accesses: none for reserved addresses and guard pages.
fn rights(region: &MEMORY_BASIC_INFORMATION) -> u8 {
    if region.State == MEM_RESERVE || region.Protect & PAGE_GUARD != 0 {
        return 0;
    }
    // The upper bits are caching flags.
    match region.Protect & 0xff {
        PAGE_READONLY => READ,
        PAGE_READWRITE | PAGE_WRITECOPY => READ | WRITE,
        PAGE_EXECUTE => EXECUTE,
        PAGE_EXECUTE_READ => READ | EXECUTE,
        PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY => READ | WRITE | EXECUTE,
        _ => 0,
    }
}
