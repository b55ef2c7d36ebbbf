//! Reads this process's memory through the kernel, because it may not be mapped.

use std::ffi::c_void;

use windows_sys::Win32::System::Diagnostics::Debug::ReadProcessMemory;
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// Fills all of `into`. Returns `false` if a part of it can't be read.
pub(super) fn read(address: u64, into: &mut [u8]) -> bool {
    let mut count = 0;
    // SAFETY: the kernel checks the address, and writes at most `into.len()` bytes.
    let is_read = unsafe {
        let into_at = into.as_mut_ptr().cast::<c_void>();
        ReadProcessMemory(GetCurrentProcess(), address as *const c_void, into_at, into.len(), &raw mut count)
    };
    is_read != 0 && count == into.len()
}

fn word<const N: usize>(address: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    read(address, &mut bytes).then_some(bytes)
}

pub(super) fn u16_at(address: u64) -> Option<u16> {
    word(address).map(u16::from_le_bytes)
}

pub(super) fn u32_at(address: u64) -> Option<u32> {
    word(address).map(u32::from_le_bytes)
}

pub(super) fn u64_at(address: u64) -> Option<u64> {
    word(address).map(u64::from_le_bytes)
}
