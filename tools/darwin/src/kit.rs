//! Tools to build and run Mach-O programs of one architecture: linker, host, the system's unwinder.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};

use super::fixtures::LIBRARIES;
use toolbox::{deadline, tools};

/// Linker wrapper for Rust programs, from PyPI: `zig cc` with support for rustc's arguments.
const CARGO_ZIGBUILD: (&str, &str) = ("cargo-zigbuild", "0.24.0");

/// A Darwin architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "arm64")]
    Arm64,
}

impl Arch {
    pub const ALL: [Arch; 2] = [Arch::X86_64, Arch::Arm64];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Arm64 => "arm64",
        }
    }

    /// Returns the programs' Rust target.
    pub const fn target(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-apple-darwin",
            Arch::Arm64 => "aarch64-apple-darwin",
        }
    }

    /// Returns the Rust target of the host that runs them.
    const fn host(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-unknown-linux-gnu",
            Arch::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// Returns zig's target.
    pub(super) const fn zig(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-macos-none",
            Arch::Arm64 => "aarch64-macos-none",
        }
    }

    /// Whether this machine needs an emulator for it.
    pub fn emulated(self) -> bool {
        match self {
            Arch::X86_64 => cfg!(not(target_arch = "x86_64")),
            Arch::Arm64 => cfg!(not(target_arch = "aarch64")),
        }
    }
}

/// The crates above the crash path's.
pub(super) const UPPER_CRATES: [&str; 4] = ["coroner", "coroner-report", "coroner-symbols", "coroner-tests"];

/// Everything to build and run Mach-O programs of an architecture.
#[derive(Debug)]
pub struct Kit {
    pub(super) arch: Arch,
    pub(super) zig: PathBuf,
    linker: PathBuf,
    /// The folder of the system's own libraries.
    pub(super) libraries: PathBuf,
    pub(super) programs: PathBuf,
    /// The arguments before a program's path.
    runner: Vec<String>,
}

/// Returns the build folder: `darwin` in the target folder.
pub(super) fn target_folder() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| tools::workspace_root().join("target"), PathBuf::from);
    std::path::absolute(&target).unwrap_or(target).join("darwin")
}

pub(super) fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let printed = command.get_program().to_string_lossy().into_owned();
    let status = deadline::status(command).with_context(|| format!("running {printed}"))?;
    let last = command.get_args().last().unwrap_or_default().to_string_lossy();
    ensure!(status.success(), "{printed} … {last} failed ({status})");
    Ok(())
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Returns the linker for an architecture's Rust programs; installs the standard library.
///
/// # Errors
/// An error if a tool can't be installed.
pub fn linker(arch: Arch) -> anyhow::Result<PathBuf> {
    let zig = tools::zig()?;
    let zigbuild = tools::python_package(CARGO_ZIGBUILD)?.join("bin/cargo-zigbuild");
    tools::rust_target(arch.target())?;
    let folder = target_folder();
    fs::create_dir_all(&folder)?;
    let linker = folder.join(format!("link-{}.sh", arch.name()));
    // Rust's std links libiconv but uses nothing of it.
    let script = format!(
        "#!/bin/sh\nCARGO_ZIGBUILD_ZIG_PATH='{}' exec '{}' zig cc -- -target {} \"$@\" -Wl,-dead_strip_dylibs\n",
        zig.display(),
        zigbuild.display(),
        arch.zig()
    );
    fs::write(&linker, script)?;
    fs::set_permissions(&linker, fs::Permissions::from_mode(0o755))?;
    Ok(linker)
}

impl Kit {
    /// Sets up tools, the host and the unwinder's library.
    ///
    /// # Errors
    /// An error if a tool can't be installed, or something doesn't compile.
    pub fn set_up(arch: Arch) -> anyhow::Result<Kit> {
        let zig = tools::zig()?;
        let linker = linker(arch)?;
        let folder = target_folder();
        let (libraries, programs) =
            (folder.join("libraries").join(arch.name()), folder.join("programs").join(arch.name()));
        fs::create_dir_all(&libraries)?;
        fs::create_dir_all(&programs)?;

        let host = build_host(arch, &folder)?;
        build_unwinder(arch, &zig, &libraries)?;
        let mut runner = Vec::new();
        let mut options = vec!["--libraries".to_owned(), text(&libraries)];
        if arch.emulated() {
            let emulator = find_on_path("qemu-aarch64-static").context("no qemu-aarch64-static on the path")?;
            options.extend(["--launcher".to_owned(), text(&emulator)]);
            runner.push(text(&emulator));
        }
        runner.push(text(&host));
        runner.extend(options);
        Ok(Kit { arch, zig, linker, libraries, programs, runner })
    }

    /// Returns cargo's environment variables for this target: linker and runner.
    pub fn environment(&self) -> Vec<(String, String)> {
        let target = self.arch.target().to_uppercase().replace('-', "_");
        vec![
            (format!("CARGO_TARGET_{target}_LINKER"), text(&self.linker)),
            (format!("CARGO_TARGET_{target}_RUNNER"), self.runner.join(" ")),
        ]
    }

    /// Returns `cargo SUBCOMMAND` for this architecture's target, with linker and runner set.
    pub fn cargo(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.arg(subcommand).args(["--target", self.arch.target()]).envs(self.environment());
        command.current_dir(tools::workspace_root());
        command
    }

    /// Returns cargo's test command for the crates above the crash path.
    ///
    /// It always includes all of them: separately each has other features, and everything that they
    /// depend on would be built for each.
    pub(super) fn test_upper_crates(&self) -> Command {
        let mut command = self.cargo("test");
        command.arg("--quiet").args(UPPER_CRATES.iter().flat_map(|name| ["--package", name]));
        command
    }

    /// Makes tests that start processes run one at a time under an emulator.
    ///
    /// A process starts as a fork of the emulator; if the emulator's other threads are working, the
    /// child may inherit its locks held, and hang forever.
    pub(super) fn one_by_one<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        if self.arch.emulated() {
            command.env("RUST_TEST_THREADS", "1").env("CORONER_TEST_EMULATED", "1");
        }
        command
    }

    /// Returns a command that runs a Mach-O program.
    pub fn run(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.runner[0]);
        command.args(&self.runner[1..]).arg(program);
        command
    }

    /// Builds a fixture by its file name; a C file listed in [`LIBRARIES`] becomes a dylib.
    pub(super) fn build(&self, source: &str) -> anyhow::Result<PathBuf> {
        let fixtures = tools::workspace_root().join("fixtures/darwin");
        let (stem, kind) = source.split_once('.').context("a source without an extension")?;
        let library = LIBRARIES.contains(&source);
        let output = self.programs.join(if library { format!("{stem}.dylib") } else { stem.to_owned() });
        let mut command = if kind == "rs" {
            let mut command = Command::new("rustc");
            command.args(["--edition", "2024", "-O", "-g", "--target", self.arch.target(), "-C"]);
            command.arg(format!("linker={}", self.linker.display())).stderr(Stdio::null());
            command
        } else {
            let mut command = Command::new(&self.zig);
            command.args(["cc", "-target", self.arch.zig(), "-O1", "-g", "-fno-omit-frame-pointer"]);
            command.args(["-fno-sanitize=all", "-funwind-tables", "-Wno-unknown-attributes"]);
            if library {
                command.arg("-dynamiclib");
            }
            command
        };
        succeed(command.arg(fixtures.join(source)).arg("-o").arg(&output))
            .with_context(|| format!("building {source}"))?;
        Ok(output)
    }

    /// Returns the C compiler's command for this architecture, for tests that compile libraries.
    ///
    /// It consists of words without quotes.
    pub(super) fn compiler_words(&self) -> String {
        let options = "-fno-omit-frame-pointer -fno-sanitize=all -funwind-tables";
        format!("{} cc -target {} {options}", self.zig.display(), self.arch.zig())
    }

    /// Builds a library from one C file.
    pub(super) fn build_library(&self, source: &Path) -> anyhow::Result<PathBuf> {
        let name = source.file_stem().context("a source without a name")?.to_string_lossy();
        let library = self.programs.join(format!("{name}.dylib"));
        let mut command = Command::new(&self.zig);
        command.args(["cc", "-target", self.arch.zig(), "-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize=all"]);
        command.args(["-funwind-tables", "-fvisibility=hidden", "-Wall", "-dynamiclib", "-install_name"]).arg(&library);
        succeed(command.arg(source).arg("-o").arg(&library)).context("building a library")?;
        Ok(library)
    }
}

fn find_on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Builds `darwin-host` for the machine that represents the architecture.
///
/// For a foreign machine it is a static program, which needs none of that machine's libraries.
fn build_host(arch: Arch, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "darwin-host", "--target", arch.host()]);
    command.arg("--target-dir").arg(folder.join("host")).current_dir(tools::workspace_root());
    if arch.emulated() {
        ensure!(arch == Arch::Arm64, "x86_64 programs need an x86_64 machine");
        tools::rust_target(arch.host())?;
        tools::arm64_compiler()?;
        tools::arm64_emulator()?;
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
    }
    succeed(command.env_remove("RUSTFLAGS")).context("building darwin-host")?;
    Ok(folder.join("host").join(arch.host()).join("release/darwin-host"))
}

/// Builds `libunwind.dylib`, which macOS has in libSystem, once per version of zig.
fn build_unwinder(arch: Arch, zig: &Path, libraries: &Path) -> anyhow::Result<()> {
    let library = libraries.join("libunwind.dylib");
    let stamp = libraries.join(format!("libunwind-of-{}-{}", tools::ZIGLANG.0, tools::ZIGLANG.1));
    if library.is_file() && stamp.is_file() {
        return Ok(());
    }
    let sources = zig.parent().context("zig has no folder")?.join("lib/libunwind");
    let mut objects = Vec::new();
    for source in [
        "libunwind.cpp",
        "UnwindLevel1.c",
        "UnwindLevel1-gcc-ext.c",
        "UnwindRegistersRestore.S",
        "UnwindRegistersSave.S",
    ] {
        let object = libraries.join(format!("{source}.o"));
        let cpp = Path::new(source).extension().is_some_and(|e| e == "cpp");
        let mut command = Command::new(zig);
        command.args([if cpp { "c++" } else { "cc" }, "-target", arch.zig(), "-O2", "-funwind-tables", "-DNDEBUG"]);
        command.args(["-D_LIBUNWIND_IS_NATIVE_ONLY", "-fno-sanitize=all"]);
        if cpp {
            command.args(["-std=c++17", "-fno-exceptions", "-fno-rtti", "-nostdlib++"]);
        }
        command.arg("-I").arg(sources.join("include")).arg("-I").arg(sources.join("src"));
        succeed(command.arg("-c").arg(sources.join("src").join(source)).arg("-o").arg(&object))?;
        objects.push(object);
    }
    let mut link = Command::new(zig);
    link.args(["cc", "-target", arch.zig(), "-dynamiclib", "-install_name", "/usr/lib/system/libunwind.dylib"]);
    succeed(link.args(&objects).arg("-o").arg(&library)).context("linking libunwind")?;
    fs::write(stamp, "")?;
    Ok(())
}
