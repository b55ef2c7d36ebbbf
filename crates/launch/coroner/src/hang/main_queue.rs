//! Watches the main thread on Apple systems without the app's help.
//!
//! Work is queued to libdispatch's main queue, which the main run loop processes. Until that work
//! runs, the main thread is busy. The functions are looked up at run time. Without them, or in a
//! program whose main thread never processes its queue (one without a run loop), the main thread is
//! not watched.

use std::ffi::c_void;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::{Beats, silence};
use crate::backtrace::thread_id;

/// Signature of `dispatch_async_f` (<dispatch/queue.h>).
type DispatchAsync =
    unsafe extern "C" fn(queue: *mut c_void, context: *mut c_void, work: unsafe extern "C" fn(*mut c_void));

/// The main thread's queue.
#[derive(Debug)]
pub(super) struct MainQueue {
    beats: Arc<Beats>,
    dispatch: DispatchAsync,
    /// `_dispatch_main_q`, a static object of libdispatch.
    queue: usize,
}

impl MainQueue {
    pub(super) fn find() -> Option<Self> {
        // SAFETY: NUL-terminated names, outside a signal handler.
        let (dispatch, queue) = unsafe {
            (
                libc::dlsym(libc::RTLD_DEFAULT, c"dispatch_async_f".as_ptr()),
                libc::dlsym(libc::RTLD_DEFAULT, c"_dispatch_main_q".as_ptr()),
            )
        };
        if dispatch.is_null() || queue.is_null() {
            return None;
        }
        // SAFETY: the function of that name has this signature (<dispatch/queue.h>).
        let dispatch = unsafe { std::mem::transmute::<*mut c_void, DispatchAsync>(dispatch) };
        Some(Self { beats: Arc::new(Beats::new(0)), dispatch, queue: queue as usize })
    }

    /// Requests a beat from the main thread, if it has answered the last request.
    ///
    /// Until it answers, it counts as busy.
    pub(super) fn ask(&self) {
        if silence::is_busy(self.beats.shown.load(Ordering::Acquire)) {
            return;
        }
        self.beats.show(true);
        let context = Arc::into_raw(Arc::clone(&self.beats));
        // SAFETY: this is the main queue, and `answer` takes over the context, once. If the queue
        // never runs it, the context leaks.
        unsafe { (self.dispatch)(self.queue as *mut c_void, context.cast_mut().cast(), answer) };
    }

    /// Returns the main thread's beats; `None` before its first answer, because it may never
    /// process its queue.
    pub(super) fn beats(&self) -> Option<Weak<Beats>> {
        (self.beats.thread.load(Ordering::Acquire) != 0).then(|| Arc::downgrade(&self.beats))
    }
}

/// Answers on the main thread.
///
/// # Safety
/// `context` must be from `ask` and must not be used again.
unsafe extern "C" fn answer(context: *mut c_void) {
    // SAFETY: by the contract.
    let beats = unsafe { Arc::from_raw(context.cast_const().cast::<Beats>()) };
    beats.show(false);
    beats.thread.store(thread_id(), Ordering::Release);
}
