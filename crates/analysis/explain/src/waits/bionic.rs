//! Mutexes of Android's C library on 64-bit systems: `struct pthread_mutex_internal_t` of bionic/pthread_mutex.cpp, a 16-bit state and as much
//! padding, for which threads wait, then the owner's tid, which only mutexes have that are recursive or check errors.

use coroner_report::model::{FutexWait, WaitKind};

use super::futex::{Lock, TID};

/// The state's kind: 0 plain, 1 recursive, 2 checks errors, 3 of priority inheritance, which has another layout.
const KIND: u32 = 14;
/// The lowest bits of the state of a mutex for which threads wait.
const CONTENDED: u32 = 2;

pub(super) fn owner(kind: WaitKind, futex: &FutexWait) -> Option<Lock> {
    if kind != WaitKind::Mutex {
        return None;
    }
    let (state, owner) = (futex.word()?, futex.at(4)?);
    let has_owner = state <= 0xffff && state & 3 == CONTENDED && matches!(state >> KIND, 1 | 2) && owner & !TID == 0;
    Some(Lock { kind, word_offset: 0, owner: Some(owner).filter(|_| has_owner) })
}
