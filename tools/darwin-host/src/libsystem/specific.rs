//! Thread-specific data: pthread keys, and functions registered for a thread's end.
//!
//! Sources: <pthread.h>; libpthread's pthread_tsd.c (destructors run in rounds,
//! PTHREAD_DESTRUCTOR_ITERATIONS 4); dyld's `_tlv_atexit` (registered functions run last first,
//! before the keys' destructors).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::host::{
    kernel::{
        lock, thread,
        thread::{FIRST_KEY, KEYS},
    },
    loader,
};

/// By key: 0 free, 1 used without a destructor, otherwise the destructor.
static DESTRUCTORS: [AtomicUsize; KEYS] = [const { AtomicUsize::new(0) }; KEYS];

/// Allocates a key. Key 0 is never allocated: unprepared thread-local descriptors contain it.
pub(crate) fn create_key(destructor: usize) -> Option<usize> {
    let _lock = lock();
    let key = (FIRST_KEY..KEYS).find(|&k| DESTRUCTORS[k].load(Ordering::Relaxed) == 0)?;
    DESTRUCTORS[key].store(destructor.max(1), Ordering::Relaxed);
    Some(key)
}

extern "C" fn pthread_key_create(key: *mut usize, destructor: usize) -> i32 {
    match create_key(destructor) {
        Some(new) => {
            // SAFETY: the program gave the address.
            unsafe { key.write(new) };
            0
        }
        None => 35, // EAGAIN
    }
}

extern "C" fn pthread_key_delete(key: usize) -> i32 {
    match DESTRUCTORS.get(key) {
        Some(slot) if slot.swap(0, Ordering::Relaxed) != 0 => 0,
        _ => 22, // EINVAL
    }
}

extern "C" fn pthread_getspecific(key: usize) -> usize {
    thread::current().specific.get(key).copied().unwrap_or(0)
}

extern "C" fn pthread_setspecific(key: usize, value: usize) -> i32 {
    match thread::current().specific.get_mut(key) {
        Some(slot) => {
            *slot = value;
            0
        }
        None => 22,
    }
}

/// The key for functions to run at a thread's end, as (function, argument) pairs.
static AT_EXIT_KEY: AtomicUsize = AtomicUsize::new(0);

extern "C" fn tlv_atexit(function: usize, argument: usize) {
    if AT_EXIT_KEY.load(Ordering::Relaxed) == 0
        && let Some(key) = create_key(1)
    {
        AT_EXIT_KEY.store(key, Ordering::Relaxed);
    }
    let slot = &mut thread::current().specific[AT_EXIT_KEY.load(Ordering::Relaxed)];
    if *slot == 0 {
        *slot = Box::into_raw(Box::<Vec<(usize, usize)>>::default()) as usize;
    }
    // SAFETY: made above, and only used by this thread.
    unsafe { (*(*slot as *mut Vec<(usize, usize)>)).push((function, argument)) };
}

/// Runs the calling thread's registered functions, then its keys' destructors.
pub(super) fn run_destructors() {
    let thread = thread::current();
    let key = AT_EXIT_KEY.load(Ordering::Relaxed);
    loop {
        let list = thread.specific[key] as *mut Vec<(usize, usize)>;
        if key == 0 || list.is_null() {
            break;
        }
        // SAFETY: made by `tlv_atexit`; a function may register more.
        let Some((function, argument)) = (unsafe { (*list).pop() }) else { break };
        loader::call(function, [argument, 0, 0, 0]);
    }
    for _ in 0..4 {
        let mut ran = false;
        for (key, slot) in DESTRUCTORS.iter().enumerate() {
            let destructor = slot.load(Ordering::Relaxed);
            let value = thread.specific[key];
            // The copies of thread-local variables are freed last, because destructors may use
            // them.
            if destructor > 1 && destructor != libc::free as *const () as usize && value != 0 {
                thread.specific[key] = 0;
                loader::call(destructor, [value, 0, 0, 0]);
                ran = true;
            }
        }
        if !ran {
            break;
        }
    }
    for (key, slot) in DESTRUCTORS.iter().enumerate() {
        if slot.load(Ordering::Relaxed) == libc::free as *const () as usize && thread.specific[key] != 0 {
            // SAFETY: malloc blocks, as their destructor is `free`.
            unsafe { libc::free(std::mem::take(&mut thread.specific[key]) as *mut libc::c_void) };
        }
    }
}

super::exports! {
    "pthread_key_create" => pthread_key_create,
    "pthread_key_delete" => pthread_key_delete,
    "pthread_getspecific" => pthread_getspecific,
    "pthread_setspecific" => pthread_setspecific,
    "_tlv_atexit" => tlv_atexit,
}
