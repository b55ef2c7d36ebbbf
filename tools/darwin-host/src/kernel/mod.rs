//! What the other modules stand on.
//!
//! Functions here and in [`crate::mach`] and [`crate::signals`] play XNU: they run while any thread of the program may
//! be suspended at any instruction, so they never take one of libc's locks (malloc, stdio). Rust's own collections are
//! fine: the global allocator is [`memory`], which no suspended thread can hold.

pub(crate) mod ending;
pub(crate) mod futex;
pub(crate) mod lock;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod thread;

pub(crate) use lock::lock;
