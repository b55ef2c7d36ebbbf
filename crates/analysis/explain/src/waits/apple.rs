//! Locks on Apple's systems, identified by the waiting system call, its arguments and the memory:
//! `__ulock_wait` and libpthread's `__psynch_*`. Function names are only needed to recognize
//! one-time initialization. Only threads in the report are named as owners.

use coroner_process::futex_wait::darwin::{
    CONDITION_WAIT, MUTEX_WAIT, READ_LOCK, ULOCK_WAIT, ULOCK_WAIT_2, WRITE_LOCK,
};
use coroner_report::Report;
use coroner_report::model::{Address, FutexWait, Thread, WaitKind};

use super::lock::Found;

const PTHREAD: Option<&str> = Some("libpthread");

/// `UL_OPCODE_MASK` and `UL_UNFAIR_LOCK` in xnu's bsd/sys/ulock.h.
const OPCODE: u32 = 0xff;
const UNFAIR_LOCK: u32 = 2;
/// The bits of a lock word that are not part of its owner's port.
///
/// All of them are set in a port's name (`ulock_owner_value_to_port_name`, in the same file).
const FLAGS: u32 = 3;
/// The flags of a word that a thread waits for.
///
/// For an `os_unfair_lock`, `OS_ULOCK_NOWAITERS_BIT` is cleared (libplatform, src/os/lock.c,
/// `_os_unfair_lock_lock_slow`). For `pthread_join`, the word is the unmodified port of the thread
/// that it waits for (libpthread, src/pthread_cancelable.c, `_pthread_joiner_wait`).
const UNFAIR_LOCK_FLAGS: u32 = 2;
const JOIN_FLAGS: u32 = 3;

// libpthread, src/types_internal.h: `struct pthread_mutex_s` is sig, lock, mtxopts, prioceiling and
// priority, _pad, then the union of psynch (m_tid, m_seq, aligned to 8 each) and ulock. At the same
// place `struct pthread_rwlock_s` has rw_tid, and `struct pthread_cond_s` c_seq.
const UNION: u64 = 24;
const SEQUENCE: u64 = 32;
const OPTIONS: i64 = 12;
/// `_PTHREAD_MUTEX_SIG_MASK`, `_PTHREAD_MUTEX_SIG_CMP`, `_PTHREAD_COND_SIG_ulock`,
/// `_PTHREAD_RWLOCK_SIG`.
const MUTEX_MASK: u32 = 0xffff_fffd;
const MUTEX: u32 = 0x4d55_5458;
const ULOCK_CONDITION: u32 = 0x434f_4e46;
const READ_WRITE: u32 = 0x5257_4c4b;
/// Bits of mtxopts: `_PTHREAD_MTX_OPT_FIXED_MASK`, which do not change; and the bit for a mutex
/// that uses a ulock.
const FIXED: u32 = 0x27ff;
const IS_ULOCK: u32 = 1 << 14;
/// `PTH_RWL_EBIT` of a sequence: a thread holds the lock exclusively (kern/synch_internal.h).
const EXCLUSIVE: u32 = 2;
/// Number of innermost functions that are searched.
const MAX_FUNCTIONS: usize = 4;

/// Whether a report comes from one of Apple's systems.
pub(super) fn is_apple_report(report: &Report) -> bool {
    report.header.os.is_apple()
}

/// Returns what a thread waits for.
pub(super) fn identify(report: &Report, thread: &Thread, wait: &FutexWait) -> Found {
    let found = |kind, library, before: u64, owner| Found {
        kind,
        library,
        address: Address(wait.address.0.wrapping_sub(before)),
        owner,
    };
    match thread.syscall {
        Some(MUTEX_WAIT) => {
            found(WaitKind::Mutex, PTHREAD, 0, mutex_owner(wait).and_then(|tid| thread_by_tid(report, tid)))
        }
        Some(CONDITION_WAIT) => found(WaitKind::Condition, PTHREAD, 0, None),
        Some(number @ (READ_LOCK | WRITE_LOCK)) => {
            let kind = if number == READ_LOCK { WaitKind::ReadLock } else { WaitKind::WriteLock };
            // Readers are not recorded; for the exclusive owner itself, locking returns an error
            // instead of waiting.
            let owner = rwlock_owner(wait).filter(|tid| *tid != thread.tid);
            found(kind, PTHREAD, 0, owner.and_then(|tid| thread_by_tid(report, tid)))
        }
        Some(ULOCK_WAIT | ULOCK_WAIT_2) if wait.operation & OPCODE == UNFAIR_LOCK => {
            let (kind, library, before) = match wait.expected & FLAGS {
                _ if is_mutex(wait) => (WaitKind::Mutex, PTHREAD, UNION),
                _ if is_in_once(thread) => (WaitKind::Once, None, 0),
                UNFAIR_LOCK_FLAGS => (WaitKind::UnfairLock, Some("libplatform"), 0),
                JOIN_FLAGS => (WaitKind::ThreadEnd, PTHREAD, 0),
                _ => (WaitKind::Ulock, None, 0),
            };
            // The kernel relies on the word: it raises the priority of the thread with that port
            // (bsd/kern/sys_ulock.c). It doesn't let a thread wait for itself.
            let is_as_found = wait.word() == Some(wait.expected);
            let owner = is_as_found.then(|| thread_by_port(report, wait.expected | FLAGS)).flatten();
            found(kind, library, before, owner.filter(|tid| *tid != thread.tid))
        }
        // A condition variable for ulock mutexes waits for its sequence, at either offset.
        Some(ULOCK_WAIT | ULOCK_WAIT_2) => {
            let is_condition = |before: &u64| wait.at(-before.cast_signed()) == Some(ULOCK_CONDITION);
            match [UNION, UNION + 4].into_iter().find(is_condition) {
                Some(before) => found(WaitKind::Condition, PTHREAD, before, None),
                None => found(WaitKind::Ulock, None, 0, None),
            }
        }
        _ => found(WaitKind::Futex, None, 0, None),
    }
}

/// Whether the thread waits for one-time initialization, whose word looks like a lock's:
/// `pthread_once` (libplatform, src/os/lock.c), `dispatch_once` (libdispatch, src/shims/lock.c).
fn is_in_once(thread: &Thread) -> bool {
    let functions = thread.frames.iter().take(MAX_FUNCTIONS).filter_map(|frame| frame.function.as_deref());
    functions.into_iter().any(|name| name.contains("os_once_gate_wait") || name.contains("dispatch_once_wait"))
}

/// Whether a ulock's word belongs to a mutex.
fn is_mutex(wait: &FutexWait) -> bool {
    let before = |offset: i64| wait.at(offset - UNION.cast_signed());
    has_signature(before(0), before(4), MUTEX_MASK, MUTEX)
        && before(OPTIONS).is_some_and(|options| options & IS_ULOCK != 0)
}

/// Compares a signature, which is a long.
fn has_signature(low: Option<u32>, high: Option<u32>, mask: u32, signature: u32) -> bool {
    low.is_some_and(|low| low & mask == signature) && high == Some(0)
}

/// Returns the thread that holds a mutex. The owner is set after locking and reset before
/// unlocking; while the mutex is handed over it is all ones. The owner in the call's arguments
/// dates from the start of the wait.
fn mutex_owner(wait: &FutexWait) -> Option<u64> {
    let options = wait.at(OPTIONS)?;
    let is_as_called = options & FIXED == wait.operation & FIXED && options & IS_ULOCK == 0;
    let is_held = wait.at(aligned(wait, SEQUENCE))? & EXCLUSIVE != 0;
    let is_mutex = has_signature(wait.at(0), wait.at(4), MUTEX_MASK, MUTEX);
    (is_mutex && is_as_called && is_held).then(|| tid(wait)).flatten()
}

/// Returns the thread that holds a read-write lock exclusively.
fn rwlock_owner(wait: &FutexWait) -> Option<u64> {
    has_signature(wait.at(0), wait.at(4), u32::MAX, READ_WRITE).then(|| tid(wait)).flatten()
}

/// Returns the thread id in a mutex or a read-write lock.
fn tid(wait: &FutexWait) -> Option<u64> {
    let at = aligned(wait, UNION);
    Some(u64::from(wait.at(at)?) | u64::from(wait.at(at + 4)?) << 32)
}

/// Returns an offset in an object, rounded up so that the address is a multiple of 8.
///
/// The object need not be aligned.
fn aligned(wait: &FutexWait, offset: u64) -> i64 {
    let address = wait.address.0;
    (address.wrapping_add(offset).wrapping_add(7) & !7).wrapping_sub(address).cast_signed()
}

/// Returns the thread with this id, if it is in the report.
///
/// Ids are unique in the whole system and not reused.
fn thread_by_tid(report: &Report, tid: u64) -> Option<u64> {
    report.threads.iter().find(|thread| thread.tid == tid).map(|thread| thread.tid)
}

fn thread_by_port(report: &Report, port: u32) -> Option<u64> {
    report.threads.iter().find(|thread| thread.port == Some(port)).map(|thread| thread.tid)
}
