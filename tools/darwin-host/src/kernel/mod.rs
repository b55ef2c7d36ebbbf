//! The foundation of the other modules.
//!
//! Functions here and in [`crate::mach`] and [`crate::signals`] act as XNU: they run while any
//! thread of the program may be suspended at any instruction, so they never take one of libc's
//! locks (malloc, stdio). Rust's own collections are allowed: the global allocator is [`memory`],
//! whose lock no suspended thread can hold.

pub(crate) mod ending;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod thread;

pub(crate) use lock::lock;
