//! The threads of this task as the kernel shows them: ports, ids, names, states, and standing still.
//!
//! Sources: <mach/task.h>, <mach/thread_act.h>, <mach/thread_info.h>; XNU osfmk/kern/thread.c and thread_act.c. All of it are
//! messages to the kernel: names come from it, too (`THREAD_EXTENDED_INFO`), and not from libpthread, whose list is behind a
//! lock that the crashed thread may hold.

use core::sync::atomic::{AtomicU64, Ordering};

use mach2::kern_return::{KERN_SUCCESS, kern_return_t};
use mach2::mach_port::mach_port_deallocate;
use mach2::port::mach_port_t;
use mach2::task::task_threads;
use mach2::thread_act::{thread_resume, thread_suspend};
use mach2::traps::mach_task_self;
use mach2::vm::mach_vm_deallocate;

/// A thread's id, system-wide and never used again while the system runs (`thread_identifier_info.thread_id`).
pub type Tid = u64;

/// The longest name that the kernel keeps (`MAXTHREADNAMESIZE`).
pub const NAME_LENGTH: usize = 64;

/// A thread's name as the kernel holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadName {
    bytes: [u8; NAME_LENGTH],
}

impl ThreadName {
    /// No name.
    pub const EMPTY: ThreadName = ThreadName { bytes: [0; NAME_LENGTH] };

    /// The bytes before the first NUL.
    pub fn as_bytes(&self) -> &[u8] {
        let length = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_LENGTH);
        self.bytes.get(..length).unwrap_or(&[])
    }
}

/// What the scheduler says of a thread (`TH_STATE_*` of <mach/thread_info.h>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// On a processor or ready for one.
    Running,
    /// Suspended.
    Stopped,
    /// In a wait that can be ended.
    Waiting,
    /// In a wait that can't.
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

/// What the kernel says of a thread: only [`facts`] makes it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Facts {
    /// Its id.
    pub tid: Tid,
    /// The address of its thread-local place that holds its dispatch queue; 0 where it has none.
    pub queue_at: u64,
    /// Where its specific data (those of `pthread_getspecific`) begin, 8 bytes a key; 0 where it has none.
    pub specific: u64,
}

/// The id and the thread-local places of a thread, or nothing for one that has ended.
pub fn facts(thread: mach_port_t) -> Option<Facts> {
    // SAFETY: plain data; all zero is valid.
    let mut info: libc::thread_identifier_info = unsafe { core::mem::zeroed() };
    read(thread, libc::THREAD_IDENTIFIER_INFO, &mut info)?;
    Some(Facts { tid: info.thread_id, queue_at: info.dispatch_qaddr, specific: info.thread_handle })
}

/// What a thread is called, what it was doing, and for how long it has run.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    /// Its name; empty for none.
    pub name: ThreadName,
    /// What the scheduler says of it.
    pub state: Option<RunState>,
    /// Nanoseconds of processor time: in its own code, and in the kernel for it.
    pub cpu_time: (u64, u64),
}

/// A thread's activity, or nothing for one that has ended.
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

/// `thread_info` of one flavour, whose structure is `T`.
fn read<T>(thread: mach_port_t, flavor: i32, info: &mut T) -> Option<()> {
    let mut count = (size_of::<T>() / 4) as u32;
    // SAFETY: the kernel writes at most `count` words of the structure. Async-signal-safe: one message to the kernel.
    let answer = unsafe { libc::thread_info(thread, flavor as u32, core::ptr::from_mut(info).cast(), &raw mut count) };
    (answer == KERN_SUCCESS).then_some(())
}

/// The threads of this task at one time. Each port is a right that is given back when this is dropped, and the list's memory,
/// too.
#[derive(Debug)]
pub struct ThreadList {
    list: *mut mach_port_t,
    count: u32,
}

impl ThreadList {
    /// The threads that there are now, oldest first.
    pub fn take() -> Result<ThreadList, kern_return_t> {
        let (mut list, mut count) = (core::ptr::null_mut(), 0);
        // SAFETY: the kernel writes an address and a count. Async-signal-safe: one message to the kernel, which maps memory.
        match unsafe { task_threads(mach_task_self(), &raw mut list, &raw mut count) } {
            KERN_SUCCESS => Ok(ThreadList { list, count }),
            answer => Err(answer),
        }
    }

    /// Their ports.
    pub fn ports(&self) -> &[mach_port_t] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: the kernel mapped an array of that length for us alone.
        unsafe { core::slice::from_raw_parts(self.list, self.count as usize) }
    }
}

impl Drop for ThreadList {
    /// Never while threads are suspended that may hold what the kernel's memory calls need: nothing here locks in user
    /// space, but the caller resumes first all the same.
    fn drop(&mut self) {
        for port in self.ports() {
            release(*port);
        }
        // SAFETY: the kernel mapped it for us, and nobody refers to it any more.
        unsafe { mach_vm_deallocate(mach_task_self(), self.list as u64, u64::from(self.count) * 4) };
    }
}

/// Gives a port's right back.
pub fn release(port: mach_port_t) {
    // SAFETY: gives one of our own rights back; a name that is none is only an error. Async-signal-safe: a Mach trap.
    unsafe { mach_port_deallocate(mach_task_self(), port) };
}

/// The threads that receive the exceptions of guarded loads, and so recover them; 0 for none.
static RECEIVERS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Names the threads that receive the task's exceptions: who suspended one of them and then made a guarded load that faults would wait
/// for ever. [`suspend`], the only way in which a thread comes to stand still, refuses them from now on, and all who list threads to stop
/// leave them out. To be called before guarded loads are recovered.
pub fn set_exception_receivers(threads: [Tid; 2]) {
    for (place, tid) in RECEIVERS.iter().zip(threads) {
        place.store(tid, Ordering::Release);
    }
}

/// Whether that thread is one of [`set_exception_receivers`].
fn is_exception_receiver(tid: Tid) -> bool {
    tid != 0 && RECEIVERS.iter().any(|receiver| receiver.load(Ordering::Acquire) == tid)
}

/// A thread of Coroner's that says nothing of the app; 0 for none.
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Names a thread that reports and backtraces leave out; 0 for none.
pub fn leave_out(thread: Tid) {
    LEFT_OUT.store(thread, Ordering::Release);
}

/// Whether reports and backtraces have nothing of that thread: it is one of [`set_exception_receivers`], or that of [`leave_out`].
pub fn is_left_out(tid: Tid) -> bool {
    is_exception_receiver(tid) || (tid != 0 && LEFT_OUT.load(Ordering::Acquire) == tid)
}

/// Suspends another thread, of which the kernel said this; each call is undone by one [`resume`]. False for one that has ended, and for one
/// that [`is_left_out`].
pub fn suspend(thread: mach_port_t, facts: &Facts) -> bool {
    !is_left_out(facts.tid) && stop(thread)
}

/// Suspends one of [`set_exception_receivers`]: for the other one alone, which makes no guarded load meanwhile.
pub fn suspend_other_receiver(thread: mach_port_t) -> bool {
    stop(thread)
}

fn stop(thread: mach_port_t) -> bool {
    // SAFETY: the kernel stops the thread at a boundary of its own. Async-signal-safe: one message to the kernel.
    unsafe { thread_suspend(thread) == KERN_SUCCESS }
}

/// Undoes one [`suspend`].
pub fn resume(thread: mach_port_t) {
    // SAFETY: as in `suspend`.
    unsafe { thread_resume(thread) };
}

/// Whether a suspended thread stands in code of its own and not in the kernel; a wait that can be ended is ended for that
/// (`thread_abort_safely`). Only then may its registers be set.
pub fn leave_kernel(thread: mach_port_t) -> bool {
    // SAFETY: ends a wait with the error that a signal would end it with. Async-signal-safe: one message to the kernel.
    unsafe { thread_abort_safely(thread) == KERN_SUCCESS }
}

/// Takes one more right of a port that is held already.
pub fn retain(port: mach_port_t) -> bool {
    // SAFETY: counts a right up. Async-signal-safe: a Mach trap.
    unsafe {
        let send = mach2::port::MACH_PORT_RIGHT_SEND;
        mach2::mach_port::mach_port_mod_refs(mach_task_self(), port, send, 1) == KERN_SUCCESS
    }
}

/// What an install opens to list threads with later: nothing.
#[derive(Clone, Copy, Debug)]
pub struct TaskList;

impl TaskList {
    /// There is nothing to close.
    pub fn close(self) {}
}

/// As on Linux: what threads are listed with, and the id of the calling thread.
pub fn list_first(_pid: i32) -> (TaskList, Tid) {
    (TaskList, this_thread())
}

/// The id of the calling thread.
pub fn this_thread() -> Tid {
    let mut tid = 0;
    // SAFETY: writes one word. Async-signal-safe: for the calling thread libpthread reads its own thread structure, without
    // its lock (libpthread, src/pthread.c, `pthread_threadid_np`).
    unsafe { libc::pthread_threadid_np(0, &raw mut tid) };
    tid
}

/// The id of this process.
pub fn process_id() -> i32 {
    // SAFETY: no arguments, no effects. Async-signal-safe (sigaction(2)).
    unsafe { libc::getpid() }
}

/// The same: nothing refuses to say it.
pub fn note_process_id() -> i32 {
    process_id()
}

/// Nanoseconds of the clock that every deadline of the crash path goes by; it stands while the system sleeps.
pub fn monotonic_now() -> u64 {
    // SAFETY: no memory is touched but the kernel's common page. Async-signal-safe.
    unsafe { clock_gettime_nsec_np(libc::CLOCK_UPTIME_RAW) }
}

/// Nanoseconds since the epoch, UTC.
pub fn wall_now() -> u64 {
    // SAFETY: as above.
    unsafe { clock_gettime_nsec_np(libc::CLOCK_REALTIME) }
}

/// The monotonic clock and nanoseconds since the epoch.
pub fn clocks() -> [u64; 2] {
    [monotonic_now(), wall_now()]
}

unsafe extern "C" {
    /// <mach/thread_act.h>.
    fn thread_abort_safely(thread: mach_port_t) -> kern_return_t;
    /// <time.h>: a clock in nanoseconds, 0 for one that there is not.
    fn clock_gettime_nsec_np(clock: libc::clockid_t) -> u64;
}
