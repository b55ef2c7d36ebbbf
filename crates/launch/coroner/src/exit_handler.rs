//! Records a clean exit of the process.

use std::sync::Once;

use coroner_report::run_state::ExitKind;

use crate::installed::INSTALLED;
#[cfg(all(supported, not(target_vendor = "apple")))]
use crate::own_run;
use crate::system::capture::exit;

/// Registers the handler for an exit by `exit`, `quick_exit` or a return from `main`, once per
/// process.
pub(crate) fn register() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        extern "C" fn at_exit() {
            // `try_lock`, because `exit` may be called in a signal handler that interrupted an
            // install.
            if let Ok(installed) = INSTALLED.try_lock()
                && let Some(coroner) = installed.as_ref()
            {
                // Not in a child created by fork, whose end isn't its parent's, and not after a
                // panic in `main`, which also ends in `exit`.
                if exit::ends_clean(crate::hang::end) {
                    coroner.inner.scope.note_exit(ExitKind::CLEAN);
                    coroner.leave_clean();
                }
            }
        }
        // From C11; missing on Apple systems and in some of Windows' C libraries.
        #[cfg(all(unix, not(target_vendor = "apple")))]
        unsafe extern "C" {
            fn at_quick_exit(function: extern "C" fn()) -> libc::c_int;
        }
        // SAFETY: registers a function without arguments that does not unwind. If no more handlers
        // can be registered, clean exits are recorded as unexplained.
        unsafe {
            libc::atexit(at_exit);
            #[cfg(all(unix, not(target_vendor = "apple")))]
            at_quick_exit(at_exit);
        }
        #[cfg(windows)]
        crate::process_end::call_at_end(at_exit);
        #[cfg(all(supported, not(target_vendor = "apple")))]
        coroner_process::immediate_exit::before_immediate_exit(own_run::note_immediate_exit);
    });
}
