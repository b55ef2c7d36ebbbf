//! The threads of this task as reported by the kernel: ports, ids, names, states, suspension.
//!
//! Sources: <mach/task.h>, <mach/thread_act.h>, <mach/thread_info.h>; XNU osfmk/kern/thread.c and
//! thread_act.c. All functions are messages to the kernel: names come from it, too
//! (`THREAD_EXTENDED_INFO`), and not from libpthread, whose list is protected by a lock that the
//! crashed thread may hold.

use core::sync::atomic::{AtomicU64, Ordering};

use mach2::kern_return::{KERN_SUCCESS, kern_return_t};
use mach2::mach_port::mach_port_deallocate;
use mach2::port::mach_port_t;
use mach2::task::task_threads;
use mach2::thread_act::{thread_resume, thread_suspend};
use mach2::traps::mach_task_self;
use mach2::vm::mach_vm_deallocate;

/// A thread's id, system-wide and never reused until a reboot (`thread_identifier_info.thread_id`).
pub type Tid = u64;

/// Maximum length of a name in the kernel (`MAXTHREADNAMESIZE`).
pub const NAME_LENGTH: usize = 64;

/// A thread's name as the kernel holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadName {
    bytes: [u8; NAME_LENGTH],
}

impl ThreadName {
    /// The empty name.
    pub const EMPTY: ThreadName = ThreadName { bytes: [0; NAME_LENGTH] };

    /// Returns the bytes before the first NUL.
    pub fn as_bytes(&self) -> &[u8] {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_LENGTH);
        self.bytes.get(..length).unwrap_or(&[])
    }
}

/// A thread's scheduling state (`TH_STATE_*` in <mach/thread_info.h>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// On a processor or ready for one.
    Running,
    /// Suspended.
    Stopped,
    /// In an interruptible wait.
    Waiting,
    /// In an uninterruptible wait.
    Uninterruptible,
    /// Halted at a clean point.
    Halted,
}

impl RunState {
    fn from_number(number: i32) -> Option<RunState> {
        Some(match number {
            1 => RunState::Running,
            2 => RunState::Stopped,
            3 => RunState::Waiting,
            4 => RunState::Uninterruptible,
            5 => RunState::Halted,
            _ => return None,
        })
    }
}

/// The kernel's data about a thread, returned by [`facts`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// Thread id.
    pub tid: Tid,
    /// The address of the thread-local slot with its dispatch queue; 0 if it has none.
    pub queue_at: u64,
    /// The address of its specific data (those of `pthread_getspecific`), 8 bytes per key.
    ///
    /// 0 if it has none.
    pub specific: u64,
}

/// Returns the id and the thread-local addresses of a thread; `None` if it has exited.
pub fn facts(thread: mach_port_t) -> Option<Facts> {
    // SAFETY: plain data; all zero is valid.
    let mut info: libc::thread_identifier_info = unsafe { core::mem::zeroed() };
    read(thread, libc::THREAD_IDENTIFIER_INFO, &mut info)?;
    Some(Facts { tid: info.thread_id, queue_at: info.dispatch_qaddr, specific: info.thread_handle })
}

/// A thread's name, state and processor time.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// Thread name; may be empty.
    pub name: ThreadName,
    /// Scheduling state.
    pub state: Option<RunState>,
    /// Nanoseconds of processor time: in user mode, and in the kernel.
    pub cpu_time: (u64, u64),
}

/// Returns a thread's activity; `None` if it has exited.
pub fn activity(thread: mach_port_t) -> Option<Activity> {
    // SAFETY: plain data; all zero is valid.
    let mut info: libc::thread_extended_info = unsafe { core::mem::zeroed() };
    read(thread, libc::THREAD_EXTENDED_INFO, &mut info)?;
    let mut name = ThreadName::EMPTY;
    for (to, from) in name.bytes.iter_mut().zip(info.pth_name) {
        *to = from as u8;
    }
    let cpu_time = (info.pth_user_time, info.pth_system_time);
    Some(Activity { name, state: RunState::from_number(info.pth_run_state), cpu_time })
}

/// Calls `thread_info` with one flavour, whose structure is `T`.
fn read<T>(thread: mach_port_t, flavor: i32, info: &mut T) -> Option<()> {
    let mut count = (size_of::<T>() / 4) as u32;
    // SAFETY: the kernel writes at most `count` words of the structure. Async-signal-safe: one
    // message to the kernel.
    let answer = unsafe { libc::thread_info(thread, flavor as u32, core::ptr::from_mut(info).cast(), &raw mut count) };
    (answer == KERN_SUCCESS).then_some(())
}

/// The threads of this task at one time.
///
/// Each port is a right that is released when this is dropped, and so is the list's memory.
#[derive(Debug)]
pub struct ThreadList {
    list: *mut mach_port_t,
    count: u32,
}

impl ThreadList {
    /// Returns the current threads, oldest first.
    pub fn take() -> Result<ThreadList, kern_return_t> {
        let (mut list, mut count) = (core::ptr::null_mut(), 0);
        // SAFETY: the kernel writes an address and a count. Async-signal-safe: one message to the
        // kernel, which maps memory.
        match unsafe { task_threads(mach_task_self(), &raw mut list, &raw mut count) } {
            KERN_SUCCESS => Ok(ThreadList { list, count }),
            answer => Err(answer),
        }
    }

    /// Returns the threads' ports.
    pub fn ports(&self) -> &[mach_port_t] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: the kernel mapped an array of that length for us alone.
        unsafe { core::slice::from_raw_parts(self.list, self.count as usize) }
    }
}

impl Drop for ThreadList {
    /// Releases the rights and the list.
    ///
    /// The caller resumes threads first, although nothing here locks in user space: a suspended
    /// thread may hold what the kernel's memory calls need.
    fn drop(&mut self) {
        for port in self.ports() {
            release(*port);
        }
        // SAFETY: the kernel mapped it for us, and nobody refers to it any more.
        unsafe { mach_vm_deallocate(mach_task_self(), self.list as u64, u64::from(self.count) * 4) };
    }
}

/// Releases a port's right.
pub fn release(port: mach_port_t) {
    // SAFETY: releases one of our own rights; an invalid name is only an error. Async-signal-safe:
    // a Mach trap.
    unsafe { mach_port_deallocate(mach_task_self(), port) };
}

/// The threads that receive the exceptions of guarded loads, and so recover them; 0 for none.
static RECEIVERS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Sets the threads that receive the task's exceptions.
///
/// A thread that suspended one of them and then made a guarded load that faults would wait forever.
/// [`suspend`], the only way to stop a thread, refuses them from now on, and lists of threads to
/// stop leave them out. Must be called before guarded loads are recovered.
pub fn set_exception_receivers(threads: [Tid; 2]) {
    for (place, tid) in RECEIVERS.iter().zip(threads) {
        place.store(tid, Ordering::Release);
    }
}

/// Whether that thread is one of [`set_exception_receivers`].
fn is_exception_receiver(tid: Tid) -> bool {
    tid != 0 && RECEIVERS.iter().any(|receiver| receiver.load(Ordering::Acquire) == tid)
}

/// A thread of Coroner's that is irrelevant to the app's reports; 0 for none.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Sets a thread that reports and backtraces leave out; 0 for none.
pub fn leave_out(thread: Tid) {
    LEFT_OUT.store(thread, Ordering::Release);
}

/// Whether reports and backtraces leave out that thread.
///
/// It is one of [`set_exception_receivers`], or that of [`leave_out`].
pub fn is_left_out(tid: Tid) -> bool {
    is_exception_receiver(tid) || (tid != 0 && LEFT_OUT.load(Ordering::Acquire) == tid)
}

/// Suspends another thread with these facts; each call is undone by one [`resume`].
///
/// `false` for a thread that has exited, and for one that [`is_left_out`].
pub fn suspend(thread: mach_port_t, facts: &Facts) -> bool {
    !is_left_out(facts.tid) && stop(thread)
}

/// Suspends one of [`set_exception_receivers`].
///
/// Only for the other one, which makes no guarded load meanwhile.
pub fn suspend_other_receiver(thread: mach_port_t) -> bool {
    stop(thread)
}

fn stop(thread: mach_port_t) -> bool {
    // SAFETY: the kernel stops the thread at a boundary of its own. Async-signal-safe: one message
    // to the kernel.
    unsafe { thread_suspend(thread) == KERN_SUCCESS }
}

/// Undoes one [`suspend`].
pub fn resume(thread: mach_port_t) {
    // SAFETY: as in `suspend`.
    unsafe { thread_resume(thread) };
}

/// Whether a suspended thread is in its own code and not in the kernel.
///
/// An interruptible wait is ended for that (`thread_abort_safely`). Only then may its registers be
/// set.
pub fn leave_kernel(thread: mach_port_t) -> bool {
    // SAFETY: ends a wait with the error with which a signal would end it. Async-signal-safe: one
    // message to the kernel.
    unsafe { thread_abort_safely(thread) == KERN_SUCCESS }
}

/// Takes one more right of a port that is already held.
pub fn retain(port: mach_port_t) -> bool {
    // SAFETY: counts a right up. Async-signal-safe: a Mach trap.
    unsafe {
        let send = mach2::port::MACH_PORT_RIGHT_SEND;
        mach2::mach_port::mach_port_mod_refs(mach_task_self(), port, send, 1) == KERN_SUCCESS
    }
}

/// The handle with which to list threads later: not needed on Darwin.
#[derive(Clone, Copy, Debug)]
pub struct TaskList;

impl TaskList {
    /// Does nothing: there is nothing to close.
    pub fn close(self) {}
}

/// Returns the handle for listing threads, and the id of the calling thread, as on Linux.
pub fn list_first(_pid: i32) -> (TaskList, Tid) {
    (TaskList, this_thread())
}

/// Returns the id of the calling thread.
pub fn this_thread() -> Tid {
    let mut tid = 0;
    // SAFETY: writes one word. Async-signal-safe: for the calling thread libpthread reads its own
    // thread structure, without its lock (libpthread, src/pthread.c, `pthread_threadid_np`).
    unsafe { libc::pthread_threadid_np(0, &raw mut tid) };
    tid
}

/// Returns the id of this process.
pub fn process_id() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe (sigaction(2)).
    unsafe { libc::getpid() }
}

/// Returns the id of this process, like [`process_id`]: nothing can deny it on Darwin.
pub fn note_process_id() -> i32 {
    process_id()
}

/// Returns the clock of all crash path deadlines, in nanoseconds; it stops while the system sleeps.
pub fn monotonic_now() -> u64 {
    // SAFETY: no memory is touched but the kernel's common page. Async-signal-safe.
    unsafe { clock_gettime_nsec_np(libc::CLOCK_UPTIME_RAW) }
}

/// Returns nanoseconds since the epoch, UTC.
pub fn wall_now() -> u64 {
    // SAFETY: as above.
    unsafe { clock_gettime_nsec_np(libc::CLOCK_REALTIME) }
}

/// Returns the monotonic clock and nanoseconds since the epoch.
pub fn clocks() -> [u64; 2] {
    [monotonic_now(), wall_now()]
}

unsafe extern "C" {
    /// <mach/thread_act.h>.
    fn thread_abort_safely(thread: mach_port_t) -> kern_return_t;
    /// <time.h>: a clock in nanoseconds; 0 for an unknown one.
    fn clock_gettime_nsec_np(clock: libc::clockid_t) -> u64;
}
