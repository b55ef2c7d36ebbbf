//! Threads: create, join, exit, names, stacks.
//!
//! Sources: <pthread.h>; libpthread's pthread.c (stack sizes: 512 KiB, a guard page below; names of
//! 63 bytes). A thread of the program runs on its own stack, not on the one from the host's libc.

use std::{
    ffi::{CStr, c_char},
    mem, ptr,
    sync::atomic::Ordering,
};

use super::{held_locks, specific, sync};
use crate::host::{
    gate::{self, Beginning},
    kernel::{futex, lock, pages, thread, thread::Thread},
    signals::delivery,
};

const DEFAULT_STACK: usize = 512 * 1024;
const EINVAL: i32 = 22;
const ESRCH: i32 = 3;
const EAGAIN: i32 = 35;

/// `pthread_attr_t` (64 bytes): the fields that are needed.
#[repr(C)]
struct Attributes {
    signature: u64,
    stack_size: usize,
    stack: usize,
    detached: i32,
    guard: usize,
}

extern "C" fn attr_init(attributes: *mut Attributes) -> i32 {
    // SAFETY: the program gave the object.
    unsafe {
        attributes.write(Attributes {
            signature: 0x5448_5241,
            stack_size: DEFAULT_STACK,
            stack: 0,
            detached: 1,
            guard: pages::PAGE,
        });
    }
    0
}

extern "C" fn attr_destroy(_attributes: &Attributes) -> i32 {
    0
}

/// `pthread_attr_setstacksize`: the minimum is 8 KiB on x86_64, 16 KiB on arm64.
///
/// Sizes are multiples of a page.
extern "C" fn attr_setstacksize(attributes: &mut Attributes, size: usize) -> i32 {
    if size < if cfg!(target_arch = "aarch64") { 16384 } else { 8192 } || !size.is_multiple_of(pages::PAGE) {
        return EINVAL;
    }
    attributes.stack_size = size;
    0
}

extern "C" fn attr_getstacksize(attributes: &Attributes, size: &mut usize) -> i32 {
    *size = attributes.stack_size;
    0
}

extern "C" fn attr_setguardsize(attributes: &mut Attributes, size: usize) -> i32 {
    attributes.guard = size;
    0
}

extern "C" fn attr_setstack(attributes: &mut Attributes, low: usize, size: usize) -> i32 {
    attributes.stack = low;
    attributes.stack_size = size;
    0
}

/// PTHREAD_CREATE_JOINABLE 1, PTHREAD_CREATE_DETACHED 2.
extern "C" fn attr_setdetachstate(attributes: &mut Attributes, state: i32) -> i32 {
    if !matches!(state, 1 | 2) {
        return EINVAL;
    }
    attributes.detached = state;
    0
}

/// Quality of service and scheduling calls have no effect: Linux schedules.
extern "C" fn accept() -> i32 {
    0
}

extern "C" fn create(to: *mut *mut Thread, attributes: *const Attributes, start: usize, argument: usize) -> i32 {
    // SAFETY: the program gave the attributes, or none.
    let attributes = unsafe { attributes.as_ref() };
    let size = attributes.map_or(DEFAULT_STACK, |a| a.stack_size);
    let thread = Thread::create();
    if let Some(given) = attributes.filter(|a| a.stack != 0) {
        thread.stack_low = given.stack;
        thread.stack_end = given.stack + size;
    } else {
        let guard = pages::round(attributes.map_or(pages::PAGE, |a| a.guard));
        let mapping = pages::map(size + guard) as usize;
        if mapping == 0 {
            return EAGAIN;
        }
        // SAFETY: a fresh mapping.
        unsafe { libc::mprotect(mapping as *mut libc::c_void, guard, libc::PROT_NONE) };
        thread.stack_mapping = (mapping, pages::round(size + guard));
        thread.guard = mapping;
        thread.stack_low = mapping + guard;
        thread.stack_end = mapping + guard + pages::round(size);
    }
    thread.start = start;
    thread.argument = argument;
    thread.detached.store(u32::from(attributes.is_some_and(|a| a.detached == 2)), Ordering::SeqCst);
    thread.blocked.store(thread::current().blocked.load(Ordering::SeqCst), Ordering::SeqCst);
    let thread = ptr::from_mut(thread);
    // SAFETY: the host's thread gets a small libc stack; the record outlives it.
    unsafe {
        to.write(thread);
        let mut host: libc::pthread_attr_t = mem::zeroed();
        libc::pthread_attr_init(&raw mut host);
        libc::pthread_attr_setstacksize(&raw mut host, 256 * 1024);
        libc::pthread_attr_setdetachstate(&raw mut host, libc::PTHREAD_CREATE_DETACHED);
        let mut id = 0;
        let error = libc::pthread_create(&raw mut id, &raw const host, run, thread.cast());
        libc::pthread_attr_destroy(&raw mut host);
        if error != 0 {
            return EAGAIN;
        }
        // The thread adds itself to the task's list, after which it can be suspended.
        while (*thread).changed.load(Ordering::SeqCst) == 0 {
            futex::wait(&(*thread).changed, 0, None);
        }
    }
    0
}

extern "C" fn run(argument: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the record that `create` made.
    let thread = unsafe { &mut *argument.cast::<Thread>() };
    thread.adopt();
    lock().add_thread(thread);
    futex::advance(&thread.changed);
    delivery::set_mask(thread, thread.blocked.load(Ordering::SeqCst));
    // SAFETY: the program's function, on the stack created for it.
    let result = unsafe { gate::enter(Beginning::Thread, thread.start, thread.stack_end, [thread.argument, 0, 0, 0]) };
    thread.result.store(result, Ordering::SeqCst);
    thread.gate_reset();
    // Destructors are the program's code, too: they run on its stack.
    // SAFETY: the stack is unused again.
    unsafe { gate::enter(Beginning::Host, destructors as *const () as usize, thread.stack_end, [0; 4]) };
    end(thread);
    ptr::null_mut()
}

extern "C" fn destructors() {
    specific::run_destructors();
}

/// Ends the program's part of the thread.
fn end(thread: &mut Thread) {
    let mask = crate::host::kernel::lock::block_all_signals();
    let _ = mask; // the thread ends with its signals blocked
    let pointer = ptr::from_mut(thread);
    lock().remove_thread(pointer);
    let disable = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: plain system call; nothing runs on the signal stack.
    unsafe { libc::sigaltstack(&raw const disable, ptr::null_mut()) };
    thread.release_memory();
    gate::set_thread(ptr::null_mut());
    thread.ended.store(1, Ordering::SeqCst);
    futex::wake(&thread.ended, i32::MAX);
    futex::advance(&thread.changed);
}

extern "C" fn exit(result: usize) -> ! {
    let thread = thread::current();
    thread.result.store(result, Ordering::SeqCst);
    // SAFETY: every thread's program code is entered through the gate, at the top of its stack.
    unsafe { gate::leave(gate::base_record(thread.stack_end), result) }
}

extern "C" fn join(thread: *const Thread, result: *mut usize) -> i32 {
    // SAFETY: the program's pthread_t is a pointer to a record.
    let thread = unsafe { &*thread };
    if ptr::eq(thread, thread::current()) {
        return 11; // EDEADLK
    }
    if thread.detached.swap(1, Ordering::SeqCst) != 0 {
        return EINVAL;
    }
    // libpthread's src/pthread_cancelable.c, `_pthread_joiner_wait`: the word is the port of the
    // thread to join, until it ends.
    let gate = &thread.exit_gate;
    gate.store(thread.port.load(Ordering::SeqCst), Ordering::SeqCst);
    let call = [sync::UNFAIR, gate.as_ptr() as u64, gate.load(Ordering::SeqCst).into(), 0];
    while thread.ended.load(Ordering::SeqCst) == 0 {
        thread::current().in_call(sync::ULOCK_WAIT, &call, || futex::wait(&thread.ended, 0, None));
    }
    gate.store(u32::MAX, Ordering::SeqCst);
    if !result.is_null() {
        // SAFETY: the program gave the address.
        unsafe { result.write(thread.result.load(Ordering::SeqCst)) };
    }
    0
}

extern "C" fn detach(thread: &Thread) -> i32 {
    if thread.detached.swap(1, Ordering::SeqCst) != 0 { EINVAL } else { 0 }
}

extern "C" fn this() -> *const Thread {
    thread::current()
}

extern "C" fn equal(a: usize, b: usize) -> i32 {
    i32::from(a == b)
}

extern "C" fn main_np() -> i32 {
    // SAFETY: no preconditions.
    i32::from(thread::current().tid.load(Ordering::Relaxed) == unsafe { libc::getpid() })
}

/// `pthread_setname_np` names the calling thread.
extern "C" fn setname(name: *const c_char) -> i32 {
    // SAFETY: the program gave a string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    if name.len() > 63 {
        return 63; // ENAMETOOLONG
    }
    let thread = thread::current();
    thread.name = [0; 64];
    thread.name[..name.len()].copy_from_slice(name);
    0
}

extern "C" fn getname(thread: &Thread, to: *mut c_char, size: usize) -> i32 {
    held_locks::look_up("pthread_getname_np", thread);
    if size == 0 {
        return EINVAL;
    }
    // SAFETY: the program gave room for `size` bytes.
    unsafe {
        ptr::copy_nonoverlapping(thread.name.as_ptr().cast(), to, size.min(64));
        to.add(size.min(64) - 1).write(0);
    }
    0
}

extern "C" fn threadid(thread: *const Thread, id: *mut u64) -> i32 {
    held_locks::look_up("pthread_threadid_np", thread);
    // SAFETY: a record or null for the caller; the program gave the address.
    unsafe {
        let thread = if thread.is_null() { thread::current() } else { &*thread };
        if thread.ended.load(Ordering::SeqCst) != 0 {
            return ESRCH;
        }
        id.write(thread.unique_id.load(Ordering::SeqCst));
    }
    0
}

/// Returns the address above the stack.
extern "C" fn stackaddr(thread: &Thread) -> usize {
    thread.stack_end
}

extern "C" fn stacksize(thread: &Thread) -> usize {
    thread.stack_end - thread.stack_low
}

super::exports! {
    "pthread_attr_init" => attr_init,
    "pthread_attr_destroy" => attr_destroy,
    "pthread_attr_setstacksize" => attr_setstacksize,
    "pthread_attr_getstacksize" => attr_getstacksize,
    "pthread_attr_setguardsize" => attr_setguardsize,
    "pthread_attr_setstack" => attr_setstack,
    "pthread_attr_setdetachstate" => attr_setdetachstate,
    "pthread_attr_set_qos_class_np" => accept,
    "pthread_set_qos_class_self_np" => accept,
    "pthread_create" => create,
    "pthread_exit" => exit,
    "pthread_join" => join,
    "pthread_detach" => detach,
    "pthread_self" => this,
    "pthread_equal" => equal,
    "pthread_main_np" => main_np,
    "pthread_setname_np" => setname,
    "pthread_getname_np" => getname,
    "pthread_threadid_np" => threadid,
    "pthread_get_stackaddr_np" => stackaddr,
    "pthread_get_stacksize_np" => stacksize,
    "sched_yield" => libc::sched_yield,
}
