//! The Android test bed: a device's bionic (linker64, libc, libm, libdl, libc++) and what builds programs for it.
//!
//! `shared/android-bed.md` describes the bed. Its archive lies beside the checkout (`../shared/android-bed.tar.xz`) or at
//! the path in `CORONER_ANDROID_BED`.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{deadline, tools};

/// A processor, as its target, its compiler of the bed and its device are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    X86_64,
    Aarch64,
}

/// The bed's compiler for a processor, which links, too.
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

/// The device's C++ library, which programs of C++ link with.
pub fn libcxx(bed: &Path, arch: Arch) -> PathBuf {
    bed.join("device").join(arch.name()).join("system/lib64/libc++.so")
}

/// The unpacked bed, where its programs can be run; or why they can't.
pub fn set_up() -> anyhow::Result<Result<PathBuf, String>> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(Err("the bed's native programs are for x86_64".to_owned()));
    }
    // Programs name /system/bin/linker64 as their interpreter; the folder is what is mounted over.
    if !nix::unistd::geteuid().is_root() || fs::create_dir_all("/system").is_err() {
        return Ok(Err("only root can mount a device's /system".to_owned()));
    }
    if let Err(error) = on_device(Path::new("/"), &mut Command::new("true")) {
        return Ok(Err(format!("no mount namespace: {error:#}")));
    }
    tools::arm64_emulator()?;
    unpacked_bed()
}

/// The expected path of the bed's archive.
pub fn archive() -> PathBuf {
    std::env::var_os("CORONER_ANDROID_BED")
        .map_or_else(|| tools::workspace_root().join("../shared/android-bed.tar.xz"), PathBuf::from)
}

/// The unpacked bed, with what building programs needs; or why there is none.
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
    // Others may run programs of it: it is unpacked once for each archive, and appears whole.
    let archive_is = fs::metadata(&archive)?;
    let stamp = format!("{} {:?}", archive_is.len(), archive_is.modified()?);
    if fs::read_to_string(folder.join("archive")).is_ok_and(|of| of == stamp) {
        return Ok(Ok(folder));
    }
    fs::create_dir_all(tools::tools_dir())?;
    let fresh = tempfile::tempdir_in(tools::tools_dir())?;
    let status =
        Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(fresh.path()).status().context("running tar")?;
    ensure!(status.success(), "{} can't be unpacked: {status}", archive.display());
    fs::write(fresh.path().join("android-bed/archive"), stamp)?;
    if folder.exists() {
        fs::rename(&folder, fresh.path().join("old"))?;
    }
    fs::rename(fresh.path().join("android-bed"), &folder)?;
    Ok(Ok(folder))
}

/// Mounts that folder over `/system` for the calling thread and the processes that it starts from here on, and for nobody else.
pub fn enter_device(system: &Path) -> std::io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    // What is mounted here is not to be seen by others.
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some(system), "/system", none, MsFlags::MS_BIND, none)?;
    Ok(())
}

/// Lets a command run where `/system` is that folder.
pub fn where_system_is(system: &Path, command: &mut Command) {
    let system = system.to_owned();
    let enter = move || enter_device(&system);
    // SAFETY: system calls alone, on strings that were made before the fork.
    unsafe { command.pre_exec(enter) };
}

/// Runs a command where `/system` is that folder.
pub fn on_device(system: &Path, command: &mut Command) -> anyhow::Result<()> {
    // What is mounted over: programs name /system/bin/linker64 as their interpreter.
    fs::create_dir_all("/system").context("making /system")?;
    where_system_is(system, command);
    let status = deadline::status(command).with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(status.success(), "{} failed: {status}", command.get_program().display());
    Ok(())
}

/// A `cargo` for Android programs of that processor.
pub fn cargo(bed: &Path, arch: Arch, words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(words).args(["--target", &arch.target()]);
    let name = arch.target().replace('-', "_").to_uppercase();
    let compiler = compiler(bed, arch);
    command.env(format!("CARGO_TARGET_{name}_LINKER"), &compiler);
    command.env(format!("CC_{}", name.to_lowercase()), &compiler);
    // For tests that build programs of their own.
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
/// The build failed.
pub fn test_program(bed: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let mut build = cargo(bed, Arch::X86_64, &["build", "--quiet", "-p", "coroner-tests", "--bin", name]);
    on_device(&bed.join("device/x86_64/system"), &mut build)?;
    Ok(tools::target_dir().join(Arch::X86_64.target()).join("debug").join(name))
}
