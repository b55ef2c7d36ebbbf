//! Machine-level parts of a crash reporter: registers, guarded memory, threads, loaded images.
//!
//! Everything here may run inside a signal handler of a process whose memory is corrupt and whose
//! locks are held: no allocation, no locks, no lazy initialization, no formatting, no panic, and on
//! Linux system calls made directly rather than through the C library (a lazily bound `write` in a
//! signal handler would enter the dynamic linker).
//!
//! Each operating system has a folder that implements the same set of names. `registers` is
//! compiled for every architecture everywhere, since reports and snapshots from one machine are
//! read on another. On targets where no fault is caught (`build.rs`), everything that isn't needed
//! to read reports is omitted.
//!
//! The caller's duties: everything that must exist at crash time (tables, stacks, open descriptors)
//! must be created and touched while the process is healthy, by the functions documented as "not
//! async-signal-safe".
//!
//! Errors are the kernel's error numbers unless a function's documentation describes others.
#![no_std]
#![deny(missing_docs)]
#![allow(clippy::missing_errors_doc)]
#![cfg_attr(miri, allow(dead_code, unused_imports, reason = "what is assembly is not used there"))]

mod address_range;
pub mod directory_owner;
pub mod elf;
pub mod futex_wait;
mod heap_sort;
pub mod identity;
pub mod macho;
pub mod memory;
pub mod registers;
pub mod secure_execution;

pub use address_range::{AddressRange, ImageKind, Segment};
pub use heap_sort::heap_sort;

#[cfg(supported)]
pub mod alternate_stack;
#[cfg(supported)]
mod assembly_routine;
#[cfg(supported)]
pub mod descriptor;
#[cfg(supported)]
mod errno;
pub mod exception_set;
#[cfg(supported)]
mod file;
pub mod file_mirror;
#[cfg(supported)]
pub mod files;
#[cfg(supported)]
pub mod guarded_run;
#[cfg(supported)]
mod image_index;
#[cfg(supported)]
mod mapping;
pub mod path;
mod process_identity;
#[cfg(supported)]
pub mod process_mark;
#[cfg(supported)]
mod processor_fault;
#[cfg(supported)]
pub mod shadow_stack;
pub mod signal_set;
#[cfg(supported)]
pub mod stack;
pub mod symtab;
pub mod trust;

#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
mod linux;
#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
use linux as os;
#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
#[doc(hidden)]
pub use linux::proc_text;
#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
pub use linux::{
    abort_message, context, deadline, images, immediate_exit, memory_tags, memory_use, mounts, process,
    shared_handlers, signal_frame, signals, stop_the_world, syscall, thread_stacks, threads, tracer, vitals,
};

#[cfg(all(supported, target_vendor = "apple"))]
mod darwin;
#[cfg(all(supported, target_vendor = "apple"))]
use darwin as os;
#[cfg(all(supported, target_vendor = "apple"))]
pub use darwin::{
    context, deadline, exception_messages, exception_ports, images, interrupted_thread, memory_use, pointers, process,
    signals, syscall, thread_stacks, threads,
};
