//! Locks of musl on 64-bit systems (src/internal/pthread_impl.h): `_m_type` is a mutex's first int,
//! `_m_lock` the second.

use coroner_report::model::{FutexWait, WaitKind};

use super::futex::{Lock, OWNER_DIED, TID};

/// Bits of `_m_type`.
///
/// They are the type (0 normal, 1 recursive, 2 error-checking), robust, priority inheritance,
/// process-shared.
const TYPES: u32 = 3 | 4 | 8 | 128;
const PRIORITY_INHERITANCE: u32 = 8;
/// Offset from a thread's `tid` to its `detach_state`, for which `pthread_join` waits: `int tid;
/// int errno_val; volatile int detach_state`.
const TID_BEFORE_DETACH_STATE: i64 = 8;

pub(super) fn owner(kind: WaitKind, futex: &FutexWait) -> Option<Lock> {
    match kind {
        WaitKind::Mutex | WaitKind::Condition => mutex(futex).filter(|_| kind == WaitKind::Mutex),
        WaitKind::ThreadEnd => Some(Lock { kind, word_offset: 0, owner: futex.at(-TID_BEFORE_DETACH_STATE) }),
        _ => None,
    }
}

fn mutex(futex: &FutexWait) -> Option<Lock> {
    let (kind, lock) = (futex.at(-4)?, futex.word()?);
    if kind & !TYPES != 0 || kind & PRIORITY_INHERITANCE != 0 {
        return None;
    }
    // A normal mutex has a constant in the owner's place.
    let has_owner = kind & 7 != 0 && lock & OWNER_DIED == 0;
    Some(Lock { kind: WaitKind::Mutex, word_offset: 4, owner: has_owner.then_some(lock & TID) })
}
