//! Waits in synthetic reports: each library's layout, and memory that contains no owner.

use coroner_explain::{LockWait, NoCode, OwnerIs, WaitKind, explain};
use coroner_report::Report;
use coroner_report::model::{Address, Bytes, Crash, Frame, FutexWait, Image, Thread};
use coroner_report::wire::{AddressKind, Os};

const WAIT: u32 = 0x80;
const WAIT_BITSET: u32 = 0x89;
const LOCK_PI: u32 = 0x86;
const ADDRESS: u64 = 0x7000_0000_1000;

/// Creates a futex wait with these 32-bit words, the first `before` bytes before the futex.
fn futex(operation: u32, expected: u32, before: u64, words: &[u32]) -> FutexWait {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    FutexWait {
        address: Address(ADDRESS),
        operation,
        expected,
        timed: false,
        start: Address(ADDRESS - before),
        bytes: Bytes(bytes),
    }
}

fn frame(module: &str, function: &str) -> Frame {
    let address_kind = AddressKind::RETURN;
    Frame { module: Some(module.to_owned()), function: Some(function.to_owned()), address_kind, ..Frame::default() }
}

/// Creates a report in which thread 10 waits in `function`; threads 20 and 30 exist.
fn report(module: &str, function: &str, futex: FutexWait) -> Report {
    let inner = Frame { module: Some(module.to_owned()), ..Frame::default() };
    let frames = vec![inner, frame(module, function), frame("/app/app", "main")];
    let waiting = Thread { tid: 10, crashed: true, futex: Some(futex), frames, ..Thread::default() };
    let other = |tid| Thread { tid, ..Thread::default() };
    let mut report = Report {
        complete: true,
        crash: Some(Crash { tid: 10, ..Crash::default() }),
        threads: vec![waiting, other(20), other(30)],
        images: vec![Image { path: "/app/app".to_owned(), is_main: true, ..Image::default() }],
        ..Report::default()
    };
    report.header.os = if module == "/apex/libc.so" { Os::ANDROID } else { Os::LINUX };
    report
}

fn wait(module: &str, function: &str, futex: FutexWait) -> LockWait {
    let [wait] = <[LockWait; 1]>::try_from(explain(&report(module, function, futex), &NoCode).waits).unwrap();
    wait
}

const GLIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const MUSL: &str = "/lib/ld-musl-x86_64.so.1";
const BIONIC: &str = "/apex/libc.so";

#[test]
fn glibc_mutex_owners_are_found() {
    let mutex = |words: &[u32]| wait(GLIBC, "___pthread_mutex_lock", futex(WAIT, words[0], 0, words));
    let plain = mutex(&[2, 0, 20, 1, 0]);
    assert_eq!((plain.kind, plain.owner, plain.owner_is), (WaitKind::Mutex, Some(20), OwnerIs::InReport));
    assert_eq!((plain.library.as_deref(), plain.address), (Some("glibc"), Address(ADDRESS)));
    // The owner has exited; no owner yet; robust, with the owner in the word; an owner that died.
    assert_eq!(mutex(&[2, 0, 99, 1, 0]).owner_is, OwnerIs::Gone);
    assert_eq!(mutex(&[2, 0, 0, 1, 0]).owner, None);
    assert_eq!(mutex(&[0x8000_0014, 0, 20, 1, 16]).owner, Some(20));
    assert_eq!(mutex(&[0xc000_0014, 0, 20, 1, 16]).owner, None);
    // An invalid kind, no users, a priority ceiling, an invalid tid.
    for words in
        [[2, 0, 20, 1, 0x5000], [2, 0, 20, 0, 0], [2, 0, 20, 1, 64], [2, 0, 0xffff_ffff, 1, 0], [1, 0, 20, 1, 0]]
    {
        assert_eq!(mutex(&words).owner, None, "{words:?}");
    }
    // Only part of the memory was readable.
    assert_eq!(mutex(&[2, 0, 20]).owner, None);
    // The word has changed: the mutex was released, and the thread is about to be woken.
    assert_eq!(wait(GLIBC, "pthread_mutex_lock", futex(WAIT, 2, 0, &[0, 0, 20, 1, 0])).owner, None);
    // In other functions, the same memory is not a mutex.
    for function in ["sem_wait", "pthread_barrier_wait", "my_lock", "pthread_mutex_unlock", "pthread_cond_signal"] {
        assert_eq!(wait(GLIBC, function, futex(WAIT, 2, 0, &[2, 0, 20, 1, 0])).owner, None, "{function}");
    }
    assert_eq!(wait("/app/libother.so", "pthread_mutex_lock", futex(WAIT, 2, 0, &[2, 0, 20, 1, 0])).owner, None);
    // A condition variable's futex is not a mutex.
    let condition = |operation| wait(GLIBC, "pthread_cond_wait", futex(operation, 2, 0, &[2, 0, 20, 1, 0]));
    assert_eq!((condition(WAIT_BITSET).kind, condition(WAIT_BITSET).owner), (WaitKind::Condition, None));
    assert_eq!((condition(WAIT).kind, condition(WAIT).owner), (WaitKind::Mutex, Some(20)));
}

#[test]
fn app_functions_are_not_taken_for_the_c_librarys() {
    for function in ["sem_hold_and_wait", "pthread_mutex_lock", "pthread_join_all"] {
        let mut report = report("/app/app", function, futex(WAIT, 2, 0, &[2, 0, 20, 1, 0]));
        report.images.push(Image { path: GLIBC.to_owned(), ..Image::default() });
        let waits = explain(&report, &NoCode).waits;
        assert!(
            waits.iter().all(|wait| wait.kind == WaitKind::Futex && wait.owner.is_none()),
            "{function}: {waits:#?}"
        );
    }
}

#[test]
fn a_callers_lock_function_is_not_taken_for_the_wait() {
    let with = |inner: Frame| {
        let mut report = report(GLIBC, "pthread_mutex_lock", futex(WAIT, 2, 0, &[2, 0, 20, 1, 0]));
        report.images.push(Image { path: GLIBC.to_owned(), ..Image::default() });
        report.threads[0].frames.insert(1, inner);
        let [wait] = <[LockWait; 1]>::try_from(explain(&report, &NoCode).waits).unwrap();
        (wait.kind, wait.owner)
    };
    assert_eq!(with(frame(GLIBC, "__lll_lock_wait")), (WaitKind::Mutex, Some(20)));
    // An app function that makes the call itself; a signal handler above the kernel's frame.
    assert_eq!(with(frame("/app/app", "my_wait")), (WaitKind::Futex, None));
    let interrupted = Frame { address_kind: AddressKind::INSTRUCTION, ..frame(GLIBC, "__restore_rt") };
    assert_eq!(with(interrupted), (WaitKind::Futex, None));
}

#[test]
fn owners_of_process_shared_locks_may_be_elsewhere() {
    let shared = futex(0, 2, 0, &[2, 0, 99, 1, 128]);
    assert_eq!(wait(GLIBC, "pthread_mutex_lock", shared).owner_is, OwnerIs::Elsewhere);
    // The report doesn't contain all threads.
    let mut report = report(GLIBC, "pthread_mutex_lock", futex(WAIT, 2, 0, &[2, 0, 99, 1, 0]));
    report.complete = false;
    assert_eq!(explain(&report, &NoCode).waits[0].owner_is, OwnerIs::NotInReport);
}

#[test]
fn glibc_rwlock_writers_are_found() {
    // readers writers wrphase writers_futex pad pad cur_writer shared
    let held = [3, 0, 1, 1, 0, 0, 20, 0];
    let reads = wait(GLIBC, "__pthread_rwlock_rdlock", futex(WAIT_BITSET, 1, 8, &held));
    assert_eq!((reads.kind, reads.owner, reads.address), (WaitKind::ReadLock, Some(20), Address(ADDRESS - 8)));
    let writes = wait(GLIBC, "pthread_rwlock_wrlock", futex(WAIT_BITSET, 1, 12, &held));
    assert_eq!((writes.kind, writes.owner, writes.address), (WaitKind::WriteLock, Some(20), Address(ADDRESS - 12)));
    // A writer waiting for readers: the other word, and no writer holds the lock.
    let behind = wait(GLIBC, "pthread_rwlock_wrlock", futex(WAIT_BITSET, 2, 8, &[10, 0, 2, 1, 0, 0, 0, 1]));
    assert_eq!((behind.kind, behind.owner), (WaitKind::WriteLock, None));
}

#[test]
fn musl_mutex_owners_are_found() {
    let mutex = |words: &[u32]| wait(MUSL, "__pthread_mutex_timedlock", futex(WAIT, words[1], 4, words));
    assert_eq!(
        (mutex(&[1, 0x8000_0014, 1]).owner, mutex(&[1, 0x8000_0014, 1]).address),
        (Some(20), Address(ADDRESS - 4))
    );
    assert_eq!(mutex(&[2, 0x8000_0014, 1]).owner, Some(20));
    assert_eq!(mutex(&[4, 0x8000_0014, 1]).owner, Some(20));
    // A normal mutex contains EBUSY there.
    assert_eq!(mutex(&[0, 0x8000_0010, 1]).owner, None);
    assert_eq!(mutex(&[0x100, 0x8000_0014, 1]).owner, None);
    let join = wait(MUSL, "__pthread_timedjoin_np", futex(WAIT, 2, 8, &[20, 0, 2]));
    assert_eq!((join.kind, join.owner), (WaitKind::ThreadEnd, Some(20)));
}

#[test]
fn bionic_mutex_owners_are_found() {
    let mutex = |state, owner| wait(BIONIC, "pthread_mutex_lock", futex(WAIT, state, 0, &[state, owner])).owner;
    assert_eq!((mutex(0x4002, 20), mutex(0x8002, 20)), (Some(20), Some(20)));
    // A normal mutex, one with priority inheritance, one without waiters.
    assert_eq!((mutex(2, 20), mutex(0xc002, 20), mutex(0x4001, 20)), (None, None, None));
}

#[test]
fn priority_inheritance_owners_are_found() {
    let inherits = wait("/app/app", "anything", futex(LOCK_PI, 0, 0, &[0x8000_001e]));
    assert_eq!(
        (inherits.kind, inherits.owner, inherits.library.as_deref()),
        (WaitKind::Mutex, Some(30), Some("kernel"))
    );
}

#[test]
fn rust_locks_have_no_known_owner() {
    for (function, kind, library) in [
        ("std::sys::sync::mutex::futex::Mutex::lock_contended", WaitKind::Mutex, "std"),
        ("<std::sys::sync::mutex::futex::Mutex>::lock_contended", WaitKind::Mutex, "std"),
        ("<parking_lot::raw_mutex::RawMutex>::lock_slow", WaitKind::Mutex, "parking_lot"),
        ("std::sys::sync::rwlock::futex::RwLock::read_contended", WaitKind::ReadLock, "std"),
        ("std::sys::sync::rwlock::futex::RwLock::write_contended", WaitKind::WriteLock, "std"),
        ("std::sys::sync::condvar::futex::Condvar::wait_optional_timeout", WaitKind::Condition, "std"),
        ("std::sys::sync::thread_parking::futex::Parker::park", WaitKind::Park, "std"),
        ("std::sys::sync::once::futex::Once::call", WaitKind::Once, "std"),
        ("parking_lot::raw_mutex::RawMutex::lock_slow", WaitKind::Mutex, "parking_lot"),
        ("parking_lot::raw_rwlock::RawRwLock::lock_exclusive_slow", WaitKind::WriteLock, "parking_lot"),
    ] {
        let wait = wait("/app/app", function, futex(WAIT_BITSET, 2, 0, &[2, 0, 20, 1, 0]));
        assert_eq!((wait.kind, wait.owner, wait.library.as_deref()), (kind, None, Some(library)), "{function}");
        assert_eq!(wait.owner_is, OwnerIs::Unknown);
    }
}

#[test]
fn only_closed_cycles_are_deadlocks() {
    let mut report = report(GLIBC, "pthread_mutex_lock", futex(WAIT, 2, 0, &[2, 0, 20, 1, 0]));
    let waits_for = |tid: u32| futex(WAIT, 2, 0, &[2, 0, tid, 1, 0]);
    let in_lock = report.threads[0].frames.clone();
    report.threads[0].name = Some("ui".to_owned());
    report.threads[1].name = Some("worker".to_owned());
    let mut lock = |place: usize, owner: u32| {
        report.threads[place].futex = Some(waits_for(owner));
        report.threads[place].frames.clone_from(&in_lock);
        explain(&report, &NoCode)
    };
    // 10 → 20 → 30, which is running.
    let explanation = lock(1, 30);
    assert!(explanation.deadlocks.is_empty() && explanation.facts.is_empty());
    assert_eq!(
        explanation.waits_for.as_deref(),
        Some("thread 10 (ui) waits for thread 20 (worker), which waits for thread 30")
    );
    // 10 → 20 → 30 → 20: the crashed thread leads to the cycle but is not in it.
    let explanation = lock(2, 20);
    assert_eq!(explanation.deadlocks, [[20, 30]]);
    assert_eq!(
        explanation.facts,
        ["deadlock: thread 20 (worker) waits for thread 30, which waits for thread 20 (worker)"]
    );
    assert!(
        explanation
            .waits_for
            .unwrap()
            .starts_with("thread 10 (ui) waits for thread 20 (worker), which waits for thread 30, which")
    );
    // 10 → 20 → 30 → 10.
    let explanation = lock(2, 10);
    assert_eq!(explanation.deadlocks, [[10, 20, 30]]);
    assert!(explanation.waits_for.unwrap().starts_with("deadlock: thread 10 (ui) waits for"));
    // Each thread waits for itself; a wait with a timeout.
    lock(0, 10);
    lock(1, 20);
    assert_eq!(lock(2, 30).deadlocks, [[10], [20], [30]]);
    report.threads[2].futex.as_mut().unwrap().timed = true;
    assert_eq!(explain(&report, &NoCode).deadlocks, [[10], [20]]);
}
