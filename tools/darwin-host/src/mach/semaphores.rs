//! Mach semaphores (<mach/semaphore.h>; XNU osfmk/kern/sync_sema.c).

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use super::{KERN_INVALID_ARGUMENT, KERN_OPERATION_TIMED_OUT, KERN_SUCCESS, KERN_TERMINATED, ports::Kind};
use crate::host::kernel::{futex, lock};

/// Changes whenever any semaphore is signaled.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn semaphore_create(_task: u32, name: *mut u32, _policy: i32, value: i32) -> i32 {
    let new = lock().ports.kernel_object(Kind::Semaphore(value));
    // SAFETY: the program gave the address.
    unsafe { name.write(new) };
    KERN_SUCCESS
}

extern "C" fn semaphore_destroy(_task: u32, name: u32) -> i32 {
    lock().ports.kill(name);
    futex::advance(&SIGNALS);
    KERN_SUCCESS
}

fn add(name: u32, count: i32) -> i32 {
    let result = match lock().ports.kind_mut(name) {
        Some(Kind::Semaphore(value)) => {
            *value += count;
            KERN_SUCCESS
        }
        Some(_) => KERN_INVALID_ARGUMENT,
        None => KERN_TERMINATED,
    };
    futex::advance(&SIGNALS);
    result
}

extern "C" fn semaphore_signal(name: u32) -> i32 {
    add(name, 1)
}

fn wait(name: u32, timeout: Option<Duration>) -> i32 {
    let end = timeout.map(|t| Instant::now() + t);
    loop {
        let seen = SIGNALS.load(Ordering::SeqCst);
        match lock().ports.kind_mut(name) {
            Some(Kind::Semaphore(value)) if *value > 0 => {
                *value -= 1;
                return KERN_SUCCESS;
            }
            Some(Kind::Semaphore(_)) => {}
            Some(_) => return KERN_INVALID_ARGUMENT,
            None => return KERN_TERMINATED,
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return KERN_OPERATION_TIMED_OUT;
        }
        futex::wait(&SIGNALS, seen, left);
    }
}

extern "C" fn semaphore_wait(name: u32) -> i32 {
    wait(name, None)
}

/// `mach_timespec_t` is two 32-bit words, passed in one register.
extern "C" fn semaphore_timedwait(name: u32, time: u64) -> i32 {
    wait(name, Some(Duration::new(time & 0xffff_ffff, (time >> 32) as u32)))
}

crate::host::libsystem::exports! {
    "semaphore_create" => semaphore_create,
    "semaphore_destroy" => semaphore_destroy,
    "semaphore_signal" => semaphore_signal,
    "semaphore_wait" => semaphore_wait,
    "semaphore_timedwait" => semaphore_timedwait,
}
