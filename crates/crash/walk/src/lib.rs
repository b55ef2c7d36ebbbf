//! In-process walker: everything except the unwinder itself that is needed to walk this process's
//! own stacks. Crashes, C++ throws and live backtraces walk with it.
//!
//! | part | purpose |
//! |---|---|
//! | [`ImageList`] | the loaded images in a table of its owner: for crash time, and for the warm-up at install |
//! | [`LiveImages`] | the loaded images while the app runs: an immutable list that all threads share until the dynamic linker's list changes |
//! | [`LiveReader`] | memory of a live process: guarded loads if they are recovered, otherwise copies by the kernel |
//! | [`StackReader`] | the calling thread's own stack by plain loads, all other memory by a [`LiveReader`] |
//! | [`loaded_image`] | finds the loaded image that contains an address, in a signal handler |
//! | [`rule_caches`] | caches of unwind rules, one for each walk in progress |
//! | [`stop_thread`] | stops one thread of this process |
//! | [`walker()`] | the unwinder's walker for this architecture, which checks the [registered ranges](RANGES) first |
//!
//! # Requirements
//! The component that recovers guarded loads (the signal handler, the exception port) must register
//! itself with [`fault_handler::set_owner`]. Until then reads are copies by the kernel.
//!
//! # Guarantees
//! No lock, no allocation, no panic; memory comes from `mmap` when more walks are in progress at
//! once, or more image lists alive, than ever before. Functions that are safe in a signal handler
//! are documented as such.
//!
//! # Limits
//! 2,048 images in a list; 512 registered ranges; 16 concurrent walks with a rule cache.
#![no_std]
#![deny(missing_docs)]
#![cfg(all(
    any(target_os = "linux", target_os = "android", target_os = "macos", target_os = "ios", target_os = "visionos"),
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64",
    target_endian = "little"
))]

#[cfg(target_vendor = "apple")]
use darwin as os;
#[cfg(any(target_os = "linux", target_os = "android"))]
use linux as os;

#[cfg(target_vendor = "apple")]
mod darwin;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux;

mod current_registers;
pub mod fault_handler;
mod image_list;
mod jit_code;
mod live_images;
mod live_reader;
pub mod loaded_image;
mod registered_ranges;
pub mod rule_caches;
mod stack_bounds;
mod stack_reader;
pub mod stop_thread;
pub mod swift_tasks;
mod walker;

pub use current_registers::{current_registers, store_current_registers};
pub use image_list::ImageList;
pub use jit_code::JitCode;
pub use live_images::{LiveImages, ticks};
pub use live_reader::LiveReader;
pub use os::unwind_image::unwind_image;
pub use registered_ranges::{MAX_RANGES, RANGES};
pub use stack_bounds::stack_bounds;
pub use stack_reader::{CopiedWindows, StackReader, ThreadStack};
pub use walker::{Native, NativeWalker, WalkImages, authentication_mask, walker};
