//! The address bits of a pointer.
//!
//! In an arm64e process the other bits of a signed pointer hold its authentication code.

use core::sync::atomic::{AtomicU64, Ordering};

/// Mask of a user address: 47 bits on macOS, unless the kernel reports others (39 on most iPhones).
static ADDRESS: AtomicU64 = AtomicU64::new((1 << 47) - 1);

/// Asks the kernel for the number of bits in an address (not async-signal-safe).
///
/// `machdep.virtual_address_size`, which arm64 kernels have.
pub fn prepare() {
    let mut bits = 0_u32;
    let mut size = size_of::<u32>();
    // SAFETY: a name that ends in NUL; the kernel writes at most `size` bytes; nothing is set.
    let answer = unsafe {
        let name = c"machdep.virtual_address_size".as_ptr();
        libc::sysctlbyname(name, (&raw mut bits).cast(), &raw mut size, core::ptr::null_mut(), 0)
    };
    if answer == 0 && (32..=52).contains(&bits) {
        ADDRESS.store((1 << bits) - 1, Ordering::Relaxed);
    }
}

/// Mask of the bits of a code address that don't belong to the address.
///
/// 0 on x86_64, which signs nothing.
pub fn authentication_mask() -> u64 {
    if cfg!(target_arch = "aarch64") { !ADDRESS.load(Ordering::Relaxed) } else { 0 }
}
