//! Threads through Mach: list, suspend and resume, registers, facts.
//!
//! Sources: <mach/thread_act.h>, <mach/thread_info.h>; XNU osfmk/kern/thread_act.c (thread_suspend,
//! thread_resume, thread_get_state on a running thread), osfmk/kern/task.c (task_threads: a send
//! right for each thread).

use std::sync::atomic::Ordering;

use super::{
    KERN_FAILURE, KERN_INVALID_ARGUMENT, KERN_SUCCESS, KERN_TERMINATED,
    ports::{Kind, Right},
    states, vm,
};
use crate::host::{
    gate::LinuxContext,
    kernel::{ending::refuse, futex, lock, thread, thread::Thread},
    signals::standing,
};

fn find(name: u32) -> Result<&'static Thread, i32> {
    let mach = lock();
    match mach.ports.kind(name) {
        // SAFETY: records are never unmapped.
        Some(Kind::Thread(thread)) => Ok(unsafe { &**thread }),
        None if mach.ports.id(name).is_some() => Err(KERN_TERMINATED),
        _ => Err(KERN_INVALID_ARGUMENT),
    }
}

/// Finds a thread by its own port or its read port (<mach/thread_act.h>: `thread_read_t`).
fn find_to_read(name: u32) -> Result<&'static Thread, i32> {
    {
        let mach = lock();
        if let Some(Kind::ThreadRead(thread)) = mach.ports.kind(name) {
            // SAFETY: records are never unmapped.
            return Ok(unsafe { &**thread });
        }
    }
    find(name)
}

/// `task_threads`: returns an array in fresh memory with a send right for each thread.
///
/// The caller releases both.
extern "C" fn task_threads(task: u32, list: *mut *mut u32, count: *mut u32) -> i32 {
    let names: Vec<u32> = {
        let mut mach = lock();
        if !mach.is_task(task) {
            return KERN_INVALID_ARGUMENT;
        }
        // SAFETY: records are never unmapped.
        let ports: Vec<u32> = mach.threads.iter().map(|&t| unsafe { (*t).port.load(Ordering::SeqCst) }).collect();
        let ids: Vec<_> = ports.into_iter().filter_map(|name| mach.ports.id(name)).collect();
        ids.into_iter().map(|port| mach.ports.copy_out(port, Right::Send)).collect()
    };
    let array = vm::allocate(names.len() * 4) as *mut u32;
    // SAFETY: fresh memory with room for all; the addresses for results are the program's.
    unsafe {
        std::ptr::copy_nonoverlapping(names.as_ptr(), array, names.len());
        list.write(array);
        count.write(names.len() as u32);
    }
    KERN_SUCCESS
}

extern "C" fn mach_thread_self() -> u32 {
    let mut mach = lock();
    let name = thread::current().port.load(Ordering::SeqCst);
    match mach.ports.id(name) {
        Some(port) => mach.ports.copy_out(port, Right::Send),
        None => 0,
    }
}

/// `pthread_mach_thread_np`: returns the name, without a right.
extern "C" fn pthread_mach_thread_np(thread: *const Thread) -> u32 {
    crate::host::libsystem::held_locks::look_up("pthread_mach_thread_np", thread);
    // SAFETY: the program's pthread_t is a pointer to a record.
    unsafe { (*thread).port.load(Ordering::SeqCst) }
}

extern "C" fn pthread_from_mach_thread_np(name: u32) -> *const Thread {
    find(name).map_or(std::ptr::null(), std::ptr::from_ref)
}

/// `thread_suspend`: counted; returns when the thread is stopped.
extern "C" fn thread_suspend(name: u32) -> i32 {
    let thread = match find_to_read(name) {
        Ok(thread) => thread,
        Err(error) => return error,
    };
    let must_interrupt = {
        let _lock = lock();
        thread.suspended.fetch_add(1, Ordering::SeqCst);
        thread.context.load(Ordering::SeqCst).is_null()
    };
    if must_interrupt {
        standing::interrupt(thread);
    }
    if !std::ptr::eq(thread, thread::current()) {
        standing::wait_until_standing(thread);
    }
    KERN_SUCCESS
}

extern "C" fn thread_resume(name: u32) -> i32 {
    let thread = match find_to_read(name) {
        Ok(thread) => thread,
        Err(error) => return error,
    };
    {
        let _lock = lock();
        if thread.suspended.load(Ordering::SeqCst) <= 0 {
            return KERN_FAILURE;
        }
        thread.suspended.fetch_sub(1, Ordering::SeqCst);
    }
    futex::advance(&thread.changed);
    KERN_SUCCESS
}

/// Runs `body` with a thread's context. Not for the calling thread.
///
/// A running thread is stopped meanwhile, as in XNU (thread_get_state → thread_hold and
/// thread_stop).
fn with_context<R>(name: u32, body: impl FnOnce(&Thread, &mut LinuxContext) -> R) -> Result<R, i32> {
    let thread = find_to_read(name)?;
    if std::ptr::eq(thread, thread::current()) {
        return Err(KERN_INVALID_ARGUMENT);
    }
    let suspended = thread_suspend(name);
    if suspended != KERN_SUCCESS {
        return Err(suspended);
    }
    let context = thread.context.load(Ordering::SeqCst);
    let result = if context.is_null() {
        Err(KERN_TERMINATED)
    } else {
        // SAFETY: the thread is stopped, and its context is in its handler's frame.
        Ok(body(thread, unsafe { &mut *context }))
    };
    thread_resume(name);
    result
}

extern "C" fn thread_get_state(name: u32, flavor: i32, state: *mut u8, count: *mut u32) -> i32 {
    if !states::known(flavor) {
        refuse!("thread_get_state of flavor {}", states::name(flavor));
    }
    let own = find(name).is_ok_and(|thread| std::ptr::eq(thread, thread::current()));
    let state_of = || {
        if own {
            return Ok(Some(standing::own_state(thread::current(), flavor)));
        }
        with_context(name, |thread, context| states::get(thread, context, flavor))
    };
    let bytes = match state_of() {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return KERN_INVALID_ARGUMENT,
        Err(error) => return error,
    };
    // SAFETY: the program gave the addresses, and room for `count` words.
    unsafe {
        let room = count.read() as usize * 4;
        if room < bytes.len() {
            return KERN_INVALID_ARGUMENT;
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), state, bytes.len());
        count.write((bytes.len() / 4) as u32);
    }
    KERN_SUCCESS
}

extern "C" fn thread_set_state(name: u32, flavor: i32, state: *const u8, count: u32) -> i32 {
    if !states::known(flavor) {
        refuse!("thread_set_state of flavor {}", states::name(flavor));
    }
    if let Err(error) = find(name) {
        return error;
    }
    // SAFETY: the program gave `count` words.
    let bytes = unsafe { std::slice::from_raw_parts(state, count as usize * 4) }.to_vec();
    let set = with_context(name, |thread, context| {
        if !matches!(
            crate::host::gate::place(thread, crate::host::gate::pc(context)),
            crate::host::gate::Place::Program
        ) {
            refuse!("thread_set_state of a thread that is in a system call");
        }
        states::set(context, flavor, &bytes)
    });
    match set {
        Ok(true) => KERN_SUCCESS,
        Ok(false) => KERN_INVALID_ARGUMENT,
        Err(error) => error,
    }
}

/// Returns a thread's user and system time in nanoseconds, and whether it is on a CPU or ready.
///
/// Source: `/proc/self/task/N/stat`.
fn times(thread: &Thread) -> (u64, u64, bool) {
    use std::fmt::Write;
    struct Path([u8; 64], usize);
    impl Write for Path {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0[self.1..self.1 + text.len()].copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut path = Path([0; 64], 0);
    let _ = write!(path, "/proc/self/task/{}/stat", thread.tid.load(Ordering::SeqCst));
    let mut text = [0u8; 512];
    // SAFETY: this function's own descriptor and a local buffer; errno is restored.
    let length = unsafe {
        let errno = *libc::__errno_location();
        let file = libc::open(path.0.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        let length = libc::read(file, text.as_mut_ptr().cast(), text.len());
        libc::close(file);
        *libc::__errno_location() = errno;
        length.max(0) as usize
    };
    // After the name in parentheses: state, then fields; the 12th and 13th are utime and stime in
    // 1/100 s.
    let text = std::str::from_utf8(&text[..length]).unwrap_or("");
    let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let running = fields.next() == Some("R");
    let mut ticks = || fields.next().and_then(|f| f.parse::<u64>().ok()).unwrap_or(0) * 10_000_000;
    for _ in 0..10 {
        ticks();
    }
    (ticks(), ticks(), running)
}

/// TH_STATE_*: running 1, stopped 2, waiting 3.
fn run_state(thread: &Thread, running: bool) -> i32 {
    if thread.suspended.load(Ordering::SeqCst) > 0 {
        2
    } else if running {
        1
    } else {
        3
    }
}

const THREAD_BASIC_INFO: i32 = 3;
const THREAD_IDENTIFIER_INFO: i32 = 4;
const THREAD_EXTENDED_INFO: i32 = 5;

/// `darwin_host_signal_mask`: returns a thread's blocked signals.
///
/// macOS doesn't expose them to other threads.
pub(crate) extern "C" fn signal_mask(name: u32) -> u32 {
    find_to_read(name).map_or(0, |thread| thread.blocked.load(Ordering::SeqCst))
}

extern "C" fn thread_info(name: u32, flavor: i32, info: *mut u8, count: *mut u32) -> i32 {
    let thread = match find_to_read(name) {
        Ok(thread) => thread,
        Err(error) => return error,
    };
    let mut bytes: Vec<u8> = Vec::new();
    let mut words = |words: &[i32]| words.iter().for_each(|w| bytes.extend_from_slice(&w.to_le_bytes()));
    match flavor {
        THREAD_BASIC_INFO => {
            let (user, system, running) = times(thread);
            let time = |ns: u64| [(ns / 1_000_000_000) as i32, (ns % 1_000_000_000 / 1000) as i32];
            words(&time(user));
            words(&time(system));
            // cpu_usage; policy POLICY_TIMESHARE 1; run state; flags; suspend count; sleep time.
            let suspended = thread.suspended.load(Ordering::SeqCst);
            words(&[if running { 1000 } else { 0 }, 1, run_state(thread, running), 0, suspended, 0]);
        }
        THREAD_IDENTIFIER_INFO => {
            // thread_handle is the thread's TSD base in user space, dispatch_qaddr the address of
            // its queue's slot there.
            bytes.extend_from_slice(&thread.unique_id.load(Ordering::SeqCst).to_le_bytes());
            bytes.extend_from_slice(&(thread.specific.as_ptr() as u64).to_le_bytes());
            bytes.extend_from_slice(&(thread.queue.as_ptr() as u64).to_le_bytes());
        }
        THREAD_EXTENDED_INFO => {
            let (user, system, running) = times(thread);
            bytes.extend_from_slice(&user.to_le_bytes());
            bytes.extend_from_slice(&system.to_le_bytes());
            let state: [i32; 8] = [if running { 1000 } else { 0 }, 1, run_state(thread, running), 0, 0, 31, 31, 63];
            for w in &state {
                bytes.extend_from_slice(&w.to_le_bytes());
            }
            bytes.extend_from_slice(&thread.name);
        }
        other => refuse!("thread_info of flavor {other}: only basic (3), identifier (4), extended (5)"),
    }
    // SAFETY: the program gave the addresses, and room for `count` words.
    unsafe {
        if (count.read() as usize) < bytes.len() / 4 {
            return KERN_INVALID_ARGUMENT;
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), info, bytes.len());
        count.write((bytes.len() / 4) as u32);
    }
    KERN_SUCCESS
}

/// `thread_abort` ends a thread's wait; here only the awaited event can.
extern "C" fn thread_abort(_name: u32) -> i32 {
    refuse!("thread_abort")
}

/// `thread_abort_safely`: does nothing for a thread in its own code.
///
/// Source: <mach/thread_act.h>; XNU osfmk/kern/thread_act.c.
///
/// Here a thread in a call is always "not at a safe point", which is KERN_FAILURE.
extern "C" fn thread_abort_safely(name: u32) -> i32 {
    let in_program = with_context(name, |thread, context| {
        matches!(crate::host::gate::place(thread, crate::host::gate::pc(context)), crate::host::gate::Place::Program)
    });
    match in_program {
        Ok(true) => KERN_SUCCESS,
        Ok(false) => KERN_FAILURE,
        Err(error) => error,
    }
}

extern "C" fn thread_terminate(_name: u32) -> i32 {
    refuse!("thread_terminate")
}

/// `thread_policy_set`: no effect, because Linux schedules.
extern "C" fn thread_policy_set(_name: u32, _flavor: i32, _policy: *const i32, _count: u32) -> i32 {
    KERN_SUCCESS
}

crate::host::libsystem::exports! {
    "task_threads" => task_threads,
    "mach_thread_self" => mach_thread_self,
    "pthread_mach_thread_np" => pthread_mach_thread_np,
    "pthread_from_mach_thread_np" => pthread_from_mach_thread_np,
    "thread_suspend" => thread_suspend,
    "thread_resume" => thread_resume,
    "thread_get_state" => thread_get_state,
    "thread_set_state" => thread_set_state,
    "thread_info" => thread_info,
    "thread_abort" => thread_abort,
    "thread_abort_safely" => thread_abort_safely,
    "thread_terminate" => thread_terminate,
    "thread_policy_set" => thread_policy_set,
}
