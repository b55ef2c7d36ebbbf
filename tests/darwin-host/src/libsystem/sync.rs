//! Mutexes, condition variables, read-write locks, once.
//!
//! They live inside Darwin's larger objects (<sys/_pthread/_pthread_types.h>), on futexes of ours. The first word is the
//! signature that Darwin's static initialisers write (<pthread.h>, _PTHREAD_*_SIG_init), which also says a static mutex's
//! kind; the words after it are zero then, which is the free state here.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::host::{
    kernel::{futex, thread},
    loader,
};

const MUTEX_STATIC_ERRORCHECK: u64 = 0x32aa_aba1;
const MUTEX_STATIC_RECURSIVE: u64 = 0x32aa_aba2;
const MUTEX_MADE: u64 = 0x4d55_5458;
const ONCE_DONE: u64 = 0x4f4e_4345;

const EBUSY: i32 = 16;
const EPERM: i32 = 1;
const EDEADLK: i32 = 11;
const ETIMEDOUT: i32 = 60;

/// `pthread_mutex_t` (64 bytes).
#[repr(C)]
struct Mutex {
    signature: u64,
    /// 0 free, 1 held, 2 held and somebody sleeps.
    word: AtomicU32,
    owner: AtomicU32,
    depth: u32,
    /// PTHREAD_MUTEX_NORMAL 0, ERRORCHECK 1, RECURSIVE 2.
    kind: i32,
}

impl Mutex {
    fn kind(&self) -> i32 {
        match self.signature {
            MUTEX_STATIC_ERRORCHECK => 1,
            MUTEX_STATIC_RECURSIVE => 2,
            _ => self.kind,
        }
    }

    fn lock(&mut self, wait: bool) -> i32 {
        let me = thread::current().tid.load(Ordering::Relaxed) as u32;
        if self.owner.load(Ordering::Relaxed) == me {
            match self.kind() {
                2 => {
                    self.depth += 1;
                    return 0;
                }
                1 if wait => return EDEADLK,
                _ => {}
            }
        }
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if !wait {
                return EBUSY;
            }
            while self.word.swap(2, Ordering::Acquire) != 0 {
                futex::wait(&self.word, 2, None);
            }
        }
        self.owner.store(me, Ordering::Relaxed);
        0
    }

    fn unlock(&mut self) -> i32 {
        let me = thread::current().tid.load(Ordering::Relaxed) as u32;
        if self.kind() != 0 && self.owner.load(Ordering::Relaxed) != me {
            return EPERM;
        }
        if self.depth > 0 {
            self.depth -= 1;
            return 0;
        }
        self.owner.store(0, Ordering::Relaxed);
        if self.word.swap(0, Ordering::Release) == 2 {
            futex::wake(&self.word, 1);
        }
        0
    }
}

extern "C" fn mutex_init(mutex: *mut Mutex, attributes: *const [u64; 2]) -> i32 {
    // SAFETY: the program gave the objects.
    unsafe {
        let kind = if attributes.is_null() { 0 } else { (*attributes)[1] as i32 };
        mutex.write(Mutex { signature: MUTEX_MADE, word: AtomicU32::new(0), owner: AtomicU32::new(0), depth: 0, kind });
    }
    0
}

extern "C" fn mutex_destroy(mutex: &Mutex) -> i32 {
    if mutex.word.load(Ordering::Relaxed) == 0 { 0 } else { EBUSY }
}

extern "C" fn mutex_lock(mutex: &mut Mutex) -> i32 {
    mutex.lock(true)
}

extern "C" fn mutex_trylock(mutex: &mut Mutex) -> i32 {
    mutex.lock(false)
}

extern "C" fn mutex_unlock(mutex: &mut Mutex) -> i32 {
    mutex.unlock()
}

/// `pthread_mutexattr_t` is 16 bytes: a signature, and the kind here.
extern "C" fn mutexattr_init(attributes: &mut [u64; 2]) -> i32 {
    *attributes = [0, 0];
    0
}

extern "C" fn mutexattr_settype(attributes: &mut [u64; 2], kind: i32) -> i32 {
    attributes[1] = kind as u64;
    0
}

extern "C" fn nothing() -> i32 {
    0
}

/// `pthread_cond_t` (48 bytes).
#[repr(C)]
struct Condition {
    signature: u64,
    /// Counts wake-ups.
    sequence: AtomicU32,
}

impl Condition {
    fn wait(&self, mutex: &mut Mutex, timeout: Option<Duration>) -> i32 {
        let seen = self.sequence.load(Ordering::SeqCst);
        let start = std::time::Instant::now();
        mutex.unlock();
        futex::wait(&self.sequence, seen, timeout);
        mutex.lock(true);
        let late = timeout.is_some_and(|t| start.elapsed() >= t);
        if late && self.sequence.load(Ordering::SeqCst) == seen { ETIMEDOUT } else { 0 }
    }
}

extern "C" fn cond_init(condition: *mut Condition, _attributes: usize) -> i32 {
    // SAFETY: the program gave the object.
    unsafe { condition.write(Condition { signature: 0x434f_4e44, sequence: AtomicU32::new(0) }) };
    0
}

extern "C" fn cond_wait(condition: &Condition, mutex: &mut Mutex) -> i32 {
    condition.wait(mutex, None)
}

fn duration(time: &libc::timespec) -> Duration {
    Duration::new(time.tv_sec.max(0) as u64, time.tv_nsec as u32)
}

extern "C" fn cond_timedwait_relative(condition: &Condition, mutex: &mut Mutex, time: &libc::timespec) -> i32 {
    condition.wait(mutex, Some(duration(time)))
}

extern "C" fn cond_timedwait(condition: &Condition, mutex: &mut Mutex, time: &libc::timespec) -> i32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    condition.wait(mutex, Some(duration(time).saturating_sub(now)))
}

extern "C" fn cond_signal(condition: &Condition) -> i32 {
    condition.sequence.fetch_add(1, Ordering::SeqCst);
    futex::wake(&condition.sequence, 1);
    0
}

extern "C" fn cond_broadcast(condition: &Condition) -> i32 {
    futex::advance(&condition.sequence);
    0
}

/// `pthread_rwlock_t` (200 bytes): the number of readers, or all ones for a writer.
#[repr(C)]
struct ReadWrite {
    signature: u64,
    state: AtomicU32,
}

const WRITER: u32 = u32::MAX;

extern "C" fn rwlock_init(lock: *mut ReadWrite, _attributes: usize) -> i32 {
    // SAFETY: the program gave the object.
    unsafe { lock.write(ReadWrite { signature: 0x5257_4c4b, state: AtomicU32::new(0) }) };
    0
}

extern "C" fn rwlock_read(lock: &ReadWrite) -> i32 {
    loop {
        let state = lock.state.load(Ordering::Relaxed);
        if state == WRITER {
            futex::wait(&lock.state, WRITER, None);
        } else if lock.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return 0;
        }
    }
}

extern "C" fn rwlock_write(lock: &ReadWrite) -> i32 {
    loop {
        match lock.state.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return 0,
            Err(state) => futex::wait(&lock.state, state, None),
        }
    }
}

extern "C" fn rwlock_unlock(lock: &ReadWrite) -> i32 {
    if lock.state.load(Ordering::Relaxed) == WRITER {
        lock.state.store(0, Ordering::Release);
    } else {
        lock.state.fetch_sub(1, Ordering::Release);
    }
    futex::wake(&lock.state, i32::MAX);
    0
}

/// `pthread_once_t`: a signature, then the state: 0 not yet, 1 running.
#[repr(C)]
struct Once {
    signature: u64,
    state: AtomicU32,
}

extern "C" fn once(once: &mut Once, function: usize) -> i32 {
    loop {
        // SAFETY: the program's object; the signature is read by others only as "done".
        if unsafe { (&raw const once.signature).read_volatile() } == ONCE_DONE {
            return 0;
        }
        if once.state.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            loader::call(function, [0; 4]);
            // SAFETY: as above.
            unsafe { (&raw mut once.signature).write_volatile(ONCE_DONE) };
            futex::advance(&once.state);
        } else {
            futex::wait(&once.state, 1, None);
        }
    }
}

/// `os_unfair_lock`: one word (<os/lock.h>).
extern "C" fn unfair_lock(word: &AtomicU32) {
    if word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        while word.swap(2, Ordering::Acquire) != 0 {
            futex::wait(word, 2, None);
        }
    }
}

extern "C" fn unfair_trylock(word: &AtomicU32) -> i32 {
    i32::from(word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok())
}

extern "C" fn unfair_unlock(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) == 2 {
        futex::wake(word, 1);
    }
}

super::exports! {
    "pthread_mutex_init" => mutex_init,
    "pthread_mutex_destroy" => mutex_destroy,
    "pthread_mutex_lock" => mutex_lock,
    "pthread_mutex_trylock" => mutex_trylock,
    "pthread_mutex_unlock" => mutex_unlock,
    "pthread_mutexattr_init" => mutexattr_init,
    "pthread_mutexattr_settype" => mutexattr_settype,
    "pthread_mutexattr_destroy" => nothing,
    "pthread_cond_init" => cond_init,
    "pthread_cond_destroy" => nothing,
    "pthread_cond_wait" => cond_wait,
    "pthread_cond_timedwait" => cond_timedwait,
    "pthread_cond_timedwait_relative_np" => cond_timedwait_relative,
    "pthread_cond_signal" => cond_signal,
    "pthread_cond_broadcast" => cond_broadcast,
    "pthread_condattr_init" => nothing,
    "pthread_condattr_destroy" => nothing,
    "pthread_rwlock_init" => rwlock_init,
    "pthread_rwlock_destroy" => nothing,
    "pthread_rwlock_rdlock" => rwlock_read,
    "pthread_rwlock_wrlock" => rwlock_write,
    "pthread_rwlock_unlock" => rwlock_unlock,
    "pthread_once" => once,
    "os_unfair_lock_lock" => unfair_lock,
    "os_unfair_lock_trylock" => unfair_trylock,
    "os_unfair_lock_unlock" => unfair_unlock,
}
