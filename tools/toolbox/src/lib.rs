//! Code shared by the instruments in `tools/` and `xtask`.
//!
//! It covers foreign tools at pinned versions, child processes with a time limit, and the Android
//! bed.

#[cfg(target_os = "linux")]
pub mod android_bed;
pub mod deadline;
#[cfg(target_os = "linux")]
pub mod system_calls;
pub mod tools;
