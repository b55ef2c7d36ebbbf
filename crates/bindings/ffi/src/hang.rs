//! Signs of life of threads that are watched for hangs.

use std::cell::OnceCell;

use coroner::HangWatch;

use crate::status::guarded;

thread_local! {
    /// This thread's watch, from its first sign of life to its end.
    static WATCH: OnceCell<HangWatch> = const { OnceCell::new() };
}

fn show(sign: impl FnOnce(&HangWatch)) {
    guarded(|| {
        // At a thread's end its variables may be gone already; then it is not watched either.
        let _ = WATCH.try_with(|watch| sign(watch.get_or_init(HangWatch::new)));
        Ok(())
    });
}

/// The calling thread is alive, and at work: if neither this nor coroner_hang_idle comes again within the time of
/// coroner_config_set_hang_threshold, it hangs. The thread is watched from its first call on, which
/// takes a lock; all others cost a store and never wait.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_hang_beat() {
    show(HangWatch::beat);
}

/// The calling thread is alive, and is going to wait for work: it is not expected to show anything until its next
/// coroner_hang_beat.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_hang_idle() {
    show(HangWatch::idle);
}
