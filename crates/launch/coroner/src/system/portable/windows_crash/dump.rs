//! Writes the minidump with the system's `MiniDumpWriteDump`.

use std::ffi::c_void;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::mem::ManuallyDrop;
use std::os::windows::io::FromRawHandle as _;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};
use windows_sys::Win32::Storage::FileSystem::{FILE_BEGIN, SetEndOfFile, SetFilePointerEx};
use windows_sys::Win32::System::Diagnostics::Debug::{
    EXCEPTION_POINTERS, IncludeModuleCallback, IncludeThreadCallback, MINIDUMP_CALLBACK_INFORMATION,
    MINIDUMP_CALLBACK_INPUT, MINIDUMP_CALLBACK_OUTPUT, MINIDUMP_EXCEPTION_INFORMATION, MiniDumpNormal,
    MiniDumpWriteDump, ModuleCallback, ThreadCallback, ThreadExCallback,
};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, GetCurrentProcessId, OpenThread, ResumeThread, THREAD_SUSPEND_RESUME,
};

use crate::store::layout::MINIDUMP_END;

/// Writes a minidump of all threads with their stacks, and of the images.
///
/// All threads are stopped meanwhile; the crashed one waits, at most until the deadline. A complete
/// minidump ends with [`MINIDUMP_END`], because the process may end earlier.
pub(super) fn write(file: HANDLE, tid: u64, pointers: *mut EXCEPTION_POINTERS) {
    // SAFETY: the argument is a thread's number; a null handle is an error below.
    let thread = unsafe { OpenThread(THREAD_SUSPEND_RESUME, 0, tid as u32) };
    let exception =
        MINIDUMP_EXCEPTION_INFORMATION { ThreadId: tid as u32, ExceptionPointers: pointers, ClientPointers: 0 };
    let callback = MINIDUMP_CALLBACK_INFORMATION { CallbackRoutine: Some(on_progress), CallbackParam: thread };
    // SAFETY: all arguments live until the call returns; the exception does because its thread
    // waits.
    unsafe {
        let is_written = MiniDumpWriteDump(
            GetCurrentProcess(),
            GetCurrentProcessId(),
            file,
            MiniDumpNormal,
            &raw const exception,
            std::ptr::null(),
            &raw const callback,
        );
        if is_written != 0 {
            // The file handle stays open.
            let mut file = ManuallyDrop::new(File::from_raw_handle(file));
            let _ = file.seek(SeekFrom::End(0)).and_then(|_| file.write_all(&MINIDUMP_END));
        }
        CloseHandle(thread);
    }
}

/// Callback of `MiniDumpWriteDump`, called once the threads are stopped.
///
/// For kinds that it doesn't handle, the dump is written as without a callback.
unsafe extern "system" fn on_progress(
    thread: *mut c_void,
    input: *const MINIDUMP_CALLBACK_INPUT,
    _output: *mut MINIDUMP_CALLBACK_OUTPUT,
) -> i32 {
    // SAFETY: a thread's handle, or null; a running thread just continues.
    unsafe { ResumeThread(thread) };
    // SAFETY: the system provides the input.
    let kind = unsafe { (*input).CallbackType }.cast_signed();
    let is_known = [ModuleCallback, ThreadCallback, ThreadExCallback, IncludeModuleCallback, IncludeThreadCallback]
        .contains(&kind);
    i32::from(is_known)
}

/// Resumes a thread that was stopped for a minidump.
pub(super) fn resume(tid: u64) {
    // SAFETY: the argument is a thread's number; a null handle is an error below.
    unsafe {
        let thread = OpenThread(THREAD_SUSPEND_RESUME, 0, tid as u32);
        // The thread may have been suspended more than once.
        while ResumeThread(thread).wrapping_add(1) > 2 {}
        CloseHandle(thread);
    }
}

/// Truncates the file.
pub(super) fn empty(file: HANDLE) {
    // SAFETY: the file stays open forever.
    unsafe {
        SetFilePointerEx(file, 0, std::ptr::null_mut(), FILE_BEGIN);
        SetEndOfFile(file);
    }
}
