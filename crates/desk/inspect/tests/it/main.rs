//! The integration tests, linked as one program.

#[cfg(target_os = "linux")]
mod live_process;
