//! The integration tests, linked as one program. A test that changes the process runs in one of its
//! own.

mod archive;
mod began_anew;
mod memory_tag;
mod names;
#[cfg(feature = "fault-injection")]
mod recrash;
mod register_memory;
mod uninstall_beside_reports;
mod unusual_images;
mod walk_numbers;
