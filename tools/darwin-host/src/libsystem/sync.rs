//! Mutexes, condition variables, read-write locks, once.
//!
//! They are stored inside Darwin's larger objects (<sys/_pthread/_pthread_types.h>), and use the
//! host's futexes in words that are zero when the object is created or statically initialized
//! (<pthread.h>, _PTHREAD_*_SIG_init). Fields that others may read are as in libpthread-454 (macOS
//! 11) and libplatform-254, and waiting threads appear in their system calls: `__psynch_mutexwait`,
//! `__psynch_cvwait`, `__psynch_rw_rdlock`, `__psynch_rw_wrlock` and `__ulock_wait`, whose stubs
//! lead to the functions here. For the frames above those calls see
//! [`crate::loader::system_images`]; there even a free lock is taken in the call and not before it.
//!
//! * A mutex has the policy "first fit" (src/pthread_mutex.c: that system's default): the owner's
//!   thread id is set after it has been locked and reset before it is unlocked; the sequence has a
//!   bit while it is locked, and counts the threads that started to wait.
//! * A read-write lock contains the id of the writing thread (src/pthread_rwlock.c).
//! * An `os_unfair_lock` contains the owner's port name, with the lowest bit cleared if a thread
//!   waits (src/os/lock.c).

use std::sync::atomic::AtomicU64;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::host::{
    kernel::{ending::refuse, futex, thread},
    loader,
};

/// `_PTHREAD_*MUTEX_SIG_init`; its lowest digit is the kind.
const MUTEX_STATIC: u64 = 0x32aa_aba0;
/// `_PTHREAD_MUTEX_SIG`, and `_PTHREAD_MUTEX_SIG_fast` for a normal mutex.
const MUTEX_MADE: u64 = 0x4d55_5458;
const MUTEX_FAST: u64 = 0x4d55_545a;
/// Fields of mtxopts.
///
/// The kind is in bits 2 and 3, `_PTHREAD_PROCESS_PRIVATE` in 4 and 5, the policy in 6 to 8; one
/// bit marks a mutex.
const PRIVATE: u32 = 2 << 4;
const FIRST_FIT: u32 = 2 << 6;
const IS_MUTEX: u32 = 1 << 13;
/// `PTH_RWL_EBIT` and `PTHRW_INC` of a sequence.
const EXCLUSIVE: u32 = 2;
const ONE_MORE: u32 = 0x100;
/// <sys/syscall.h>.
const MUTEX_WAIT: u32 = 301;
const CONDITION_WAIT: u32 = 305;
const READ_LOCK: u32 = 306;
const WRITE_LOCK: u32 = 307;
pub(super) const ULOCK_WAIT: u32 = 515;
const ULOCK_WAIT_2: u32 = 544;
/// `UL_UNFAIR_LOCK | ULF_NO_ERRNO` (<sys/ulock.h>).
pub(super) const UNFAIR: u64 = 0x0100_0002;
const ONCE_DONE: u64 = 0x4f4e_4345;

const EBUSY: i32 = 16;
const EPERM: i32 = 1;
const EDEADLK: i32 = 11;
const ETIMEDOUT: i32 = 60;

/// `pthread_mutex_t` (64 bytes; src/types_internal.h, `struct pthread_mutex_s`).
#[repr(C)]
struct Mutex {
    signature: AtomicU64,
    lock: u32,
    /// mtxopts.
    options: AtomicU32,
    priorities: u32,
    padding: u32,
    /// m_tid.
    owner: AtomicU64,
    /// m_seq: lgenval and ugenval.
    sequence: [AtomicU32; 2],
    misaligned: u64,
    /// The host's word: 0 free, 1 held, 2 held with sleepers.
    word: AtomicU32,
    depth: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Mutex>() == 64);

fn unique_id() -> u64 {
    thread::current().unique_id.load(Ordering::Relaxed)
}

/// `_pthread_mutex_init`: the signature and the options of a kind.
///
/// PTHREAD_MUTEX_NORMAL 0, ERRORCHECK 1, RECURSIVE 2.
fn made_as(kind: u32) -> (u64, u32) {
    (if kind == 0 { MUTEX_FAST } else { MUTEX_MADE }, kind << 2 | PRIVATE | FIRST_FIT | IS_MUTEX)
}

impl Mutex {
    fn kind(&self) -> u32 {
        self.options.load(Ordering::Relaxed) >> 2 & 3
    }

    /// `_pthread_mutex_check_init`: initializes a static mutex at its first use.
    ///
    /// Threads that do this concurrently write the same values.
    fn make(&self) {
        let signature = self.signature.load(Ordering::Acquire);
        if signature & !0xf == MUTEX_STATIC {
            let (signature, options) = made_as(match signature & 0xf {
                1 => 1,
                2 => 2,
                _ => 0,
            });
            self.options.store(options, Ordering::Relaxed);
            self.signature.store(signature, Ordering::Release);
        }
    }

    fn lock(&mut self, wait: bool) -> i32 {
        self.make();
        let me = unique_id();
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
            let lgenval = self.sequence[0].fetch_add(ONE_MORE, Ordering::Relaxed) + ONE_MORE;
            let (ugenval, owner) = (self.sequence[1].load(Ordering::Relaxed), self.owner.load(Ordering::Relaxed));
            let options = self.options.load(Ordering::Relaxed);
            let at = std::ptr::from_ref(self) as u64;
            let call = [at, lgenval.into(), ugenval.into(), owner, options.into()];
            while self.word.swap(2, Ordering::Acquire) != 0 {
                thread::current().in_call(MUTEX_WAIT, &call, || futex::wait(&self.word, 2, None));
            }
            self.sequence[1].fetch_add(ONE_MORE, Ordering::Relaxed);
        }
        self.sequence[0].fetch_or(EXCLUSIVE, Ordering::Relaxed);
        self.owner.store(me, Ordering::Relaxed);
        0
    }

    fn unlock(&mut self) -> i32 {
        if self.kind() != 0 && self.owner.load(Ordering::Relaxed) != unique_id() {
            return EPERM;
        }
        if self.depth > 0 {
            self.depth -= 1;
            return 0;
        }
        self.owner.store(0, Ordering::Relaxed);
        self.sequence[0].fetch_and(!EXCLUSIVE, Ordering::Relaxed);
        if self.word.swap(0, Ordering::Release) == 2 {
            futex::wake(&self.word, 1);
        }
        0
    }
}

extern "C" fn mutex_init(mutex: *mut Mutex, attributes: *const [u64; 2]) -> i32 {
    // SAFETY: the program gave the objects; all zero is valid for a mutex.
    unsafe {
        let kind = if attributes.is_null() { 0 } else { (*attributes)[1] as u32 };
        mutex.write(std::mem::zeroed());
        let (signature, options) = made_as(kind & 3);
        (*mutex).options = AtomicU32::new(options);
        (*mutex).signature = AtomicU64::new(signature);
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

/// `pthread_mutexattr_t` is 16 bytes: a signature, and here the kind.
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

/// `pthread_cond_t` (48 bytes; `struct pthread_cond_s`: the signature, lock, flags, busy, c_seq).
#[repr(C)]
struct Condition {
    signature: u64,
    words: [u64; 3],
    reserved: u32,
    /// The host's word: counts wake-ups.
    sequence: AtomicU32,
    more: u64,
}

const _: () = assert!(size_of::<Condition>() == 48);

impl Condition {
    /// Waits without taking the mutex again, which the call's caller does.
    ///
    /// Source: src/pthread_cond.c, `_pthread_cond_wait`.
    fn wait(&self, mutex: &mut Mutex, timeout: Option<Duration>) -> i32 {
        let seen = self.sequence.load(Ordering::SeqCst);
        let start = std::time::Instant::now();
        mutex.unlock();
        let time = timeout.map_or([0, 0], |time| [time.as_secs(), u64::from(time.subsec_nanos()).max(1)]);
        let flags = u64::from(mutex.options.load(Ordering::Relaxed) & !IS_MUTEX);
        let call = [std::ptr::from_ref(self) as u64, ONE_MORE.into(), 0, 0, 0, flags, time[0], time[1]];
        thread::current().in_call(CONDITION_WAIT, &call, || futex::wait(&self.sequence, seen, timeout));
        let late = timeout.is_some_and(|t| start.elapsed() >= t);
        if late && self.sequence.load(Ordering::SeqCst) == seen { ETIMEDOUT } else { 0 }
    }
}

extern "C" fn cond_init(condition: *mut Condition, _attributes: usize) -> i32 {
    // SAFETY: the program gave the object.
    unsafe {
        condition.write(Condition {
            signature: 0x434f_4e44,
            words: [0; 3],
            reserved: 0,
            sequence: AtomicU32::new(0),
            more: 0,
        });
    };
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

/// `pthread_rwlock_t` (200 bytes; `struct pthread_rwlock_s`).
#[repr(C)]
struct ReadWrite {
    signature: AtomicU64,
    words: [u64; 2],
    /// rw_tid.
    owner: AtomicU64,
    /// rw_seq and rw_mis.
    sequences: [u64; 4],
    /// The host's word: the number of readers, or all ones for a writer.
    state: AtomicU32,
}

const WRITER: u32 = u32::MAX;
/// `_PTHREAD_RWLOCK_SIG`, which a static lock gets at its first use.
const READ_WRITE_MADE: u64 = 0x5257_4c4b;

impl ReadWrite {
    fn sleep(&self, number: u32, state: u32) {
        // Sequence and flags (`_PTHREAD_PROCESS_PRIVATE`).
        let call = [std::ptr::from_ref(self) as u64, ONE_MORE.into(), 0, 0, 0x20];
        thread::current().in_call(number, &call, || futex::wait(&self.state, state, None));
    }
}

extern "C" fn rwlock_init(lock: *mut ReadWrite, _attributes: usize) -> i32 {
    // SAFETY: the program gave the object; all zero is valid for it.
    unsafe {
        lock.write(std::mem::zeroed());
        (*lock).signature = AtomicU64::new(READ_WRITE_MADE);
    }
    0
}

extern "C" fn rwlock_read(lock: &ReadWrite) -> i32 {
    lock.signature.store(READ_WRITE_MADE, Ordering::Relaxed);
    loop {
        let state = lock.state.load(Ordering::Relaxed);
        if state == WRITER {
            lock.sleep(READ_LOCK, WRITER);
        } else if lock.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return 0;
        }
    }
}

extern "C" fn rwlock_write(lock: &ReadWrite) -> i32 {
    lock.signature.store(READ_WRITE_MADE, Ordering::Relaxed);
    loop {
        match lock.state.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                lock.owner.store(unique_id(), Ordering::Relaxed);
                return 0;
            }
            Err(state) => lock.sleep(WRITE_LOCK, state),
        }
    }
}

extern "C" fn rwlock_unlock(lock: &ReadWrite) -> i32 {
    if lock.state.load(Ordering::Relaxed) == WRITER {
        lock.owner.store(0, Ordering::Relaxed);
        lock.state.store(0, Ordering::Release);
    } else {
        lock.state.fetch_sub(1, Ordering::Release);
    }
    futex::wake(&lock.state, i32::MAX);
    0
}

/// `pthread_once_t`: a signature, then the state: 0 not started, 1 running.
#[repr(C)]
struct Once {
    signature: u64,
    state: AtomicU32,
}

extern "C" fn once(once: &mut Once, function: usize) -> i32 {
    loop {
        // SAFETY: the program's object; other threads read the signature only as "done".
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

/// `OS_ULOCK_NOWAITERS_BIT`.
const NOBODY_WAITS: u32 = 1;

/// `os_unfair_lock`: one word (<os/lock.h>).
fn unfair_lock_by(word: &AtomicU32, number: u32) {
    let this = thread::current();
    let me = this.port.load(Ordering::Relaxed);
    let mut mine = me;
    while let Err(seen) = word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
        if seen | NOBODY_WAITS == me {
            refuse!("os_unfair_lock_lock: Trying to recursively lock an os_unfair_lock");
        }
        let waited = seen & !NOBODY_WAITS;
        if seen == waited || word.compare_exchange(seen, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let call = [UNFAIR, std::ptr::from_ref(word) as u64, waited.into(), 0, 0];
            this.in_call(number, &call, || futex::wait(word, waited, None));
            // There may be other waiting threads.
            mine = me & !NOBODY_WAITS;
        }
    }
}

/// `os_unfair_lock_lock` of macOS 11, and of later ones by libplatform's call since macOS 12.
extern "C" fn unfair_lock(word: &AtomicU32) {
    unfair_lock_by(word, ULOCK_WAIT);
}

extern "C" fn unfair_lock_later(word: &AtomicU32) {
    unfair_lock_by(word, ULOCK_WAIT_2);
}

extern "C" fn unfair_trylock(word: &AtomicU32) -> i32 {
    let me = thread::current().port.load(Ordering::Relaxed);
    i32::from(word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok())
}

extern "C" fn unfair_unlock(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & NOBODY_WAITS == 0 {
        futex::wake(word, 1);
    }
}

super::exports! {
    "pthread_mutex_init" => mutex_init,
    "pthread_mutex_destroy" => mutex_destroy,
    "__psynch_mutexwait" => mutex_lock,
    "pthread_mutex_trylock" => mutex_trylock,
    "pthread_mutex_unlock" => mutex_unlock,
    "pthread_mutexattr_init" => mutexattr_init,
    "pthread_mutexattr_settype" => mutexattr_settype,
    "pthread_mutexattr_destroy" => nothing,
    "pthread_cond_init" => cond_init,
    "pthread_cond_destroy" => nothing,
    "__psynch_cvwait" => cond_wait,
    "__psynch_cvwait@absolute" => cond_timedwait,
    "__psynch_cvwait@relative" => cond_timedwait_relative,
    "pthread_cond_signal" => cond_signal,
    "pthread_cond_broadcast" => cond_broadcast,
    "pthread_condattr_init" => nothing,
    "pthread_condattr_destroy" => nothing,
    "pthread_rwlock_init" => rwlock_init,
    "pthread_rwlock_destroy" => nothing,
    "__psynch_rw_rdlock" => rwlock_read,
    "__psynch_rw_wrlock" => rwlock_write,
    "pthread_rwlock_unlock" => rwlock_unlock,
    "pthread_once" => once,
    "__ulock_wait" => unfair_lock,
    "__ulock_wait2" => unfair_lock_later,
    "os_unfair_lock_trylock" => unfair_trylock,
    "os_unfair_lock_unlock" => unfair_unlock,
}
