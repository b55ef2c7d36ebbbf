//! Which bits of a pointer are its address. In an arm64e process the others of a signed pointer hold its authentication code.

use core::sync::atomic::{AtomicU64, Ordering};

/// The bits of a user's address: 47 on macOS, unless the kernel says otherwise (39 on most iPhones).
static ADDRESS: AtomicU64 = AtomicU64::new((1 << 47) - 1);

/// Asks the kernel how many bits an address has (not async-signal-safe): `machdep.virtual_address_size`, which arm64 kernels have.
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

/// The bits of a code address that are no address; none on x86_64, which signs nothing.
pub fn authentication_mask() -> u64 {
    if cfg!(target_arch = "aarch64") { !ADDRESS.load(Ordering::Relaxed) } else { 0 }
}
