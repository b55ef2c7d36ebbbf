//! Linux-specific state for crash time: stopping, listing and tracing threads, stacks.

use coroner_process::abort_message::AbortMessage;
use coroner_process::memory_tags::MemoryTags;
use coroner_process::stack::Stack;
use coroner_process::stop_the_world::ThreadStopper;
use coroner_process::threads::TaskDirectory;
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
    pub tasks: TaskDirectory,
    pub tracer: Tracer,
    pub memory_tags: MemoryTags,
    /// Stack on which the report is written; only the report lock's owner uses it.
    pub stack: Stack,
    /// Stack on which faults of the crash path itself are handled.
    pub fault_stack: Stack,
}
