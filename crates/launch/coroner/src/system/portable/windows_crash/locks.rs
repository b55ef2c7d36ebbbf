//! The process's locks that `MiniDumpWriteDump` takes: if the crashed thread holds one (a fault in
//! `HeapFree`, or while a library is loaded), the minidump would wait for it forever.
//!
//! The locks have no documented owner. A thread of its own takes them, and answers if they are
//! free.

use std::io;
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::{HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Memory::{GetProcessHeap, HeapLock, HeapUnlock};
use windows_sys::Win32::System::Threading::{INFINITE, ResetEvent, SetEvent, WaitForSingleObject};

/// Maximum time in milliseconds to wait for the locks, which another thread may hold for a moment.
const WAIT_MS: u32 = 500;
/// Stack size in bytes of the thread.
const STACK: usize = 64 << 10;

#[link(name = "ntdll")]
unsafe extern "system" {
    safe fn RtlDllShutdownInProgress() -> u8;
    fn LdrLockLoaderLock(flags: u32, result: *mut u32, cookie: *mut usize) -> i32;
    fn LdrUnlockLoaderLock(flags: u32, cookie: usize) -> i32;
}

/// Events that ask the thread, and that it sets as its answer.
static EVENTS: OnceLock<(usize, usize)> = OnceLock::new();

/// Whether the process is exiting, so that its other threads have been ended.
pub(super) fn is_process_exiting() -> bool {
    RtlDllShutdownInProgress() != 0
}

/// Starts the thread that takes the locks.
pub(super) fn install() -> io::Result<()> {
    let (ask, answer) = (super::event()?, super::event()?);
    std::thread::Builder::new().name("coroner-locks".to_owned()).stack_size(STACK).spawn(move || {
        loop {
            // SAFETY: the events are never closed; this thread releases each lock that it took.
            unsafe {
                WaitForSingleObject(ask as HANDLE, INFINITE);
                let heap = GetProcessHeap();
                HeapLock(heap);
                HeapUnlock(heap);
                let mut cookie = 0;
                LdrLockLoaderLock(0, std::ptr::null_mut(), &raw mut cookie);
                LdrUnlockLoaderLock(0, cookie);
                SetEvent(answer as HANDLE);
            }
        }
    })?;
    let _ = EVENTS.set((ask, answer));
    Ok(())
}

/// Whether no thread holds the locks for long.
pub(super) fn are_free() -> bool {
    let Some((ask, answer)) = EVENTS.get().copied().filter(|_| !is_process_exiting()) else { return false };
    // SAFETY: the events are never closed.
    unsafe {
        // Of an earlier, late answer.
        ResetEvent(answer as HANDLE);
        SetEvent(ask as HANDLE);
        WaitForSingleObject(answer as HANDLE, WAIT_MS) == WAIT_OBJECT_0
    }
}
