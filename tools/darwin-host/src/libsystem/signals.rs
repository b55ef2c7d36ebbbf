//! The signal functions: sigaction, masks, alternate stacks, sending (<signal.h>).

use std::{
    ffi::{CStr, c_char},
    sync::atomic::Ordering,
};

use super::errno::fail;
use crate::host::{
    kernel::{ending::refuse, thread, thread::Thread},
    signals::{
        delivery::{self, Action},
        numbers::{self, SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGSTOP},
    },
};

const EINVAL: i32 = 22;
const ESRCH: i32 = 3;

/// `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SigAction {
    handler: usize,
    mask: u32,
    flags: i32,
}

extern "C" fn sigaction(number: i32, new: *const SigAction, old: *mut SigAction) -> i32 {
    if !(1..32).contains(&number) {
        return fail(EINVAL);
    }
    // SAFETY: the program gave the addresses, or none.
    unsafe {
        let before = delivery::action(number);
        let new = new.as_ref().copied();
        if let Some(old) = old.as_mut() {
            *old = SigAction { handler: before.handler, mask: before.mask, flags: before.flags as i32 };
        }
        if let Some(new) = new {
            if matches!(number, SIGKILL | SIGSTOP) {
                return fail(EINVAL);
            }
            let flags = new.flags as u32;
            if flags & !Action::KNOWN != 0 {
                refuse!("sigaction with flags {flags:#x}");
            }
            delivery::set_action(number, Action { handler: new.handler, mask: new.mask, flags });
        }
    }
    0
}

/// `signal`: as in BSD, with SA_RESTART.
extern "C" fn signal(number: i32, handler: usize) -> usize {
    if !(1..32).contains(&number) || matches!(number, SIGKILL | SIGSTOP) {
        fail(EINVAL);
        return usize::MAX;
    }
    let before = delivery::action(number).handler;
    delivery::set_action(number, Action { handler, mask: 0, flags: Action::RESTART });
    before
}

/// Changes the mask of the calling thread or of all; SIG_BLOCK 1, SIG_UNBLOCK 2, SIG_SETMASK 3.
fn change_mask(all: bool, how: i32, set: *const u32, old: *mut u32) -> i32 {
    let thread = thread::current();
    let before = thread.blocked.load(Ordering::SeqCst);
    // SAFETY: the program gave the addresses, or none.
    let set = unsafe {
        let set = set.as_ref().copied();
        if let Some(old) = old.as_mut() {
            *old = before;
        }
        set
    };
    let Some(set) = set else { return 0 };
    if !(1..=3).contains(&how) {
        return EINVAL;
    }
    let change = |before: u32| match how {
        1 => before | set,
        2 => before & !set,
        _ => set,
    };
    if all {
        delivery::change_all_masks(thread, change);
    } else {
        delivery::set_mask(thread, change(before));
    }
    0
}

extern "C" fn pthread_sigmask(how: i32, set: *const u32, old: *mut u32) -> i32 {
    change_mask(false, how, set, old)
}

/// Changes the masks of all of the process's threads, unlike in POSIX.
extern "C" fn sigprocmask(how: i32, set: *const u32, old: *mut u32) -> i32 {
    match change_mask(true, how, set, old) {
        0 => 0,
        error => fail(error),
    }
}

extern "C" fn sigpending(set: *mut u32) -> i32 {
    let mut linux = 0u64;
    // SAFETY: eight bytes are written; the program gave the address.
    unsafe {
        libc::syscall(libc::SYS_rt_sigpending, &raw mut linux, 8usize);
        set.write(numbers::set_from_linux(linux) | thread::current().pending.load(Ordering::SeqCst));
    }
    0
}

/// `sigwait` (POSIX): takes the lowest pending signal of the set, or waits for one.
///
/// The host keeps faults that the program blocks in the thread's own pending set; Linux keeps all
/// others.
extern "C" fn sigwait(set: *const u32, taken: *mut i32) -> i32 {
    // SAFETY: the program gave the addresses.
    let set = unsafe { *set };
    let thread = thread::current();
    let ours = thread.pending.load(Ordering::SeqCst) & set;
    let number = if ours != 0 {
        let number = ours.trailing_zeros() as i32 + 1;
        thread.pending.fetch_and(!numbers::bit(number), Ordering::SeqCst);
        number
    } else {
        let linux = numbers::set_to_linux(set);
        loop {
            // SAFETY: eight bytes are read; nothing is written and no time is set. A suspension
            // ends it with EINTR.
            let number = unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const linux, 0usize, 0usize, 8usize) };
            if let Some(number) = numbers::from_linux(number as i32) {
                break number;
            }
        }
    };
    // SAFETY: as above.
    unsafe { taken.write(number) };
    0
}

/// `stack_t`: base, size, flags.
#[repr(C)]
#[derive(Clone, Copy)]
struct Stack {
    base: usize,
    size: usize,
    flags: i32,
}

const SS_ONSTACK: i32 = 1;
const SS_DISABLE: i32 = 4;
const MINIMUM: usize = 32768;

/// `sigaltstack` (XNU bsd/kern/kern_sig.c): MINSIGSTKSZ is 32 KiB.
///
/// Fails while on the alternate stack.
extern "C" fn sigaltstack(new: *const Stack, old: *mut Stack) -> i32 {
    let thread = thread::current();
    let here = thread.gate_frame().sp;
    let (base, size, flags) = thread.alternate;
    let on = flags & SS_DISABLE == 0 && size > 0 && (base..base + size).contains(&here);
    // SAFETY: the program gave the addresses, or none.
    unsafe {
        let new = new.as_ref().copied();
        if let Some(old) = old.as_mut() {
            *old = Stack { base, size, flags: if on { SS_ONSTACK } else { flags } };
        }
        if let Some(new) = new {
            if on {
                return fail(1); // EPERM
            }
            if new.flags & SS_DISABLE != 0 {
                thread.alternate = (0, 0, SS_DISABLE);
            } else if new.flags != 0 {
                return fail(EINVAL);
            } else if new.size < MINIMUM {
                return fail(12); // ENOMEM
            } else {
                thread.alternate = (new.base, new.size, 0);
            }
        }
    }
    0
}

extern "C" fn kill(pid: i32, number: i32) -> i32 {
    let Some(linux) = (if number == 0 { Some(0) } else { numbers::to_linux(number) }) else { return fail(EINVAL) };
    // SAFETY: plain system call.
    unsafe { libc::kill(pid, linux) }
}

/// `__pthread_kill`, the system call of `pthread_kill`.
///
/// Here it takes the `pthread_t`, not the thread's port.
extern "C" fn pthread_kill_call(thread: &Thread, number: i32) -> i32 {
    super::held_locks::look_up("pthread_kill", thread);
    let Some(linux) = (if number == 0 { Some(0) } else { numbers::to_linux(number) }) else { return EINVAL };
    if thread.ended.load(Ordering::SeqCst) != 0 {
        return ESRCH;
    }
    let tid = thread.tid.load(Ordering::SeqCst);
    // SAFETY: plain system call.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, linux) };
    0
}

/// The first step of `__assert_rtn` (Libc gen/assert.c): prints the failed assertion.
extern "C" fn assert_says(function: *const c_char, file: *const c_char, line: i32, failed: *const c_char) {
    // SAFETY: the program gave strings.
    let [function, file, failed] =
        [function, file, failed].map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
    eprintln!("Assertion failed: ({failed}), function {function}, file {file}, line {line}.");
}

/// The first step of `abort` (Libc stdlib/FreeBSD/abort.c).
///
/// Returns the calling thread, to which SIGABRT is sent.
///
/// Blocks all signals on all threads, except SIGABRT, SIGSEGV and SIGBUS on the calling thread.
extern "C" fn abort_begins() -> *const Thread {
    let thread = thread::current();
    delivery::change_all_masks(thread, |_| !0);
    delivery::set_mask(thread, !(numbers::bit(SIGABRT) | numbers::bit(SIGSEGV) | numbers::bit(SIGBUS)));
    thread
}

/// The last step of `abort`, if a handler returned: SIGABRT again, with the default action.
extern "C" fn abort_ends() -> ! {
    delivery::set_action(SIGABRT, Action { handler: 0, mask: 0, flags: 0 });
    delivery::die(SIGABRT)
}

extern "C" fn sigemptyset(set: &mut u32) -> i32 {
    *set = 0;
    0
}

extern "C" fn sigfillset(set: &mut u32) -> i32 {
    *set = !0;
    0
}

extern "C" fn sigaddset(set: &mut u32, number: i32) -> i32 {
    if !(1..=32).contains(&number) {
        return fail(EINVAL);
    }
    *set |= numbers::bit(number);
    0
}

extern "C" fn sigdelset(set: &mut u32, number: i32) -> i32 {
    if !(1..=32).contains(&number) {
        return fail(EINVAL);
    }
    *set &= !numbers::bit(number);
    0
}

extern "C" fn sigismember(set: &u32, number: i32) -> i32 {
    i32::from(set & numbers::bit(number) != 0)
}

super::exports! {
    "sigaction" => sigaction,
    "signal" => signal,
    "pthread_sigmask" => pthread_sigmask,
    "sigprocmask" => sigprocmask,
    "sigpending" => sigpending,
    "sigwait" => sigwait,
    "sigaltstack" => sigaltstack,
    "kill" => kill,
    "__pthread_kill" => pthread_kill_call,
    "darwin_host_abort_begins" => abort_begins,
    "darwin_host_abort_ends" => abort_ends,
    "darwin_host_assert_says" => assert_says,
    "sigemptyset" => sigemptyset,
    "sigfillset" => sigfillset,
    "sigaddset" => sigaddset,
    "sigdelset" => sigdelset,
    "sigismember" => sigismember,
    "pause" => libc::pause,
    "alarm" => libc::alarm,
}
