//! What crash time needs on Linux besides what all systems have: stopping threads, listing and tracing them, stacks.

use coroner_process::abort_message::AbortMessage;
use coroner_process::memory_tags::MemoryTags;
use coroner_process::stack::Stack;
use coroner_process::stop_the_world::ThreadStopper;
use coroner_process::threads::TaskDirectory;
use coroner_process::tracer::Tracer;

use crate::InstallLimits;
use crate::running_handlers::RunningHandlers;

/// See the module.
pub(crate) struct PlatformState {
    pub running_handlers: RunningHandlers,
    /// What was missing at install.
    pub limits: InstallLimits,
    pub abort_message: AbortMessage,
    pub stopper: ThreadStopper,
    pub tasks: TaskDirectory,
    pub tracer: Tracer,
    pub memory_tags: MemoryTags,
    /// Where the report is written; its owner alone uses it.
    pub stack: Stack,
    /// Where faults of the crash path itself are handled.
    pub fault_stack: Stack,
}
