//! `darwin_host_hold_locks`, by which a test program emulates a crash at the worst moment.
//!
//! The program finds it with `dlsym`.
//!
//! After the call, the locks of malloc, of dyld and of libpthread's thread list count as held by a
//! thread that never releases them, and a function that waits for one of them on macOS ends the
//! program with the lock's name. Sources: libmalloc's zones (`malloc_zone_t`, each call locks a
//! magazine or a region); dyld's APIs.cpp (`withLoadersReadLock` in queries for images and
//! symbols); libpthread's pthread.c (`_pthread_list_lock`:
//! `_pthread_validate_thread_and_list_lock`, `pthread_from_mach_thread_np` searches the list; the
//! calling thread itself is not looked up).

use std::{
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::host::{
    kernel::{
        ending::refuse,
        thread::{self, Thread},
    },
    loader,
};

const MALLOC: &[&str] =
    &["malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "malloc_size", "strdup"];

const DYLD: &[&str] = &[
    "_dyld_find_unwind_sections",
    "_dyld_get_image_header",
    "_dyld_get_image_name",
    "_dyld_get_image_vmaddr_slide",
    "_dyld_image_count",
    "_dyld_register_func_for_add_image",
    "_dyld_register_func_for_remove_image",
    "dladdr",
    "dlclose",
    "dlerror",
    "dlopen",
    "dlsym",
];

const THREADS: &[&str] =
    &["pthread_create", "pthread_detach", "pthread_exit", "pthread_from_mach_thread_np", "pthread_join"];

static HELD: AtomicBool = AtomicBool::new(false);

extern "C" fn hold_locks() {
    let names: Vec<String> = [MALLOC, DYLD, THREADS].concat().iter().map(|name| format!("_{name}")).collect();
    HELD.store(true, Ordering::SeqCst);
    loader::forbid(&names);
}

/// Emulates a thread lookup, which takes the list's lock unless it is the calling thread.
pub(crate) fn look_up(function: &str, thread: *const Thread) {
    if HELD.load(Ordering::SeqCst) && !thread.is_null() && !ptr::eq(thread, thread::current()) {
        refuse!("{function} of another thread waits for a lock that another thread holds for ever");
    }
}

super::exports! {
    "darwin_host_hold_locks" => hold_locks,
}
