//! The integration tests, linked as one program.

#[cfg(target_os = "linux")]
mod live_process;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod minidump;
