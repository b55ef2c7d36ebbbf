//! Linux-specific state for crash time: stopping, listing and tracing threads, stacks.

use coroner_process::abort_message::AbortMessage;
use coroner_process::memory_tags::MemoryTags;
use coroner_process::stack::Stack;
use coroner_process::stop_the_world::ThreadStopper;
use coroner_process::threads::TaskList;
use coroner_process::tracer::Tracer;

use crate::InstallLimits;
use crate::running_handlers::RunningHandlers;

/// Linux-specific state of an install. See the module.
pub(crate) struct PlatformState {
    pub running_handlers: RunningHandlers,
    /// Limitations found at install.
    pub limits: InstallLimits,
    pub abort_message: AbortMessage,
    pub stopper: ThreadStopper,
    pub memory_tags: MemoryTags,
}

/// Part of an install that uninstall releases, see [`Claimed`](crate::installed::Claimed).
#[derive(Debug)]
pub(crate) struct Resources {
    pub tasks: TaskList,
    pub tracer: Tracer,
    /// Stack on which the report is written.
    pub stack: Stack,
    /// Stack on which faults of the crash path itself are handled.
    pub fault_stack: Stack,
}

impl Resources {
    /// Releases everything (not async-signal-safe).
    pub(crate) fn release(self) {
        self.tasks.close();
        self.tracer.unmap();
        self.stack.unmap();
        self.fault_stack.unmap();
    }
}
