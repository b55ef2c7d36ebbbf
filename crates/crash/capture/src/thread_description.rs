//! A thread's description by its system, without frames.

use coroner_process::futex_wait::FutexWait;
use coroner_process::registers::Registers;
use coroner_process::threads::ThreadName;
use coroner_report::wire::{self, CaptureMethod, NotCaptured, Thread, ThreadFlags, ThreadState};
use coroner_unwind::SwiftAsync;

#[cfg(target_vendor = "apple")]
use crate::darwin::dispatch_queue::QueueName;

/// The system's description of a thread. The default is empty.
#[derive(Default)]
pub(crate) struct Description {
    pub name: Option<ThreadName>,
    pub flags: ThreadFlags,
    pub state: Option<ThreadState>,
    pub syscall: Option<i64>,
    pub futex: Option<FutexWait>,
    #[cfg(target_vendor = "apple")]
    pub queue: Option<QueueName>,
    pub cpu_time: Option<(u64, u64)>,
    pub captured_by: Option<CaptureMethod>,
    pub not_captured: Option<NotCaptured>,
    pub registers: Option<Registers>,
    pub swift_async: SwiftAsync,
    pub port: Option<u32>,
}

impl Description {
    /// Returns the thread in the report's form.
    pub(crate) fn wire(&self, tid: u64) -> Thread<'_> {
        Thread {
            tid,
            name: self.name.as_ref().map(ThreadName::as_bytes).filter(|name| !name.is_empty()),
            flags: self.flags,
            state: self.state,
            syscall: self.syscall,
            futex: self.futex.as_ref(),
            captured_by: self.captured_by,
            not_captured: self.not_captured,
            registers: self.registers.as_ref().map(wire::Registers::from),
            #[cfg(target_vendor = "apple")]
            queue: self.queue.as_ref().map(QueueName::as_bytes),
            cpu_time: self.cpu_time,
            port: self.port,
            ..Thread::default()
        }
    }
}

/// Returns the flags of a thread for which only `is_main` is known.
pub(crate) fn main_flag(is_main: bool) -> ThreadFlags {
    if is_main { ThreadFlags::MAIN } else { ThreadFlags::default() }
}
