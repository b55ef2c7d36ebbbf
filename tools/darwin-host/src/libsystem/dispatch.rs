//! The parts of libdispatch that programs use: semaphores and simple queues.
//!
//! Rust's std parks threads with semaphores (<dispatch/semaphore.h>). Of queues
//! (<dispatch/queue.h>) there is what makes a thread run a queue's work: `dispatch_queue_create`,
//! `dispatch_sync_f`; and the main queue, which accepts work by `dispatch_async_f` and runs it
//! where the main thread's run loop would, in `_dispatch_main_queue_callback_4CF` (libdispatch's
//! private.h: the function that CFRunLoop calls).
//!
//! A crash reporter finds a queue through libdispatch's `dispatch_queue_offsets` (queue_private.h),
//! which debuggers read, and the thread's slot for its queue, whose address the kernel reports
//! (`dispatch_qaddr`).

use std::{
    ffi::c_char,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use super::Export;
use crate::host::{
    kernel::{ending::refuse, futex, thread},
    loader,
    mach::hosts::mach_absolute_time,
};

/// A `dispatch_queue_t`: the label is at the offset in [`OFFSETS`].
#[repr(C)]
struct Queue {
    _object: [usize; 2],
    label: *mut c_char,
    lock: std::sync::Mutex<()>,
}

/// `struct dispatch_queue_offsets_s`, its first fields: version, offset and size of the label.
static OFFSETS: [u16; 3] = [6, std::mem::offset_of!(Queue, label) as u16, size_of::<usize>() as u16];

/// `_dispatch_main_q`: only its address matters.
static MAIN_QUEUE: [usize; 16] = [0; 16];

/// The main queue's pending work: functions and their contexts.
static MAIN_WORK: std::sync::Mutex<std::collections::VecDeque<(usize, usize)>> =
    std::sync::Mutex::new(std::collections::VecDeque::new());

pub(super) fn variables() -> Vec<Export> {
    vec![
        Export::variable("dispatch_queue_offsets", &raw const OFFSETS),
        Export::variable("_dispatch_main_q", &raw const MAIN_QUEUE),
    ]
}

/// Adds work to the main queue.
extern "C" fn async_f(queue: usize, context: usize, work: usize) {
    if queue != (&raw const MAIN_QUEUE) as usize {
        refuse!("dispatch_async_f to another queue than the main one");
    }
    MAIN_WORK.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push_back((work, context));
}

/// Runs the main queue's work on the calling thread, which is the main one.
extern "C" fn main_queue_callback(_message: usize) {
    let next = || MAIN_WORK.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
    while let Some((work, context)) = next() {
        loader::call(work, [context, 0, 0, 0]);
    }
}

/// Creates a serial queue; its label is copied.
extern "C" fn queue_create(label: *const c_char, attributes: usize) -> *mut Queue {
    if attributes != 0 {
        refuse!("dispatch_queue_create with attributes");
    }
    // SAFETY: the program gave a string.
    let label = unsafe { libc::strdup(label) };
    Box::into_raw(Box::new(Queue { _object: [0; 2], label, lock: std::sync::Mutex::new(()) }))
}

/// Runs the work on the calling thread, as part of a queue.
extern "C" fn sync_f(queue: &Queue, context: usize, work: usize) {
    let _turn = queue.lock.lock();
    let thread = thread::current();
    let before = thread.queue.swap(std::ptr::from_ref(queue) as usize, Ordering::SeqCst);
    loader::call(work, [context, 0, 0, 0]);
    thread.queue.store(before, Ordering::SeqCst);
}

/// A `dispatch_semaphore_t`.
struct Semaphore {
    value: AtomicU32,
}

const FOREVER: u64 = u64::MAX;

extern "C" fn create(value: isize) -> *mut Semaphore {
    Box::into_raw(Box::new(Semaphore { value: AtomicU32::new(value as u32) }))
}

/// Semaphores have no reference count here: a program that releases one has no other reference.
extern "C" fn release(semaphore: *mut Semaphore) {
    // SAFETY: made by `create`.
    drop(unsafe { Box::from_raw(semaphore) });
}

extern "C" fn signal(semaphore: &Semaphore) -> isize {
    semaphore.value.fetch_add(1, Ordering::Release);
    futex::wake(&semaphore.value, 1);
    0
}

/// Waits until `when` (from `dispatch_time`); returns nonzero on timeout.
extern "C" fn wait(semaphore: &Semaphore, when: u64) -> isize {
    let end =
        (when != FOREVER).then(|| Instant::now() + Duration::from_nanos(when.saturating_sub(mach_absolute_time())));
    loop {
        let value = semaphore.value.load(Ordering::Relaxed);
        if value > 0 {
            if semaphore.value.compare_exchange(value, value - 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return 0;
            }
            continue;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return 49; // KERN_OPERATION_TIMED_OUT
        }
        futex::wait(&semaphore.value, 0, left);
    }
}

/// DISPATCH_TIME_NOW is 0: now and `delta` nanoseconds, on the clock of `mach_absolute_time`.
extern "C" fn time(when: u64, delta: i64) -> u64 {
    let start = if when == 0 { mach_absolute_time() } else { when };
    if when == FOREVER { FOREVER } else { start.saturating_add_signed(delta) }
}

super::exports! {
    "dispatch_queue_create" => queue_create,
    "dispatch_sync_f" => sync_f,
    "dispatch_async_f" => async_f,
    "_dispatch_main_queue_callback_4CF" => main_queue_callback,
    "dispatch_semaphore_create" => create,
    "dispatch_semaphore_signal" => signal,
    "dispatch_semaphore_wait" => wait,
    "dispatch_release" => release,
    "dispatch_time" => time,
}
