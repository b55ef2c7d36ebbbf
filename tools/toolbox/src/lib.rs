//! Code that the instruments in `tools/` and `xtask` share: foreign tools at pinned versions, child processes with a time limit,
//! the Android bed.

#[cfg(target_os = "linux")]
pub mod android_bed;
pub mod deadline;
#[cfg(target_os = "linux")]
pub mod system_calls;
pub mod tools;
