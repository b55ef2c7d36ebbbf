//! An invalid parameter of a function of Microsoft's universal C runtime, such as a null stream: where no handler is set, the runtime ends the process by
//! `__fastfail`, which nothing in it sees.
//!
//! The old msvcrt.dll, which GNU's programs mostly have, goes on then, and has no handler set.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{STATUS_INVALID_CRUNTIME_PARAMETER, report_call, survived};

/// `_invalid_parameter_handler` of stdlib.h.
type Handler = unsafe extern "C" fn(*const u16, *const u16, *const u16, u32, usize);
type SetHandler = unsafe extern "C" fn(Option<Handler>) -> Option<Handler>;

/// Whose handler was there before.
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

/// Takes the handler, if the process has that runtime.
pub(super) fn take() {
    let Some(set) = set_handler() else { return };
    // SAFETY: the function is of that signature, and the handler stays.
    let previous = unsafe { set(Some(on_invalid_parameter)) };
    PREVIOUS.store(previous.map_or(0, |handler| handler as usize), Ordering::Release);
}

/// The program's own copy of the runtime.
#[cfg(all(target_env = "msvc", target_feature = "crt-static"))]
fn set_handler() -> Option<SetHandler> {
    unsafe extern "C" {
        fn _set_invalid_parameter_handler(handler: Option<Handler>) -> Option<Handler>;
    }
    Some(_set_invalid_parameter_handler)
}

/// The shared one, if it is loaded.
#[cfg(not(all(target_env = "msvc", target_feature = "crt-static")))]
fn set_handler() -> Option<SetHandler> {
    use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
    // SAFETY: both texts end with a NUL. The runtime stays loaded, since it does not let itself be unloaded.
    let function = unsafe {
        let runtime = GetModuleHandleA(c"ucrtbase.dll".as_ptr().cast());
        if runtime.is_null() {
            return None;
        }
        GetProcAddress(runtime, c"_set_invalid_parameter_handler".as_ptr().cast())
    };
    // SAFETY: the runtime's function of that name has that signature (stdlib.h).
    function
        .map(|function| unsafe { std::mem::transmute::<unsafe extern "system" fn() -> isize, SetHandler>(function) })
}

/// What was invalid is said by the runtime's debug version alone.
unsafe extern "C" fn on_invalid_parameter(
    expression: *const u16,
    function: *const u16,
    file: *const u16,
    line: u32,
    reserved: usize,
) {
    let is_begun = report_call(STATUS_INVALID_CRUNTIME_PARAMETER, STATUS_INVALID_CRUNTIME_PARAMETER);
    match PREVIOUS.load(Ordering::Acquire) {
        0 => fail_fast(),
        previous => {
            // SAFETY: a handler, as the runtime returned it.
            unsafe {
                std::mem::transmute::<usize, Handler>(previous)(expression, function, file, line, reserved);
            }
            // It came back: the function that was called returns an error.
            if is_begun {
                survived();
            }
        }
    }
}

/// Ends the process as the runtime does where no handler is set: `__fastfail(FAST_FAIL_INVALID_ARG)`.
fn fail_fast() -> ! {
    const FAST_FAIL_INVALID_ARG: u32 = 5;
    // SAFETY: it does not come back.
    unsafe { std::arch::asm!("int 0x29", in("ecx") FAST_FAIL_INVALID_ARG, options(noreturn, nostack)) }
}
