//! Stopped threads: suspended by `thread_suspend`, or waiting for the reply to an exception.
//!
//! A suspended thread is in a signal handler; the context that Linux saved is published in its
//! record, where `thread_get_state` and `thread_set_state` find it. Suspension is counted
//! (<mach/thread_act.h>; XNU osfmk/kern/thread_act.c, thread_suspend) and does not end the thread's
//! wait: system calls that the signal interrupted are restarted.

use std::{ptr, sync::atomic::Ordering};

use super::{delivery, faults};
use crate::host::{
    gate::LinuxContext,
    kernel::{futex, lock, thread::Thread},
    mach::states,
};

/// The suspension signal's handler: stops while the thread's count is above zero.
pub(super) fn stand(thread: &mut Thread, context: &mut LinuxContext) {
    if !thread.probe.is_null() {
        // SAFETY: `own_state` waits for this handler with the buffer on its stack.
        let (flavor, bytes) = unsafe { &mut *std::mem::replace(&mut thread.probe, ptr::null_mut()) };
        *bytes = states::get(thread, context, *flavor).unwrap_or_default();
    }
    delivery::follow_mask(thread, context);
    let (exception, codes) = std::mem::take(&mut thread.raised);
    if exception != 0 {
        return faults::take_raised(thread, exception, codes, context);
    }
    publish(thread, context);
    leave_when_running(thread);
}

/// Returns the calling thread's own state of a flavor, as at its import of `thread_get_state`.
pub(crate) fn own_state(thread: &mut Thread, flavor: i32) -> Vec<u8> {
    let mut place = (flavor, Vec::new());
    thread.probe = &raw mut place;
    interrupt(thread);
    place.1
}

/// Publishes the thread as stopped with this context.
pub(crate) fn publish(thread: &Thread, context: &mut LinuxContext) {
    thread.context.store(ptr::from_mut(context), Ordering::SeqCst);
    futex::advance(&thread.changed);
}

/// Waits until the thread is not suspended, then takes its context back.
pub(crate) fn leave_when_running(thread: &Thread) {
    loop {
        let seen = thread.changed.load(Ordering::SeqCst);
        {
            let _lock = lock();
            if thread.suspended.load(Ordering::SeqCst) <= 0 {
                thread.context.store(ptr::null_mut(), Ordering::SeqCst);
                break;
            }
        }
        futex::wait(&thread.changed, seen, None);
    }
    futex::advance(&thread.changed);
}

/// Waits until another thread, whose count is above zero, is stopped; returns whether it is.
///
/// Returns false if the thread ended or was resumed.
pub(crate) fn wait_until_standing(thread: &Thread) -> bool {
    loop {
        let seen = thread.changed.load(Ordering::SeqCst);
        if !thread.context.load(Ordering::SeqCst).is_null() {
            return true;
        }
        if thread.ended.load(Ordering::SeqCst) != 0 || thread.suspended.load(Ordering::SeqCst) <= 0 {
            return false;
        }
        futex::wait(&thread.changed, seen, None);
    }
}

/// Sends a thread the signal to stop.
pub(crate) fn interrupt(thread: &Thread) {
    let tid = thread.tid.load(Ordering::SeqCst);
    // SAFETY: a signal to one of the program's threads; an error for one that has ended is ignored.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, super::STAND);
        *libc::__errno_location() = errno;
    }
}
