//! Finds the loaded image that contains an address, in a signal handler on a thread's own alternate
//! stack, where little room is left.
//!
//! glibc since 2.35 provides it (`_dl_find_object`, without a lock and async-signal-safe by its
//! manual). Elsewhere the address is looked up in the list of images that was created last while
//! the app ran, if that list is still current.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{LiveImages, LiveReader};

/// The image that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The image that is loaded at that address.
    Image(u64),
    /// No image.
    Nothing,
    /// Can't be determined now.
    Unknown,
}

/// Address of glibc's `_dl_find_object`, 0 without it.
static FIND: AtomicUsize = AtomicUsize::new(0);

/// `struct dl_find_object` of `<dlfcn.h>`.
#[repr(C)]
struct Found {
    flags: u64,
    start: *mut libc::c_void,
    end: *mut libc::c_void,
    link_map: *mut libc::c_void,
    eh_frame: *mut libc::c_void,
    reserved: [u64; 7],
}

/// Prepares lookups (not async-signal-safe): at install, and again from time to time.
pub fn prepare() {
    if cfg!(miri) {
        // A test's code is in no image of the fake kernel: it must not be taken for a JIT
        // compiler's.
        return;
    }
    if cfg!(target_env = "gnu") {
        // SAFETY: a NUL-terminated name.
        let find = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        FIND.store(find as usize, Ordering::Release);
    }
    if FIND.load(Ordering::Acquire) == 0 {
        let _ = LiveReader::new().and_then(LiveImages::current);
    }
}

/// Returns the image that contains `address`. Async-signal-safe.
///
/// Not inlined, so that `xtask signal-safety` can identify its call through a pointer by name.
#[inline(never)]
pub fn holder_of(address: u64) -> Holder {
    let find = FIND.load(Ordering::Acquire);
    if find != 0 {
        // SAFETY: the function of `<dlfcn.h>` by that name, of glibc, which takes an address and a
        // struct, whose size is at most this, and only reads what it made when images were loaded.
        // Async-signal-safe by the manual (Dynamic Linker Introspection).
        let (found, status) = unsafe {
            let find: unsafe extern "C" fn(*mut libc::c_void, *mut Found) -> i32 = core::mem::transmute(find);
            let mut found: Found = core::mem::zeroed();
            let status = find(address as *mut libc::c_void, &raw mut found);
            (found, status)
        };
        return if status == 0 { Holder::Image(found.start as u64) } else { Holder::Nothing };
    }
    let Some(LiveReader::Loads(memory)) = LiveReader::new() else { return Holder::Unknown };
    let Some(images) = LiveImages::last_if_current(memory) else { return Holder::Unknown };
    images.find(address).map_or(Holder::Nothing, |image| Holder::Image(core::ptr::from_ref(image) as u64))
}
