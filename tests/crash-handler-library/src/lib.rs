//! Embark's crash-handler. Its callback prints that it was called and leaves the crash to other
//! handlers.
#![cfg(target_os = "linux")]

use crash_handler::{CrashContext, CrashEventResult, CrashHandler, make_crash_event};

/// Installs the signal handlers.
#[unsafe(no_mangle)]
extern "C" fn attach_crash_handler() {
    // SAFETY: the callback is async-signal-safe.
    let event = unsafe {
        make_crash_event(|_: &CrashContext| {
            libc::write(1, c"crash-handler ".as_ptr().cast(), 14);
            CrashEventResult::Handled(false)
        })
    };
    std::mem::forget(CrashHandler::attach(event).expect("can't attach crash-handler"));
}
