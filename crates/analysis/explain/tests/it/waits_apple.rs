//! Waits on Apple's systems, from the registers and memory in each call to the explanation.
//!
//! Also covers memory that must not be taken for an owner. Layouts: libpthread,
//! src/types_internal.h; libplatform, src/os/lock.c; xnu, bsd/sys/ulock.h.

use coroner_explain::{LockWait, NoCode, OwnerIs, WaitKind, explain};
use coroner_process::futex_wait::darwin::{DarwinCall, wait_of};
use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::{Aarch64Registers, X86_64Registers};
use coroner_report::Report;
use coroner_report::model::{Crash, Frame, FutexWait, Thread};
use coroner_report::wire::Os;

const LOCK: u64 = 0x7000_0000_1000;
const CODE: u64 = 0x1_8000_0000;
const STACK: u64 = 0x7000_0000_f000;

/// The report's threads: id and port.
const THREADS: [(u64, u32); 3] = [(10, 0x1003), (20, 0x2007), (30, 0x300f)];

/// Memory, by the start addresses of its parts.
struct Parts(Vec<(u64, Vec<u8>)>);

impl Memory for Parts {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let found = self.0.iter().find_map(|(start, bytes)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            bytes.get(offset..offset + into.len())
        });
        into.copy_from_slice(found.ok_or(Unreadable { address })?);
        Ok(())
    }
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn parts(start: u64, words: &[u32], code: &[u8]) -> Parts {
    // Two words on the stack: a condition variable's timeout on x86_64.
    Parts(vec![(start, bytes(words)), (CODE, code.to_vec()), (STACK, bytes(&[9, 9, 3, 0, 0, 0]))])
}

fn x86_64(number: u64, arguments: [u64; 6]) -> X86_64Registers {
    let mut registers = X86_64Registers { gpr: [0; 16], pc: CODE + 2, flags: 0 };
    registers.gpr[0] = 2 << 24 | number;
    registers.gpr[7] = STACK;
    for (register, value) in [5, 4, 1, 10, 8, 9].into_iter().zip(arguments) {
        registers.gpr[register] = value;
    }
    registers
}

fn aarch64(number: u64, arguments: [u64; 6]) -> Aarch64Registers {
    let mut registers = Aarch64Registers { x: [0; 31], sp: STACK, pc: CODE + 4, pstate: 0 };
    registers.x[..6].copy_from_slice(&arguments);
    registers.x[16] = number;
    // The seventh argument, a timeout.
    registers.x[6] = 3;
    registers
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const SVC: [u8; 4] = [0x01, 0x10, 0x00, 0xd4];

/// Returns the explained wait of thread 10, which is in that call.
fn explain_wait(call: Option<(i64, coroner_process::futex_wait::FutexWait)>) -> Option<LockWait> {
    let (number, wait) = call?;
    let thread = |(tid, port)| Thread { tid, port: Some(port), ..Thread::default() };
    let mut threads = THREADS.map(thread);
    threads[0].syscall = Some(number);
    threads[0].futex = Some(FutexWait::from(&wait));
    let crash = Crash { tid: 30, ..Crash::default() };
    let mut report = Report { complete: true, crash: Some(crash), threads: threads.to_vec(), ..Report::default() };
    report.header.os = Os::MACOS;
    let [wait] = <[LockWait; 1]>::try_from(explain(&report, &NoCode).waits).unwrap();
    Some(wait)
}

/// Checks that both architectures give the same wait, with these words in memory from `start` on.
fn wait_at(start: u64, number: u64, arguments: [u64; 6], words: &[u32]) -> LockWait {
    let intel = explain_wait(wait_of(&x86_64(number, arguments), &mut parts(start, words, &SYSCALL))).expect("a wait");
    let arm = explain_wait(wait_of(&aarch64(number, arguments), &mut parts(start, words, &SVC))).expect("a wait");
    assert_eq!(intel, arm);
    intel
}

fn outcome(wait: &LockWait) -> (WaitKind, Option<u64>, u64) {
    assert_eq!(wait.owner_is, if wait.owner.is_some() { OwnerIs::InReport } else { OwnerIs::Unknown });
    (wait.kind, wait.owner, wait.address.0)
}

#[test]
fn unfair_lock_owners_are_found() {
    let wait =
        |expected: u32, word: u32| outcome(&wait_at(LOCK, 515, [0x0100_0002, LOCK, expected.into(), 0, 0, 0], &[word]));
    // The owner's port, with the lowest bit cleared.
    assert_eq!(wait(0x2006, 0x2006), (WaitKind::UnfairLock, Some(20), LOCK));
    // The lock was released; another thread has taken it; no thread has that port; the thread
    // itself; the anonymous owner.
    for (expected, word) in
        [(0x2006, 0), (0x2006, 0x300f), (0x4006, 0x4006), (0x1002, 0x1002), (0xffff_fffe, 0xffff_fffe), (2, 2)]
    {
        assert_eq!(wait(expected, word), (WaitKind::UnfairLock, None, LOCK), "{expected:#x} {word:#x}");
    }
    // The other call, and option flags.
    let later = wait_at(LOCK, 544, [0x0105_0002, LOCK, 0x2006, 7, 0, 0], &[0x2006]);
    assert_eq!((outcome(&later), later.timed), ((WaitKind::UnfairLock, Some(20), LOCK), true));
    assert_eq!(later.library.as_deref(), Some("libplatform"));
    // The first call's timeout is only half a register.
    let first = wait_at(LOCK, 515, [0x0100_0002, LOCK, 0x2006, 7 << 32, 0, 0], &[0x2006]);
    assert!(!first.timed);
}

#[test]
fn other_ulocks_have_no_owner() {
    // pthread_join: the unmodified port. A `dispatch_once` gate: another bit.
    let wait =
        |operation: u64, word: u32| outcome(&wait_at(LOCK, 515, [operation, LOCK, word.into(), 0, 0, 0], &[word]));
    assert_eq!(wait(0x0102_0002, 0x2007), (WaitKind::ThreadEnd, Some(20), LOCK));
    assert_eq!(wait(0x0100_0002, 0x2005), (WaitKind::Ulock, Some(20), LOCK));
    // Values of unknown meaning, some of which look like a port; a process-shared one.
    for operation in [1, 3, 4, 5, 6] {
        assert_eq!(wait(operation, 0x2006), (WaitKind::Ulock, None, LOCK), "{operation}");
    }
    // A condition variable for ulock mutexes waits for its sequence, at one of two offsets.
    for before in [24, 28] {
        let mut words = [0; 16];
        words[0] = 0x434f_4e46;
        let at = LOCK + before;
        let wait = wait_at(LOCK, 544, [0x0102_0001, at, 0, 0, 0, 0], &words);
        assert_eq!(outcome(&wait), (WaitKind::Condition, None, LOCK));
    }
}

/// Creates a mutex: sig, 0, lock, mtxopts, priorities, padding, then the union's words.
fn mutex_words(signature: u32, options: u32, union: &[u32]) -> Vec<u32> {
    let mut words = vec![signature, 0, 0, options, 0, signature];
    words.extend(union);
    words.resize(20, 0);
    words
}

const READ_WRITE: u32 = 0x5257_4c4b;
const MUTEX: u32 = 0x4d55_5458;
const FAST: u32 = 0x4d55_545a;
/// Options of a private first-fit mutex.
const FIRST_FIT: u32 = 0x20a0;
const OF_ULOCK: u32 = FIRST_FIT | 1 << 14;

#[test]
fn psynch_mutex_owners_are_found() {
    let wait = |called: u32, words: &[u32]| {
        // The owner in the call's arguments, from the start of the wait, is ignored.
        outcome(&wait_at(LOCK, 301, [LOCK, 0x102, 0, 30, called.into(), 0], words))
    };
    let held = |owner: &[u32; 2]| mutex_words(FAST, FIRST_FIT, &[owner[0], owner[1], 0x102, 0]);
    assert_eq!(wait(FIRST_FIT, &held(&[20, 0])), (WaitKind::Mutex, Some(20), LOCK));
    // A normal mutex that its owner locks again.
    assert_eq!(wait(FIRST_FIT, &held(&[10, 0])).1, Some(10));
    // A recursive mutex, with variable bits: the count, and the one to notify waiters.
    let recursive = mutex_words(MUTEX, FIRST_FIT | 8 | 0x0001_1000, &[20, 0, 0x103, 0]);
    assert_eq!(wait(FIRST_FIT | 8, &recursive).1, Some(20));
    // No owner yet; being handed over; an owner that has exited; an id that is too large.
    for owner in [[0, 0], [u32::MAX; 2], [99, 0], [20, 1]] {
        assert_eq!(wait(FIRST_FIT, &held(&owner)), (WaitKind::Mutex, None, LOCK), "{owner:?}");
    }
    // A free mutex; not a mutex; destroyed; a long signature; other options; a ulock mutex.
    let mut long = held(&[20, 0]);
    long[1] = 1;
    for words in [
        mutex_words(FAST, FIRST_FIT, &[20, 0, 0x100, 0]),
        mutex_words(0x434f_4e45, FIRST_FIT, &[20, 0, 0x102, 0]),
        mutex_words(0, FIRST_FIT, &[20, 0, 0x102, 0]),
        mutex_words(FAST, FIRST_FIT | 4, &[20, 0, 0x102, 0]),
        mutex_words(FAST, OF_ULOCK, &[20, 0, 0x102, 0]),
        long,
    ] {
        assert_eq!(wait(FIRST_FIT, &words).1, None, "{words:x?}");
    }
    // In an unaligned mutex both fields are 4 bytes later.
    let at = LOCK + 4;
    let words = mutex_words(FAST, FIRST_FIT, &[u32::MAX, 20, 0, 0x102, 0]);
    assert_eq!(outcome(&wait_at(at, 301, [at, 0x102, 0, 0, FIRST_FIT.into(), 0], &words)).1, Some(20));
}

#[test]
fn ulock_mutex_owners_are_found() {
    let wait = |signature, options, word: u32| {
        let words = mutex_words(signature, options, &[word]);
        outcome(&wait_at(LOCK, 515, [0x0100_0002, LOCK + 24, 0x2005, 0, 0, 0], &words))
    };
    assert_eq!(wait(FAST, OF_ULOCK, 0x2005), (WaitKind::Mutex, Some(20), LOCK));
    // The word has changed; the memory before it is not such a mutex.
    assert_eq!(wait(FAST, OF_ULOCK, 0x3004), (WaitKind::Mutex, None, LOCK));
    assert_eq!(wait(FAST, FIRST_FIT, 0x2005), (WaitKind::Ulock, Some(20), LOCK + 24));
    assert_eq!(wait(0, OF_ULOCK, 0x2005), (WaitKind::Ulock, Some(20), LOCK + 24));
}

#[test]
fn rwlock_writers_are_found_and_condition_variables_have_none() {
    let lock = |number, signature: u32, owner: u32| {
        let mut words = vec![signature, 0, 0, 0, 0, 0, owner, 0];
        words.resize(20, 0);
        outcome(&wait_at(LOCK, number, [LOCK, 0x100, 0, 0, 0x20, 0], &words))
    };
    assert_eq!(lock(306, READ_WRITE, 20), (WaitKind::ReadLock, Some(20), LOCK));
    assert_eq!(lock(307, READ_WRITE, 20), (WaitKind::WriteLock, Some(20), LOCK));
    // Held by readers; the thread itself; an unknown thread; not such a lock.
    for (signature, owner) in [(READ_WRITE, 0), (READ_WRITE, 10), (READ_WRITE, 99), (0x2da8_b3b4, 20)] {
        assert_eq!(lock(307, signature, owner).1, None, "{signature:#x} {owner}");
    }
    // A condition variable has no owner, whatever its memory contains.
    let condition = wait_at(LOCK, 305, [LOCK, 0x100, 0, 0, 0, 0], &mutex_words(0x434f_4e45, 0, &[20, 0, 0x102, 0]));
    assert_eq!((outcome(&condition), condition.timed), ((WaitKind::Condition, None, LOCK), true));
}

fn is_call<R: DarwinCall>(registers: &R, code: &[u8]) -> bool {
    registers.number(&mut parts(LOCK, &[0], code)).is_some()
}

#[test]
fn threads_outside_wait_calls_have_no_wait() {
    let arguments = [0x0100_0002, LOCK, 0x2006, 0, 0, 0];
    let word = || parts(LOCK, &[0x2006], &SYSCALL);
    let none = |registers: &X86_64Registers| assert_eq!(wait_of(registers, &mut word()), None);
    let waits = x86_64(515, arguments);
    assert!(wait_of(&waits, &mut word()).is_some());
    // Another call; a Mach trap; a thread that returned from the call; code without a system call;
    // a word that is unreadable or unaligned.
    none(&x86_64(516, arguments));
    none(&X86_64Registers {
        gpr: {
            let mut gpr = waits.gpr;
            gpr[0] = 0x0100_0203;
            gpr
        },
        ..waits
    });
    none(&X86_64Registers {
        gpr: {
            let mut gpr = waits.gpr;
            gpr[0] = 0;
            gpr
        },
        ..waits
    });
    none(&X86_64Registers { pc: CODE + 1, ..waits });
    none(&X86_64Registers { pc: 0, ..waits });
    none(&x86_64(515, [2, 0x10, 0, 0, 0, 0]));
    none(&x86_64(515, [2, LOCK + 1, 0, 0, 0, 0]));
    let arm = |registers: Aarch64Registers| wait_of(&registers, &mut parts(LOCK, &[0x2006], &SVC));
    assert!(arm(aarch64(515, arguments)).is_some());
    // Mach traps are negative; after a return, the result replaces the first argument.
    assert_eq!(arm(aarch64(515_u64.wrapping_neg(), arguments)), None);
    assert_eq!(arm(Aarch64Registers { pc: CODE, ..aarch64(515, arguments) }), None);
    assert_eq!(arm(aarch64(301, [0, 0, 0, 0, 0, 0])), None);
    assert!(is_call(&aarch64(1, arguments), &SVC) && !is_call(&aarch64(1, arguments), &[0x01, 0, 0, 0xd4]));
}

#[test]
fn locks_at_the_end_of_a_mapping_are_read() {
    // Only the word itself is readable.
    let wait = wait_at(LOCK, 515, [0x0100_0002, LOCK, 0x2006, 0, 0, 0], &[0x2006]);
    assert_eq!(wait.owner, Some(20));
    // A mutex with unreadable last bytes is not read.
    let words = &mutex_words(FAST, FIRST_FIT, &[20, 0, 0x102, 0])[..10];
    assert_eq!(wait_of(&aarch64(301, [LOCK, 0, 0, 0, FIRST_FIT.into(), 0]), &mut parts(LOCK, words, &SVC)), None);
}

#[test]
fn one_time_initialization_is_not_a_lock() {
    let call = wait_of(&aarch64(515, [0x0100_0002, LOCK, 0x2006, 0, 0, 0]), &mut parts(LOCK, &[0x2006], &SVC));
    let (number, wait) = call.expect("a wait");
    let frame = |name: &str| Frame { function: Some(name.to_owned()), ..Frame::default() };
    let frames = vec![frame("__ulock_wait"), frame("_os_once_gate_wait")];
    let futex = Some(FutexWait::from(&wait));
    let thread = Thread { tid: 10, syscall: Some(number), futex, frames, ..Thread::default() };
    let owner = Thread { tid: 20, port: Some(0x2007), ..Thread::default() };
    let crash = Some(Crash { tid: 20, ..Crash::default() });
    let mut report = Report { complete: true, crash, threads: vec![thread, owner], ..Report::default() };
    report.header.os = Os::MACOS;
    let waits = explain(&report, &NoCode).waits;
    assert_eq!((waits[0].kind, waits[0].owner), (WaitKind::Once, Some(20)));
}

#[test]
fn other_systems_reports_have_no_apple_waits() {
    let call = wait_of(&aarch64(515, [0x0100_0002, LOCK, 0x2006, 0, 0, 0]), &mut parts(LOCK, &[0x2006], &SVC));
    let (number, wait) = call.expect("a wait");
    let thread = Thread { tid: 10, syscall: Some(number), futex: Some(FutexWait::from(&wait)), ..Thread::default() };
    let owner = Thread { tid: 20, port: Some(0x2007), ..Thread::default() };
    let crash = Some(Crash { tid: 20, ..Crash::default() });
    let mut report = Report { complete: true, crash, threads: vec![thread, owner], ..Report::default() };
    report.header.os = Os::LINUX;
    assert_eq!(explain(&report, &NoCode).waits[0].owner, None);
    report.header.os = Os::IOS;
    assert_eq!(explain(&report, &NoCode).waits[0].owner, Some(20));
}
