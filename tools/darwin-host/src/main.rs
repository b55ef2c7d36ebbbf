//! Runs a Mach-O program on Linux.
//!
//! `darwin-host [--libraries FOLDER] [--launcher PROGRAM] PROGRAM [ARGUMENT…]`. See `README.md`.
//!
//! | module | contents |
//! |---|---|
//! | [`kernel`] | what all other modules use: the one lock, memory, threads, exits, refusals |
//! | [`gate`] | the boundaries between the program's code and ours: calls in, calls out, registers on both sides |
//! | [`loader`] | dyld |
//! | [`libsystem`] | the functions that programs import |
//! | [`signals`] | BSD signals: numbers, layouts, delivery, return |
//! | [`mach`] | ports, messages, exceptions, threads and memory through Mach |
//!
//! Sources: Apple's headers (those in the `ziglang` package) for layouts and numbers, XNU's source
//! files, by name, for behavior. On systems other than 64-bit Linux with glibc, this program only
//! prints that it can't run.

// Memory of known alignment is accessed by address throughout; unaligned data is read and written
// unaligned.
#![allow(clippy::cast_ptr_alignment)]

#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod host {
    pub(crate) use crate::{gate, kernel, launch, libsystem, loader, mach, signals};
}

#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod gate;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod kernel;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod launch;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod libsystem;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod loader;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod mach;
#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod signals;

#[cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn main() {
    launch::main()
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn main() {
    eprintln!("darwin-host runs on 64-bit Linux with glibc, on x86_64 and arm64");
    std::process::exit(2);
}
