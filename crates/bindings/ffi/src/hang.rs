//! Heartbeats of threads that are watched for hangs.

use std::cell::OnceCell;

use coroner::HangWatch;

use crate::status::guarded;

thread_local! {
    /// This thread's watch, created by its first heartbeat and dropped when it ends.
    static WATCH: OnceCell<HangWatch> = const { OnceCell::new() };
}

fn show(sign: impl FnOnce(&HangWatch)) {
    guarded(|| {
        // While a thread exits, its thread-local variables may already be destroyed; then it is not
        // watched either.
        let _ = WATCH.try_with(|watch| sign(watch.get_or_init(HangWatch::new)));
        Ok(())
    });
}

/// Marks the calling thread as alive and working.
///
/// The thread is hung if it calls neither this nor coroner_hang_idle again within the time set with
/// coroner_config_set_hang_threshold. The thread's first call starts watching it and takes a lock;
/// later calls cost one store and never wait.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_hang_beat() {
    show(HangWatch::beat);
}

/// Marks the calling thread as alive and about to wait for work.
///
/// No further call is expected from it until its next coroner_hang_beat.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_hang_idle() {
    show(HangWatch::idle);
}
