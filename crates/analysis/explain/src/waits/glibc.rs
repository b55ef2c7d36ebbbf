//! Locks of glibc on 64-bit systems: `struct __pthread_mutex_s` (sysdeps/nptl/bits/struct_mutex.h)
//! and `struct __pthread_rwlock_arch_t` (struct_rwlock.h). Both layouts are unchanged since 2.25,
//! the mutex's for much longer.

use coroner_report::model::{FutexWait, WaitKind};

use super::futex::{Lock, OWNER_DIED, TID, WAIT, command};

/// Bits of `__kind`.
const ROBUST: u32 = 16;
const PRIORITY_PROTECT: u32 = 64;
const KINDS: u32 = 0x3ff;
/// `__lock` of a mutex for which threads wait.
const CONTENDED: u32 = 2;
/// Bits of `__readers`: a write phase, and a writer holds the lock.
const WRITER_HOLDS: u32 = 3;

pub(super) fn owner(kind: WaitKind, futex: &FutexWait) -> Option<Lock> {
    match kind {
        WaitKind::Mutex => mutex(futex),
        // A condition variable itself uses a different command; a plain wait is for its mutex,
        // which is being locked again.
        WaitKind::Condition if command(futex) == WAIT => mutex(futex),
        WaitKind::ReadLock | WaitKind::WriteLock => rwlock(kind, futex),
        // The word is the thread's tid, which the kernel sets to 0 when the thread exits.
        WaitKind::ThreadEnd => Some(Lock { kind, word_offset: 0, owner: futex.word() }),
        _ => None,
    }
}

/// Whether the word may belong to a robust mutex.
///
/// pthread_mutex_init.c sets the process-shared bit for all robust mutexes.
pub(super) fn is_robust(futex: &FutexWait) -> bool {
    futex.at(16).is_some_and(|kind| kind & ROBUST != 0 && kind & !KINDS == 0)
}

/// Fields: `__lock`, `__count`, `__owner`, `__nusers`, `__kind`.
fn mutex(futex: &FutexWait) -> Option<Lock> {
    let (lock, owner, users, kind) = (futex.word()?, futex.at(8)?, futex.at(12)?, futex.at(16)?);
    if kind & !KINDS != 0 || kind & PRIORITY_PROTECT != 0 {
        return None;
    }
    let owner = match kind & ROBUST {
        // The owner is set after locking and reset before unlocking.
        0 => (lock == CONTENDED && users > 0).then_some(owner).filter(|tid| tid & !TID == 0),
        _ => (lock & OWNER_DIED == 0).then_some(lock & TID),
    };
    Some(Lock { kind: WaitKind::Mutex, word_offset: 0, owner })
}

/// Fields: `__readers`, `__writers`, `__wrphase_futex`, `__writers_futex`, two of padding,
/// `__cur_writer`, `__shared`. Readers are not recorded.
fn rwlock(kind: WaitKind, futex: &FutexWait) -> Option<Lock> {
    // A reader waits for `__wrphase_futex`; a writer for `__writers_futex`, or also for
    // `__wrphase_futex` while others read.
    let word_offset: i64 = if kind == WaitKind::ReadLock { 8 } else { 12 };
    let (readers, writer) = (futex.at(-word_offset)?, futex.at(24 - word_offset)?);
    let shared = futex.at(28 - word_offset)?;
    let holds = readers & WRITER_HOLDS == WRITER_HOLDS && shared <= 1 && writer & !TID == 0;
    Some(Lock { kind, word_offset: word_offset.unsigned_abs(), owner: holds.then_some(writer) })
}
