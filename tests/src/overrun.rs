//! A loop that writes past the end of its memory and overwrites everything above.

use std::hint::black_box;

/// Writes upwards from a new mapping until a fault.
#[inline(never)]
pub(crate) fn overrun() -> u64 {
    // Too large for most gaps between images and too small for a huge page, which would leave a gap
    // above: the kernel places it right below other mappings.
    const SIZE: usize = 1 << 20;
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping touches nothing that exists.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, access, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED, "no memory");
    let mut at = memory.cast::<u8>();
    while !at.is_null() {
        // SAFETY: none after the end of the mapping: this crashes on purpose.
        unsafe { at.write_volatile(0x41) };
        at = black_box(at).wrapping_add(1);
    }
    at as u64
}
