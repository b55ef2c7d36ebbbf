//! The loaded images: `dyld_all_image_infos`, a table for signal handlers, and callbacks.
//!
//! Layout: `struct dyld_all_image_infos` and `dyld_image_info` of <mach-o/dyld_images.h>, version
//! 17. As in dyld the array is null while it changes. `task_info(TASK_DYLD_INFO)` returns its
//! address.

use std::{
    ffi::c_char,
    ptr,
    sync::atomic::{AtomicPtr, AtomicUsize, Ordering},
};

use super::Loader;
use crate::host::kernel::lock::QuietMutex;

const CAPACITY: usize = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct ImageInfo {
    header: usize,
    path: *const c_char,
    modified: usize,
}

#[repr(C, align(16))]
struct AllImageInfos {
    version: u32,
    count: u32,
    array: AtomicPtr<ImageInfo>,
    notification: usize,
    detached: u8,
    lib_system_initialized: u8,
    dyld: usize,
    jit_info: usize,
    dyld_version: *const c_char,
    error_message: usize,
    termination_flags: usize,
    symbolication_page: usize,
    system_order_flag: usize,
    uuid_count: usize,
    uuids: usize,
    own_address: usize,
    initial_count: usize,
    error: [usize; 4],
    shared_cache_slide: usize,
    shared_cache_uuid: [u8; 16],
    shared_cache_base: usize,
    change_time: u64,
    dyld_path: *const c_char,
    notify_ports: [u32; 8],
    reserved: [usize; 7],
}

/// The size in bytes that `TASK_DYLD_ALL_IMAGE_INFO_64` reports.
pub(crate) const INFOS_SIZE: usize = size_of::<AllImageInfos>();

static mut INFOS: AllImageInfos = AllImageInfos {
    version: 17,
    count: 0,
    array: AtomicPtr::new(ptr::null_mut()),
    notification: 0,
    detached: 0,
    lib_system_initialized: 1,
    dyld: 0,
    jit_info: 0,
    dyld_version: c"darwin-host".as_ptr(),
    error_message: 0,
    termination_flags: 0,
    symbolication_page: 0,
    system_order_flag: 0,
    uuid_count: 0,
    uuids: 0,
    own_address: 0,
    initial_count: 0,
    error: [0; 4],
    shared_cache_slide: 0,
    shared_cache_uuid: [0; 16],
    shared_cache_base: 0,
    change_time: 0,
    dyld_path: c"/usr/lib/dyld".as_ptr(),
    notify_ports: [0; 8],
    reserved: [0; 7],
};

/// Two arrays: one is visible while the other is written.
static mut ARRAYS: [[ImageInfo; CAPACITY]; 2] =
    [[ImageInfo { header: 0, path: ptr::null(), modified: 0 }; CAPACITY]; 2];

/// Ranges of the loaded images: start, end and address of the header.
static RANGES: [[AtomicUsize; 2]; CAPACITY] = [const { [const { AtomicUsize::new(0) }; 2] }; CAPACITY];

/// Returns the structure's address.
pub(crate) fn infos_address() -> usize {
    &raw const INFOS as usize
}

/// Returns the header of the image that contains `address`. Lock-free: used in signal handlers.
pub(crate) fn find(address: usize) -> Option<usize> {
    RANGES.iter().find_map(|[start, end]| {
        let start = start.load(Ordering::Acquire);
        (start != 0 && (start..end.load(Ordering::Acquire)).contains(&address)).then_some(start)
    })
}

/// Sets dyld's location, which is not in the list of images. Requires the loader's lock.
pub(super) fn set_dyld(header: usize) {
    // SAFETY: the loader's lock is held, and no program is running yet.
    unsafe { (&raw mut INFOS.dyld).write(header) };
}

/// Publishes the loader's images. Requires the loader's lock.
pub(super) fn publish(loader: &mut Loader) {
    // SAFETY: the loader's lock is held; readers access the array through the atomic pointer.
    unsafe {
        let infos = &raw mut INFOS;
        let infos = &mut *infos;
        let current = infos.array.swap(ptr::null_mut(), Ordering::SeqCst);
        let arrays = (&raw mut ARRAYS).cast::<[ImageInfo; CAPACITY]>();
        let next = usize::from(ptr::eq(current, arrays.cast::<ImageInfo>()));
        let array = &mut *arrays.add(next);
        let count = loader.images.len().min(CAPACITY);
        for ((entry, range), image) in array.iter_mut().zip(&RANGES).zip(&loader.images) {
            *entry = ImageInfo { header: image.header, path: image.path.as_ptr(), modified: 0 };
            range[0].store(0, Ordering::Release);
            range[1].store(image.range.1, Ordering::Release);
            range[0].store(image.range.0, Ordering::Release);
        }
        for range in &RANGES[count..] {
            range[0].store(0, Ordering::Release);
        }
        infos.count = count as u32;
        infos.own_address = infos_address();
        if infos.initial_count == 0 {
            infos.initial_count = count;
        }
        infos.change_time += 1;
        infos.array.store(array.as_mut_ptr(), Ordering::SeqCst);
    }
}

/// Callbacks for loaded and unloaded images.
///
/// Their type is `void (*)(const struct mach_header *, intptr_t slide)`.
struct Callbacks {
    mutex: QuietMutex,
    added: std::cell::UnsafeCell<Vec<usize>>,
    removed: std::cell::UnsafeCell<Vec<usize>>,
}

// SAFETY: the vectors are only used under the mutex.
unsafe impl Sync for Callbacks {}

static CALLBACKS: Callbacks = Callbacks {
    mutex: QuietMutex::new(),
    added: std::cell::UnsafeCell::new(Vec::new()),
    removed: std::cell::UnsafeCell::new(Vec::new()),
};

/// Resets the lock in the child after fork.
pub(super) fn reset() {
    CALLBACKS.mutex.reset();
}

fn with_callbacks<R>(removed: bool, body: impl FnOnce(&mut Vec<usize>) -> R) -> R {
    let held = CALLBACKS.mutex.acquire();
    let list = if removed { &CALLBACKS.removed } else { &CALLBACKS.added };
    // SAFETY: the mutex is held.
    let result = body(unsafe { &mut *list.get() });
    CALLBACKS.mutex.release(&held);
    result
}

/// `_dyld_register_func_for_add_image`: calls the function for each loaded and each new image.
pub(crate) fn on_add(function: usize) {
    with_callbacks(false, |list| list.push(function));
    for (header, slide) in super::with(|l| l.images.iter().map(|i| (i.header, i.slide)).collect::<Vec<_>>()) {
        super::call(function, [header, slide, 0, 0]);
    }
}

/// `_dyld_register_func_for_remove_image`.
pub(crate) fn on_remove(function: usize) {
    with_callbacks(true, |list| list.push(function));
}

/// Calls the callbacks for images (header, slide), without holding a lock.
pub(crate) fn notify(removed: bool, images: &[(usize, usize)]) {
    for function in with_callbacks(removed, |list| list.clone()) {
        for &(header, slide) in images {
            super::call(function, [header, slide, 0, 0]);
        }
    }
}
