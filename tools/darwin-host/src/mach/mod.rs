//! Mach: one task, its ports, its threads.
//!
//! Emulates macOS 11 (Darwin 20): the later behaviors EXCEPTION_IDENTITY_PROTECTED and
//! EXCEPTION_STATE_IDENTITY_PROTECTED are KERN_INVALID_ARGUMENT, as they are there, unless a test
//! requests a later system ([`crate::libsystem::conditions`]), which supports the first. Functions
//! that MIG would turn into messages (such as `task_threads`) are called directly; a raw message to
//! a kernel object's port is refused with its number.

pub(crate) mod exceptions;
pub(crate) mod hosts;
pub(crate) mod messages;
pub(crate) mod ports;
pub(crate) mod semaphores;
pub(crate) mod states;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod vm;

use exceptions::ExceptionActions;
use ports::{Kind, Ports};

use crate::host::kernel::thread::Thread;

/// `kern_return_t` (<mach/kern_return.h>).
pub(crate) const KERN_SUCCESS: i32 = 0;
pub(crate) const KERN_INVALID_ADDRESS: i32 = 1;
pub(crate) const KERN_PROTECTION_FAILURE: i32 = 2;
pub(crate) const KERN_NO_SPACE: i32 = 3;
pub(crate) const KERN_INVALID_ARGUMENT: i32 = 4;
pub(crate) const KERN_FAILURE: i32 = 5;
pub(crate) const KERN_INVALID_NAME: i32 = 15;
pub(crate) const KERN_INVALID_TASK: i32 = 16;
pub(crate) const KERN_INVALID_RIGHT: i32 = 17;
pub(crate) const KERN_INVALID_VALUE: i32 = 18;
pub(crate) const KERN_RIGHT_EXISTS: i32 = 21;
pub(crate) const KERN_TERMINATED: i32 = 37;
pub(crate) const KERN_OPERATION_TIMED_OUT: i32 = 49;

/// Mach's state, protected by the one lock ([`crate::kernel::lock`]).
pub(crate) struct Mach {
    pub(crate) ports: Ports,
    /// The task's threads, oldest first.
    pub(crate) threads: Vec<*mut Thread>,
    pub(crate) exception_actions: ExceptionActions,
    pub(crate) task: u32,
    pub(crate) host: u32,
    /// Read ports, by the address of the thread's record; the task's by 0.
    pub(crate) read_ports: std::collections::BTreeMap<usize, ports::PortId>,
}

impl Mach {
    pub(crate) fn new() -> Self {
        let mut ports = Ports::new();
        let task = ports.kernel_object(Kind::Task);
        let host = ports.kernel_object(Kind::Host);
        Self {
            ports,
            threads: Vec::new(),
            exception_actions: ExceptionActions::default(),
            task,
            host,
            read_ports: Default::default(),
        }
    }

    /// Adds a new thread to the list and creates its port.
    pub(crate) fn add_thread(&mut self, thread: *mut Thread) {
        let port = self.ports.kernel_object(Kind::Thread(thread));
        // SAFETY: records are never unmapped.
        unsafe { (*thread).port.store(port, std::sync::atomic::Ordering::SeqCst) };
        self.threads.push(thread);
    }

    /// Removes an ended thread.
    ///
    /// Its own right is released (libpthread, `__bsdthread_terminate` with its port); other rights
    /// to its port become dead names.
    pub(crate) fn remove_thread(&mut self, thread: *mut Thread) {
        self.threads.retain(|&t| t != thread);
        // SAFETY: records are never unmapped.
        let port = unsafe { (*thread).port.swap(0, std::sync::atomic::Ordering::SeqCst) };
        self.ports.kill(port);
        self.ports.give_back(port);
    }

    /// Returns the read port of a thread or, for null, of the task.
    pub(crate) fn read_port(&mut self, thread: *mut Thread) -> ports::PortId {
        let kind = if thread.is_null() { Kind::TaskRead } else { Kind::ThreadRead(thread) };
        *self.read_ports.entry(thread as usize).or_insert_with(|| self.ports.kernel_port(kind))
    }

    pub(crate) fn is_task(&self, name: u32) -> bool {
        matches!(self.ports.kind(name), Some(Kind::Task))
    }
}
