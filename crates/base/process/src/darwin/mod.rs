//! macOS, iOS and related systems.
//!
//! The kernel is called through libSystem: raw system calls are not stable on these systems. At
//! crash time, only those libSystem functions are called that enter the kernel at once (Mach traps
//! and their MIG stubs, `pwrite` and similar functions), never those that lock or allocate. Layouts
//! and numbers are from Apple's headers, named where they are used; behaviour is from XNU.

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
