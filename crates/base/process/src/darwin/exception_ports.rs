//! The task's exception ports: taking them, returning them, and passing exceptions on.
//!
//! Sources: <mach/exception_types.h>, <mach/task.h>; XNU osfmk/kern/ipc_tt.c (set, get) and
//! exception.c (which handler is asked, and in which form).

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use mach2::kern_return::{KERN_FAILURE, KERN_INVALID_ARGUMENT, KERN_SUCCESS, kern_return_t};
use mach2::mach_port::{
    mach_port_allocate, mach_port_deallocate, mach_port_insert_right, mach_port_mod_refs, mach_port_set_attributes,
};
use mach2::port::mach_port_t;
use mach2::task::{task_get_exception_ports, task_set_exception_ports};
use mach2::thread_act::{thread_get_state, thread_set_exception_ports, thread_set_state};
use mach2::traps::mach_task_self;

use super::exception_messages::{self, Form, Request, STATE, State};

/// `EXC_TYPES_COUNT`.
const TYPES: usize = 14;
/// The requested behaviours, in order of preference, both with 64-bit codes.
///
/// `EXCEPTION_IDENTITY_PROTECTED` (macOS 12 and later) is a message with the thread's id and a
/// token of the task, `EXCEPTION_DEFAULT` is one with their ports. A system that enforces
/// protection kills a process that requests the unprotected one (XNU osfmk/kern/ipc_tt.c,
/// `set_exception_behavior_violation`); an earlier one answers the protected one with
/// `KERN_INVALID_ARGUMENT`.
const BEHAVIORS: [i32; 2] = [4 | MACH_EXCEPTION_CODES, DEFAULT];
/// `EXCEPTION_DEFAULT | MACH_EXCEPTION_CODES`.
const DEFAULT: i32 = 1 | MACH_EXCEPTION_CODES;
/// `MACH_EXCEPTION_CODES`.
const MACH_EXCEPTION_CODES: i32 = i32::MIN;
/// The flags of a behaviour.
///
/// `MACH_EXCEPTION_CODES`, `MACH_EXCEPTION_ERRORS`, `MACH_EXCEPTION_BACKTRACE_PREFERRED`.
const FLAGS: i32 = 0xe000_0000_u32 as i32;
/// `THREAD_STATE_NONE`.
const NO_STATE: i32 = if cfg!(target_arch = "x86_64") { 13 } else { 5 };

/// An exception's earlier handler. A send right is held for as long as Coroner is installed.
#[derive(Debug)]
struct Before {
    port: AtomicU32,
    behavior: AtomicI32,
    flavor: AtomicI32,
}

/// The earlier holders of the task's exception ports, and which ports are Coroner's.
#[derive(Debug)]
pub struct Ports {
    mask: u32,
    before: [Before; TYPES],
}

/// An exception's handler, as returned by the kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Handler {
    port: mach_port_t,
    behavior: i32,
    flavor: i32,
}

/// Returns the current handler of an exception.
///
/// The caller releases its send right (0: none).
fn handler_of(exception: usize) -> Handler {
    let (mut masks, mut ports) = ([0_u32; TYPES], [0_u32; TYPES]);
    let (mut behaviors, mut flavors) = ([0_i32; TYPES], [0_i32; TYPES]);
    let mut count = TYPES as u32;
    // SAFETY: the kernel writes at most `count` entries of each array. Async-signal-safe: one
    // message to the kernel.
    let answer = unsafe {
        task_get_exception_ports(
            mach_task_self(),
            1 << exception,
            masks.as_mut_ptr(),
            &raw mut count,
            ports.as_mut_ptr(),
            behaviors.as_mut_ptr(),
            flavors.as_mut_ptr(),
        )
    };
    if answer != KERN_SUCCESS || count == 0 {
        return Handler::default();
    }
    Handler { port: ports[0], behavior: behaviors[0], flavor: flavors[0] }
}

/// Returns the name of the port that one of the task's exceptions is sent to; 0 if there is none.
pub fn port_of(exception: usize) -> mach_port_t {
    let handler = handler_of(exception);
    release(handler.port);
    handler.port
}

fn release(port: mach_port_t) {
    if port != 0 {
        // SAFETY: releases one right. Async-signal-safe: a Mach trap.
        unsafe { mach_port_deallocate(mach_task_self(), port) };
    }
}

/// Creates a port with a receive and a send right, and the longest possible queue.
///
/// Not async-signal-safe.
pub fn make_port() -> Result<mach_port_t, kern_return_t> {
    /// `MACH_PORT_RIGHT_RECEIVE`, `MACH_MSG_TYPE_MAKE_SEND`, `MACH_PORT_LIMITS_INFO`,
    /// `MACH_PORT_QLIMIT_MAX`.
    const RECEIVE: u32 = 1;
    const MAKE_SEND: u32 = 20;
    const LIMITS: i32 = 1;
    const MAX_LENGTH: i32 = 1024;
    let mut port = 0;
    let mut limit = MAX_LENGTH;
    // SAFETY: a new port of ours; the kernel writes its name and reads one word.
    unsafe {
        let task = mach_task_self();
        match mach_port_allocate(task, RECEIVE, &raw mut port) {
            KERN_SUCCESS => {}
            answer => return Err(answer),
        }
        match mach_port_insert_right(task, port, port, MAKE_SEND) {
            KERN_SUCCESS => {}
            answer => {
                destroy_port(port);
                return Err(answer);
            }
        }
        // A shorter queue only makes senders wait.
        mach_port_set_attributes(task, port, LIMITS, &raw mut limit, 1);
    }
    Ok(port)
}

/// Releases the receive and the send right.
pub fn destroy_port(port: mach_port_t) {
    /// `MACH_PORT_RIGHT_SEND` and `MACH_PORT_RIGHT_RECEIVE`.
    const SEND: u32 = 0;
    const RECEIVE: u32 = 1;
    // SAFETY: our own rights. The send right first: it is a dead name once the port is gone, which
    // is no longer a send right.
    unsafe {
        mach_port_mod_refs(mach_task_self(), port, SEND, -1);
        mach_port_mod_refs(mach_task_self(), port, RECEIVE, -1);
    }
}

/// Sets the handler of exceptions.
fn set(mask: u32, handler: Handler) -> kern_return_t {
    // SAFETY: the port is ours or one that the kernel handed out. Async-signal-safe: one message to
    // the kernel.
    unsafe { task_set_exception_ports(mach_task_self(), mask, handler.port, handler.behavior, handler.flavor) }
}

/// Sends the exceptions of one thread to `port`, before the task's ports are asked.
///
/// Not async-signal-safe.
pub fn set_of_thread(thread: mach_port_t, mask: u32, port: mach_port_t) -> kern_return_t {
    // SAFETY: the thread and the port are ours.
    first_known(|behavior| unsafe { thread_set_exception_ports(thread, mask, port, behavior, NO_STATE) }).0
}

/// Calls `ask` with each behaviour until the kernel knows one.
///
/// Returns the answer and the behaviour.
fn first_known(ask: impl Fn(i32) -> kern_return_t) -> (kern_return_t, i32) {
    let mut last = (KERN_FAILURE, DEFAULT);
    for behavior in BEHAVIORS {
        last = (ask(behavior), behavior);
        if last.0 != KERN_INVALID_ARGUMENT {
            break;
        }
    }
    last
}

impl Ports {
    /// Creates the value with no port taken.
    pub const fn new(mask: u32) -> Self {
        Ports {
            mask,
            before: [const { Before { port: AtomicU32::new(0), behavior: AtomicI32::new(0), flavor: AtomicI32::new(0) } };
                TYPES],
        }
    }

    /// Returns the exceptions that are Coroner's.
    fn exceptions(&self) -> impl Iterator<Item = (usize, &Before)> {
        self.before.iter().enumerate().filter(|(exception, _)| self.mask & (1 << exception) != 0)
    }

    /// Records who holds the ports, and takes them (not async-signal-safe).
    ///
    /// # Errors
    /// The kernel's error; then nothing is changed.
    pub fn take(&self, ours: mach_port_t) -> Result<(), kern_return_t> {
        for (exception, before) in self.exceptions() {
            let now = handler_of(exception);
            before.behavior.store(now.behavior, Ordering::Relaxed);
            before.flavor.store(now.flavor, Ordering::Relaxed);
            release(before.port.swap(now.port, Ordering::AcqRel));
        }
        self.take_again(ours)
    }

    /// Takes the ports again.
    pub fn take_again(&self, ours: mach_port_t) -> Result<(), kern_return_t> {
        if self.mask == 0 {
            return Ok(());
        }
        match first_known(|behavior| set(self.mask, Handler { port: ours, behavior, flavor: NO_STATE })).0 {
            KERN_SUCCESS => Ok(()),
            answer => Err(answer),
        }
    }

    /// Returns the ports that are still Coroner's; a later holder keeps its port.
    pub fn give_back(&self, ours: mach_port_t) {
        for (exception, before) in self.exceptions() {
            let now = handler_of(exception);
            release(now.port);
            if now.port == ours {
                let (behavior, flavor) =
                    (before.behavior.load(Ordering::Relaxed), before.flavor.load(Ordering::Relaxed));
                let port = before.port.load(Ordering::Acquire);
                // A missing handler has no behaviour either, but the kernel requires a valid one.
                let behavior = if behavior & !FLAGS == 0 { DEFAULT } else { behavior };
                set(1 << exception, Handler { port, behavior, flavor });
            }
        }
    }

    /// Clears the earlier holders, releasing their rights (not async-signal-safe).
    pub fn forget(&self) {
        for before in &self.before {
            release(before.port.swap(0, Ordering::AcqRel));
        }
    }

    /// Whether the port of an exception had an earlier holder.
    pub fn covered(&self, exception: i32) -> bool {
        let before = usize::try_from(exception).ok().and_then(|exception| self.before.get(exception));
        before.is_some_and(|before| before.port.load(Ordering::Acquire) != 0)
    }

    /// Returns an exception's earlier holder and the form that it requested.
    fn form(&self, exception: i32) -> Option<(mach_port_t, Form)> {
        let before = usize::try_from(exception).ok().and_then(|exception| self.before.get(exception))?;
        let (port, behavior) = (before.port.load(Ordering::Acquire), before.behavior.load(Ordering::Relaxed));
        let form = Form {
            behavior: behavior & !FLAGS,
            wide: behavior & MACH_EXCEPTION_CODES != 0,
            flavor: before.flavor.load(Ordering::Relaxed),
        };
        (port != 0).then_some((port, form))
    }

    /// Whether only the kernel can ask the earlier holder.
    ///
    /// This is the case if the holder requires ports that may not be sent in messages, or an
    /// unknown form. The thread then has to raise its exception once more, which doesn't work for
    /// exceptions that leave it after the instruction.
    pub fn only_the_kernel_can_ask(&self, request: &Request) -> bool {
        let Some((_, form)) = self.form(request.exception) else { return false };
        let occurs_again = match request.exception {
            // EXC_BAD_ACCESS, EXC_BAD_INSTRUCTION, EXC_ARITHMETIC.
            1..=3 => true,
            // EXC_BREAKPOINT: an `int3` has been executed.
            6 => cfg!(target_arch = "aarch64"),
            _ => false,
        };
        occurs_again
            && (!(1..=4).contains(&form.behavior) || (request.is_protected() && matches!(form.behavior, 1 | 3)))
    }

    /// Asks the earlier holder, in its own form, and returns its answer.
    ///
    /// `KERN_FAILURE` if there is no holder, it is dead, its form is not known, or the message
    /// can't be sent.
    pub fn ask_before(&self, request: &Request) -> kern_return_t {
        let Some((port, form)) = self.form(request.exception) else { return KERN_FAILURE };
        let can_be_sent = match form.behavior {
            1 | 3 => !request.is_protected(),
            2 => true,
            4 => request.token().is_some(),
            _ => false,
        };
        if !can_be_sent {
            return KERN_FAILURE;
        }
        let with_state = matches!(form.behavior, 2 | 3);
        let mut state = State { bytes: [0; STATE], length: 0 };
        if with_state && !read_state(request.thread, form.flavor, &mut state) {
            return KERN_FAILURE;
        }
        let answer = exception_messages::pass_on(request, port, form, &mut state).unwrap_or(KERN_FAILURE);
        if answer == KERN_SUCCESS && with_state && !write_state(request.thread, form.flavor, &state) {
            return KERN_FAILURE;
        }
        answer
    }
}

fn read_state(thread: mach_port_t, flavor: i32, state: &mut State) -> bool {
    let mut count = (STATE / 4) as u32;
    // SAFETY: the kernel writes at most `count` words. Async-signal-safe: one message to the
    // kernel.
    let answer = unsafe { thread_get_state(thread, flavor, state.bytes.as_mut_ptr().cast(), &raw mut count) };
    state.length = count as usize * 4;
    answer == KERN_SUCCESS
}

fn write_state(thread: mach_port_t, flavor: i32, state: &State) -> bool {
    let count = (state.length / 4) as u32;
    let bytes = state.bytes.as_ptr().cast_mut().cast();
    // SAFETY: the kernel reads `count` words, with which the earlier handler wants the thread to
    // continue. Async-signal-safe: one message to the kernel.
    unsafe { thread_set_state(thread, flavor, bytes, count) == KERN_SUCCESS }
}
