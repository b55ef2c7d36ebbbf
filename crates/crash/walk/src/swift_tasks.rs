//! Handling of the marks of Swift's async frames, which its compiler creates only for Apple's
//! systems.

#[cfg(target_vendor = "apple")]
use coroner_process::{interrupted_thread::Interrupted, memory::Memory};
use coroner_unwind::SwiftAsync;

/// Marks are removed from frame pointers and not followed.
pub const NOT_FOLLOWED: SwiftAsync =
    if cfg!(target_vendor = "apple") { SwiftAsync::Task(0) } else { SwiftAsync::Ignore };

/// Returns the setting for the calling thread: marks are followed if it runs a task.
#[cfg(target_vendor = "apple")]
#[inline]
pub fn for_this_thread() -> SwiftAsync {
    // SAFETY: asks for a thread's datum; libpthread returns those of the keys that it reserves as
    // others, 0 if none was set.
    SwiftAsync::Task(unsafe { libc::pthread_getspecific(SwiftAsync::DARWIN_TASK_KEY as libc::pthread_key_t) } as u64)
}

/// Returns the setting for the calling thread: marks are followed if it runs a task.
#[cfg(not(target_vendor = "apple"))]
#[inline]
pub fn for_this_thread() -> SwiftAsync {
    SwiftAsync::Follow
}

/// Same as [`for_this_thread`], for a thread that was stopped.
#[cfg(target_vendor = "apple")]
pub fn for_stopped_thread<M: Memory>(thread: &Interrupted, memory: &mut M) -> SwiftAsync {
    SwiftAsync::for_darwin_thread(memory, thread.specific())
}
