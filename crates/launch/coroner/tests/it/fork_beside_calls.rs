//! A child of `fork` whose parent's other threads were in calls of Coroner's at that moment: it
//! makes the same calls, and must not wait for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coroner_test_support::isolated;

const FORKS: u32 = 400;

fn calls() {
    coroner::set_flag("new-cart", true).unwrap();
    coroner::configure_scope(|scope| scope.set_tag("step", "pay")).unwrap().unwrap();
    coroner::backtrace::set_in_app(["/opt/shop"]);
    assert!(coroner::installed().is_some());
}

/// Whether the app's own handlers of forks call, too.
static HANDLERS_CALL: AtomicBool = AtomicBool::new(false);

extern "C" fn around_a_fork() {
    if HANDLERS_CALL.load(Ordering::Relaxed) {
        calls();
    }
}

/// Whether a child that makes the calls ends.
fn child_ends() -> bool {
    // SAFETY: the child calls what a child of a process with threads may (glibc's allocator can be
    // used there), and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        calls();
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    assert!(child > 0);
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: writes the status of this process's own child.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > Duration::from_mins(1) {
            // SAFETY: our own child.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return false;
        }
        std::thread::yield_now();
    }
    assert_eq!(status, 0);
    true
}

#[test]
fn a_forked_child_can_make_calls_that_other_threads_were_in() {
    isolated(concat!(module_path!(), "::a_forked_child_can_make_calls_that_other_threads_were_in"), || {
        // Before Coroner's, so that theirs run within those of these.
        // SAFETY: functions without requirements, which stay.
        unsafe { libc::pthread_atfork(Some(around_a_fork), Some(around_a_fork), Some(around_a_fork)) };
        let folder = tempfile::tempdir().unwrap();
        let config = coroner::Config::new("fork-test").store_dir(folder.path());
        coroner::install(config.delivery(coroner::Delivery::new().at_install(false))).unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !ends.load(Ordering::Relaxed) {
                        calls();
                    }
                });
            }
            // Another thread forks, too.
            let beside = scope.spawn(|| (0..FORKS / 4).find(|_| !child_ends()));
            let hung = (0..FORKS).find(|_| !child_ends()).or(beside.join().unwrap());
            ends.store(true, Ordering::Relaxed);
            assert_eq!(hung, None, "a child waits for ever");
        });

        HANDLERS_CALL.store(true, Ordering::Relaxed);
        assert!((0..10).all(|_| child_ends()));
        assert!(!coroner::after_fork().unwrap());
    });
}
