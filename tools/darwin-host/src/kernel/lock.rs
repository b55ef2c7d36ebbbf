//! The only lock of the host's state, held with every signal blocked.
//!
//! A thread that holds it can't be suspended (suspension is a signal), so a suspended thread never
//! holds it: a crash reporter may call Mach while all other threads are suspended, as on macOS. The
//! program's memory is not accessed while holding it: a fault there would need the lock.

use std::{
    cell::UnsafeCell,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicI32, AtomicU32, Ordering},
};

use super::{ending::refuse, futex};
use crate::host::mach::Mach;

/// A spinning-then-sleeping mutex that blocks all signals while held.
pub(crate) struct QuietMutex {
    /// 0 free, 1 held, 2 held with sleepers.
    word: AtomicU32,
    owner: AtomicI32,
}

/// The signal mask to restore.
pub(crate) struct Held(libc::sigset_t);

impl QuietMutex {
    pub(crate) const fn new() -> Self {
        Self { word: AtomicU32::new(0), owner: AtomicI32::new(0) }
    }

    /// Blocks all signals and takes the mutex.
    pub(crate) fn acquire(&self) -> Held {
        let held = Held(block_all_signals());
        // SAFETY: gettid has no preconditions.
        let me = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        if self.owner.load(Ordering::Relaxed) == me {
            refuse!("a fault or a recursive call inside the host's own critical section");
        }
        if self.word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.word.swap(2, Ordering::Acquire) != 0 {
                futex::wait(&self.word, 2, None);
            }
        }
        self.owner.store(me, Ordering::Relaxed);
        held
    }

    /// Releases the mutex and restores the signal mask.
    pub(crate) fn release(&self, held: &Held) {
        self.owner.store(0, Ordering::Relaxed);
        if self.word.swap(0, Ordering::Release) == 2 {
            futex::wake(&self.word, 1);
        }
        restore_signals(&held.0);
    }

    /// Whether the calling thread holds it; then a fault is the host's own.
    pub(crate) fn is_mine(&self) -> bool {
        // SAFETY: gettid has no preconditions.
        self.owner.load(Ordering::Relaxed) == unsafe { libc::syscall(libc::SYS_gettid) } as i32
    }

    /// Resets it in the child after fork, which has no other threads.
    pub(crate) fn reset(&self) {
        self.owner.store(0, Ordering::Relaxed);
        self.word.store(0, Ordering::Relaxed);
    }
}

/// Blocks every signal of the calling thread; returns the previous mask.
pub(crate) fn block_all_signals() -> libc::sigset_t {
    // SAFETY: both sets are local. The raw system call blocks glibc's own signals, too.
    unsafe {
        let all: u64 = !0;
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut old, 8usize);
        old
    }
}

/// Restores a mask returned by [`block_all_signals`].
pub(crate) fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: the set is valid for the eight bytes that the kernel reads.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            std::ptr::from_ref(mask),
            std::ptr::null_mut::<u64>(),
            8usize,
        )
    };
}

/// The host's state.
struct Kernel {
    mutex: QuietMutex,
    mach: UnsafeCell<Option<Mach>>,
}

// SAFETY: `mach` is only accessed through a `Guard`, and only one exists at a time.
unsafe impl Sync for Kernel {}

static KERNEL: Kernel = Kernel { mutex: QuietMutex::new(), mach: UnsafeCell::new(None) };

/// Access to the host's state; signals are blocked while it exists.
pub(crate) struct Guard(Held);

/// Takes the lock.
pub(crate) fn lock() -> Guard {
    let held = KERNEL.mutex.acquire();
    // SAFETY: this thread holds the mutex.
    let mach = unsafe { &mut *KERNEL.mach.get() };
    if mach.is_none() {
        *mach = Some(Mach::new());
    }
    Guard(held)
}

/// Whether the calling thread holds the lock.
pub(crate) fn is_mine() -> bool {
    KERNEL.mutex.is_mine()
}

/// Resets the lock in the child after fork.
pub(crate) fn reset() {
    KERNEL.mutex.reset();
}

impl Deref for Guard {
    type Target = Mach;
    fn deref(&self) -> &Mach {
        // SAFETY: the guard holds the mutex.
        unsafe { (*KERNEL.mach.get()).as_ref().expect("made by lock()") }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Mach {
        // SAFETY: the guard holds the mutex, and is borrowed mutably.
        unsafe { (*KERNEL.mach.get()).as_mut().expect("made by lock()") }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        KERNEL.mutex.release(&self.0);
    }
}
