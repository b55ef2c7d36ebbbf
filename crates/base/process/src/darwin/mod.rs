//! macOS, iOS and their kin.
//!
//! The kernel is asked through libSystem: raw system calls are not stable on these systems. Of libSystem only what enters the
//! kernel at once is called at crash time (Mach traps and MIG's stubs of them, `pwrite` and its like), never what locks or
//! allocates. Layouts and numbers are those of Apple's headers, named where they stand; behaviour is XNU's.

pub(crate) mod alternate_stack;
pub mod context;
pub mod deadline;
pub mod exception_messages;
pub mod exception_ports;
pub(crate) mod files;
pub(crate) mod identity;
pub mod images;
pub mod interrupted_thread;
pub(crate) mod kernel_copy;
pub mod memory_use;
pub mod pointers;
pub mod process;
pub mod signals;
pub mod syscall;
pub mod thread_stacks;
pub mod threads;
