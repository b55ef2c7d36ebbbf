//! A loop that does not end where its memory does: what lies above is overwritten, whoever has it.

use std::hint::black_box;

/// Writes from a new mapping on, upwards, until a fault.
#[inline(never)]
pub(crate) fn overrun() -> u64 {
    // Too large for most gaps between images, and too small for a huge page, which would have a gap above: right below what is there.
    const SIZE: usize = 1 << 20;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping touches nothing that exists.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, access, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED, "no memory");
    let mut at = memory.cast::<u8>();
    while !at.is_null() {
        // SAFETY: none behind the mapping; it is what this is here for.
        unsafe { at.write_volatile(0x41) };
        at = black_box(at).wrapping_add(1);
    }
    at as u64
}
