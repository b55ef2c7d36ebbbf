//! Threads that fault, and parked threads that the report must also contain.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use crate::chain::{self, Step};

/// The name of every faulting thread except the main one.
pub const CRASHER: &str = "crasher";
/// The name of every parked thread.
pub const PARKED: &str = "parked";
/// The number of [`parked_frame`] frames on a parked thread's stack.
pub const PARKED_DEPTH: u32 = 11;

/// Runs a step on a thread created by Rust's standard library, and waits for it.
pub(crate) fn on_rust_thread(step: Step) {
    on_thread_with_stack(step, 1 << 20);
}

/// Runs a step on a thread whose stack is large enough for 100,000 frames, even in a debug build.
pub(crate) fn on_big_thread(step: Step) {
    on_thread_with_stack(step, 256 << 20);
}

fn on_thread_with_stack(step: Step, size: usize) {
    let thread = std::thread::Builder::new().name(CRASHER.into()).stack_size(size).spawn(move || chain::here(step));
    // It ends the process, or returns normally if a reporter or debugger let the thread live.
    let _ = thread.expect("a thread to fault on").join();
}

/// Runs a step on a thread created as in C: without an alternate signal stack and the Rust runtime.
pub(crate) fn on_c_thread(step: Step) {
    extern "C" fn start(step: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: it is the box that was passed to pthread_create.
        let step = unsafe { Box::from_raw(step.cast::<Step>()) };
        // SAFETY: a constant, NUL-terminated name of at most 16 bytes.
        unsafe {
            #[cfg(target_vendor = "apple")]
            libc::pthread_setname_np(c"crasher".as_ptr());
            #[cfg(not(target_vendor = "apple"))]
            libc::pthread_setname_np(libc::pthread_self(), c"crasher".as_ptr());
        }
        chain::here(*step);
        std::ptr::null_mut()
    }

    // SAFETY: attributes and thread are initialized by the first calls; the box is passed to the
    // thread.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        let mut thread: libc::pthread_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, 512 << 10);
        let step = Box::into_raw(Box::new(step)).cast();
        let error = libc::pthread_create(&raw mut thread, &raw const attributes, start, step);
        assert_eq!(error, 0, "no thread to fault on");
        libc::pthread_join(thread, std::ptr::null_mut());
    }
}

/// Runs a step on two threads that start it at the same moment.
pub(crate) fn on_two_threads(step: Step) {
    let ready = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let ready = Arc::clone(&ready);
            let run = move || {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < 2 {
                    std::hint::spin_loop();
                }
                chain::here(step);
            };
            std::thread::Builder::new().name(CRASHER.into()).spawn(run).expect("a thread to fault on")
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
}

/// The condition that parked threads wait for; it is never signaled.
static NEVER: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// Starts `count` threads and returns when each is parked.
///
/// Each has [`PARKED_DEPTH`] frames of [`parked_frame`]. They stay until the process ends.
///
/// # Panics
/// If the system can't create more threads.
pub fn park(count: usize) {
    // On systems that allocate locks at their first use (Apple's), do that here, before a test
    // corrupts malloc.
    drop(NEVER.1.wait_timeout(NEVER.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner), Duration::ZERO));
    let ready = Arc::new(Barrier::new(count + 1));
    for _ in 0..count {
        let ready = Arc::clone(&ready);
        std::thread::Builder::new()
            .name(PARKED.into())
            .stack_size(512 << 10)
            .spawn(move || parked_frame(black_box(PARKED_DEPTH), &ready))
            .expect("a thread to park");
    }
    ready.wait();
}

/// One frame of a parked thread.
#[inline(never)]
pub fn parked_frame(remaining: u32, ready: &Barrier) -> u64 {
    if remaining > 1 {
        return black_box(parked_frame(black_box(remaining) - 1, ready)).wrapping_add(1);
    }
    ready.wait();
    let mut guard = NEVER.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    loop {
        guard = NEVER.1.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
        black_box(&guard);
    }
}
