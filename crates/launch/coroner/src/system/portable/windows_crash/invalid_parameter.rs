//! Reports invalid parameters of functions in Microsoft's universal C runtime, such as a null
//! stream.
//!
//! Without a handler, the runtime ends the process by `__fastfail`, which can't be detected in the
//! process. The old msvcrt.dll, which most GNU programs use, continues after an invalid parameter,
//! so no handler is set there.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{STATUS_INVALID_CRUNTIME_PARAMETER, report_call, survived};

/// `_invalid_parameter_handler` of stdlib.h.
type Handler = unsafe extern "C" fn(*const u16, *const u16, *const u16, u32, usize);
type SetHandler = unsafe extern "C" fn(Option<Handler>) -> Option<Handler>;

/// Address of the previous handler; 0 for none.
static PREVIOUS: AtomicUsize = AtomicUsize::new(0);

/// Installs the handler if the process contains this runtime.
pub(super) fn take() {
    let Some(set) = set_handler() else { return };
    // SAFETY: the function has that signature, and the handler stays loaded.
    let previous = unsafe { set(Some(on_invalid_parameter)) };
    PREVIOUS.store(previous.map_or(0, |handler| handler as usize), Ordering::Release);
}

/// Returns the function in the program's own copy of the runtime.
#[cfg(all(target_env = "msvc", target_feature = "crt-static"))]
fn set_handler() -> Option<SetHandler> {
    unsafe extern "C" {
        fn _set_invalid_parameter_handler(handler: Option<Handler>) -> Option<Handler>;
    }
    Some(_set_invalid_parameter_handler)
}

/// Returns the function in the shared runtime, if it is loaded.
#[cfg(not(all(target_env = "msvc", target_feature = "crt-static")))]
fn set_handler() -> Option<SetHandler> {
    use windows_sys::Win32::System::LibraryLoader::{GetModuleHandleA, GetProcAddress};
    // SAFETY: both strings end with a NUL. The runtime prevents its own unloading.
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

/// Reports the invalid parameter. Only the runtime's debug version passes details.
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
            // SAFETY: a handler that the runtime returned.
            unsafe {
                std::mem::transmute::<usize, Handler>(previous)(expression, function, file, line, reserved);
            }
            // The previous handler has returned, so the C function returns an error.
            if is_begun {
                survived();
            }
        }
    }
}

/// Ends the process as the runtime does without a handler: `__fastfail(FAST_FAIL_INVALID_ARG)`.
fn fail_fast() -> ! {
    const FAST_FAIL_INVALID_ARG: u32 = 5;
    // SAFETY: it doesn't return.
    unsafe { std::arch::asm!("int 0x29", in("ecx") FAST_FAIL_INVALID_ARG, options(noreturn, nostack)) }
}
