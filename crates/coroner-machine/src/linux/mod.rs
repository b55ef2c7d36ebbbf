//! Linux and Android.

pub mod context;
mod elf;
pub mod images;
pub(crate) mod memory;
pub mod rendezvous;
pub mod stack;
pub mod syscall;
pub mod threads;
mod touch;
pub mod tracer;
