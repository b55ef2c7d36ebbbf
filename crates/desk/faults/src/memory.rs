//! Faults at bad addresses.
//!
//! Loads and stores are written in assembly: in a debug build Rust checks pointers and would panic
//! first.

use std::arch::asm;
use std::ffi::c_void;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Stores a word at any address.
#[allow(clippy::inline_always)] // the fault belongs into the function that the report is to name
#[inline(always)]
fn store(address: usize) {
    // SAFETY: none is claimed. The store is meant to fault and end the process.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov dword ptr [{address}], 1", address = in(reg) address);
        #[cfg(target_arch = "aarch64")]
        asm!("str wzr, [{address}]", address = in(reg) address);
    }
}

/// Loads a word from any address.
#[allow(clippy::inline_always)] // the fault belongs into the function that the report is to name
#[inline(always)]
fn load(address: usize) -> u64 {
    let value: u64;
    // SAFETY: none is claimed. The load is meant to fault and end the process.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("mov {value}, qword ptr [{address}]", value = out(reg) value, address = in(reg) address);
        #[cfg(target_arch = "aarch64")]
        asm!("ldr {value}, [{address}]", value = out(reg) value, address = in(reg) address);
    }
    value
}

/// Size of a mapped page in bytes: the largest of any system.
const PAGE: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();

/// Maps a page with this protection.
fn map_page(protection: ProtFlags) -> NonNull<c_void> {
    // SAFETY: a new anonymous mapping doesn't affect existing memory.
    unsafe { mmap_anonymous(None, PAGE, protection, MapFlags::MAP_PRIVATE) }.expect("memory for a page to fault on")
}

#[inline(never)]
pub(crate) fn null_store() -> u64 {
    store(black_box(0));
    0
}

#[inline(never)]
pub(crate) fn bad_pointer() -> u64 {
    let page = map_page(ProtFlags::PROT_READ);
    // SAFETY: no other code uses this page.
    unsafe { munmap(page, PAGE.get()) }.expect("a page that was mapped");
    load(black_box(page.as_ptr() as usize + 0x10))
}

#[inline(never)]
pub(crate) fn non_canonical() -> u64 {
    load(black_box(0xdead_4bad_0bad_c0de_usize & !7))
}

#[inline(never)]
pub(crate) fn read_only_store() -> u64 {
    store(black_box(map_page(ProtFlags::PROT_READ).as_ptr() as usize + 0x40));
    0
}

#[inline(never)]
pub(crate) fn bus_error() -> u64 {
    let path = std::env::temp_dir().join(format!("coroner-faults-{}", std::process::id()));
    let file = std::fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&path)
        .expect("a temporary file to map");
    std::fs::remove_file(&path).expect("the temporary file's name to be removable");
    // SAFETY: a new mapping doesn't affect existing memory.
    let page = unsafe { mmap(None, PAGE, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &file, 0) };
    let page = page.expect("an empty file can be mapped");
    load(black_box(page.as_ptr() as usize + 0x20))
}

#[inline(never)]
pub(crate) fn call_null() -> u64 {
    call(black_box(0))
}

#[inline(never)]
pub(crate) fn call_data() -> u64 {
    call(black_box(map_page(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).as_ptr() as usize + 0x100))
}

/// Calls any address, with a call instruction directly in the caller.
#[allow(clippy::inline_always)] // the fault belongs into the function that the report is to name
#[inline(always)]
fn call(address: usize) -> u64 {
    let result: u64;
    // SAFETY: none is claimed. The call is meant to fault; the clobbers are those of any call.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("call {address}", address = in(reg) address, lateout("rax") result, clobber_abi("C"));
        #[cfg(target_arch = "aarch64")]
        asm!("blr {address}", address = in(reg) address, lateout("x0") result, clobber_abi("C"));
    }
    result
}
