use coroner_process::threads::{monotonic_now, process_id, this_thread};

use super::*;

extern crate std;

/// Highest possible process ID, which no process has.
const NOBODY: i32 = 0x3f_ffff;

#[test]
fn the_lock_has_one_owner_and_a_child_has_its_own_lock() {
    let lock = ReportLock::new();
    let (pid, tid) = (process_id(), this_thread());
    let Claim::Mine(owner) = lock.claim(pid, tid, false) else { panic!("free") };
    assert!(matches!(lock.claim(pid, tid, false), Claim::Nested));
    let other = std::thread::scope(|scope| {
        scope.spawn(|| matches!(lock.claim(pid, this_thread(), false), Claim::Taken)).join().unwrap()
    });
    assert!(other);
    let before = lock.releases();
    let soon = || monotonic_now() + 1_000_000;
    assert_eq!(lock.wait(before, soon()), WaitEnd::TimeOver, "nobody releases it");
    lock.release(owner);
    assert_eq!(lock.wait(before, soon()), WaitEnd::Released);
    assert!(matches!(lock.claim(pid, tid, true), Claim::Mine(_)));
    // From the point of view of a child made by vfork.
    #[cfg(not(target_vendor = "apple"))]
    assert!(matches!(lock.claim(NOBODY, tid, false), Claim::TakenByOtherProcess));
    lock.forget_parent();
    assert!(matches!(lock.claim(NOBODY, tid, false), Claim::Mine(_)), "a child after fork is not blocked");
    assert!(matches!(lock.claim(pid, tid, false), Claim::Mine(_)), "that process is gone");
}

#[test]
fn a_lock_whose_owner_has_ended_is_taken_from_it() {
    let lock = ReportLock::new();
    let pid = process_id();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(matches!(lock.claim(pid, this_thread(), false), Claim::Mine(_)))).join().unwrap();
    });
    let before = lock.releases();
    // The kernel may take a moment to end the thread that was joined.
    assert_eq!(lock.wait(before, monotonic_now() + 10_000_000_000), WaitEnd::OwnerGone);
    assert!(matches!(lock.claim(pid, this_thread(), false), Claim::Mine(_)));
}
