//! The Android test bed: a device's bionic, and tools to build programs for it.
//!
//! The device has linker64, libc, libm, libdl and libc++.
//!
//! `shared/android-bed.md` describes the bed. Its archive is beside the checkout
//! (`../shared/android-bed.tar.xz`) or at the path in `CORONER_ANDROID_BED`.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{deadline, tools};

/// A processor, with the names of its target, its compiler in the bed, and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

/// Returns the bed's compiler for a processor, which also links.
pub fn compiler(bed: &Path, arch: Arch) -> PathBuf {
    bed.join(format!("cc-{}", arch.name()))
}

impl Arch {
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    pub fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    pub fn target(self) -> String {
        format!("{}-linux-android", self.name())
    }
}

/// Returns the device's C++ library, with which C++ programs are linked.
pub fn libcxx(bed: &Path, arch: Arch) -> PathBuf {
    bed.join("device").join(arch.name()).join("system/lib64/libc++.so")
}

/// Returns the unpacked bed if its programs can be run, or the reason they can't.
///
/// # Errors
/// The archive can't be unpacked.
pub fn set_up() -> anyhow::Result<Result<PathBuf, String>> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(Err("the device's native programs are for x86_64".to_owned()));
    }
    // Programs name /system/bin/linker64 as their interpreter, so the device's folder is mounted
    // over /system.
    if !nix::unistd::geteuid().is_root() || fs::create_dir_all("/system").is_err() {
        return Ok(Err("only root can mount a device's /system".to_owned()));
    }
    if let Err(error) = on_device(Path::new("/"), &mut Command::new("true")) {
        return Ok(Err(format!("no mount namespace: {error:#}")));
    }
    tools::arm64_emulator()?;
    unpacked_bed()
}

/// Returns the expected path of the bed's archive.
pub fn archive() -> PathBuf {
    std::env::var_os("CORONER_ANDROID_BED")
        .map_or_else(|| tools::workspace_root().join("../shared/android-bed.tar.xz"), PathBuf::from)
}

/// Returns the unpacked bed with the tools to build programs, or the reason it is missing.
///
/// # Errors
/// The archive can't be read or unpacked.
pub fn unpacked_bed() -> anyhow::Result<Result<PathBuf, String>> {
    let archive = archive();
    if !archive.is_file() {
        return Ok(Err(format!("missing Android bed: {}", archive.display())));
    }
    for package in ["clang", "lld"] {
        tools::debian_package(package, if package == "lld" { "ld.lld" } else { package })?;
    }
    tools::debian_package("xz-utils", "xz")?;
    for arch in Arch::ALL {
        tools::rust_target(&arch.target())?;
    }
    let folder = tools::tools_dir().join("android-bed");
    // Other processes may run programs from it: it is unpacked once for each archive, and appears
    // atomically.
    let archive_is = fs::metadata(&archive)?;
    let stamp = format!("{} {:?}", archive_is.len(), archive_is.modified()?);
    if fs::read_to_string(folder.join("archive")).is_ok_and(|of| of == stamp) {
        return Ok(Ok(folder));
    }
    fs::create_dir_all(tools::tools_dir())?;
    let fresh = tempfile::tempdir_in(tools::tools_dir())?;
    let status =
        Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(fresh.path()).status().context("running tar")?;
    ensure!(status.success(), "can't unpack {}: {status}", archive.display());
    fs::write(fresh.path().join("android-bed/archive"), stamp)?;
    if folder.exists() {
        fs::rename(&folder, fresh.path().join("old"))?;
    }
    fs::rename(fresh.path().join("android-bed"), &folder)?;
    Ok(Ok(folder))
}

/// Mounts a folder over `/system`, only for the calling thread and its future processes.
///
/// # Errors
/// The kernel refuses the mount, for example without root.
pub fn enter_device(system: &Path) -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    // Other processes must not see these mounts.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(system), "/system", none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Makes a command run with this folder as `/system`.
pub fn where_system_is(system: &Path, command: &mut Command) {
    let system = system.to_owned();
    let enter = move || enter_device(&system);
    // SAFETY: only system calls, on strings created before the fork.
    unsafe { command.pre_exec(enter) };
}

/// Runs a command with this folder as `/system`.
///
/// # Errors
/// The command can't be started, or fails.
pub fn on_device(system: &Path, command: &mut Command) -> anyhow::Result<()> {
    // The mount point: programs name /system/bin/linker64 as their interpreter.
    fs::create_dir_all("/system").context("making /system")?;
    where_system_is(system, command);
    let status = deadline::status(command).with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed: {status}", command.get_program().display());
    Ok(())
}

/// Returns a `cargo` command for Android programs for this processor.
pub fn cargo(bed: &Path, arch: Arch, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(words).args(["--target", &arch.target()]);
    let name = arch.target().replace('-', "_").to_uppercase();
    let compiler = compiler(bed, arch);
    command.env(format!("CARGO_TARGET_{name}_LINKER"), &compiler);
    command.env(format!("CC_{}", name.to_lowercase()), &compiler);
    // For tests that build their own programs.
    command.env("CORONER_TEST_CXX", &compiler);
    command.env("CORONER_TEST_LIBCXX", libcxx(bed, arch));
    // Android programs look for it in /data/local/tmp.
    command.env("TMPDIR", std::env::temp_dir());
    if arch == Arch::Aarch64 {
        let emulator = format!("qemu-aarch64-static -L {}", bed.join("device/aarch64").display());
        command.env(format!("CARGO_TARGET_{name}_RUNNER"), &emulator).env("CORONER_TEST_RUNNER", emulator);
        command.env("CORONER_TEST_EMULATED", "1");
    }
    command
}

/// Builds a program of `coroner-tests` for the x86_64 device.
///
/// # Errors
/// An error if the build fails.
pub fn test_program(bed: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut build = cargo(bed, Arch::X86_64, &["build", "--quiet", "-p", "coroner-tests", "--bin", name]);
    on_device(&bed.join("device/x86_64/system"), &mut build)?;
    Ok(tools::target_dir().join(Arch::X86_64.target()).join("debug").join(name))
}
