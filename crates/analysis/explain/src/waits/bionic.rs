//! Mutexes of Android's C library on 64-bit systems: `struct pthread_mutex_internal_t` in
//! bionic/pthread_mutex.cpp has a 16-bit state and equal padding, for which threads wait, then the
//! owner's tid, which is only set for recursive and error-checking mutexes.

use coroner_report::model::{FutexWait, WaitKind};

use super::futex::{Lock, TID};

/// The mutex type in the state.
///
/// 0 is normal, 1 recursive, 2 error-checking, 3 priority inheritance, which has another layout.
const KIND: u32 = 14;
/// The lowest bits of the state of a mutex for which threads wait.
const CONTENDED: u32 = 2;

pub(super) fn owner(kind: WaitKind, futex: &FutexWait) -> Option<Lock> {
    if kind != WaitKind::Mutex {
        return None;
    }
    let (state, owner) = (futex.word()?, futex.at(4)?);
    let has_owner = state <= 0xffff && state & 3 == CONTENDED && matches!(state >> KIND, 1 | 2) && owner & !TID == 0;
    Some(Lock { kind, word_offset: 0, owner: has_owner.then_some(owner) })
}
