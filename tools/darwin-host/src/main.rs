//! Runs a Mach-O program on Linux: `darwin-host [--libraries FOLDER] [--launcher PROGRAM] PROGRAM [ARGUMENT…]`.
//!
//! The program's segments are mapped, its imports bound to a libSystem that stands in this crate, and its code runs on
//! this CPU: x86_64 programs in the x86_64 build of this crate, arm64 programs in the arm64 build, which needs
//! `qemu-aarch64-static` on another machine. It is a test instrument: right before fast, and an import, a flavour or a
//! message that it does not know ends the program with its name. `README.md` lists what there is.
//!
//! | module | stands for |
//! |---|---|
//! | [`kernel`] | what every other module stands on: the one lock, memory, threads, endings, the loud refusal |
//! | [`gate`] | the boundaries between the program's code and ours: calls in, calls out, registers on both sides |
//! | [`loader`] | dyld |
//! | [`libsystem`] | the functions that programs import |
//! | [`signals`] | BSD signals: numbers, layouts, delivery, return |
//! | [`mach`] | ports, messages, exceptions, threads and memory as Mach shows them |
//!
//! Sources: Apple's headers (those in the `ziglang` package) for layouts and numbers, XNU's source files, by name, for
//! behaviour. Elsewhere than on 64-bit Linux with glibc this program only says that it can't run.

// Memory of known alignment is laid out by address throughout; what of it isn't aligned is read and written unaligned.
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
