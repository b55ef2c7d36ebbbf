//! Foreign tools that the commands need, at pinned versions, set up once under `target/tools`.
//!
//! * `pip install --target` unpacks PyPI packages ([`python_package`]), each into its own folder
//!   named by package and version; nothing is installed into the system's Python.
//! * `apt-get` installs Debian packages ([`debian_package`]) if the machine allows it (root, a
//!   reachable mirror); otherwise they are an error.
//!
//! Registries are those configured for the machine's pip and apt; no host is named here. Commands
//! may run concurrently: a folder is filled beside its final path and renamed to it, under a file
//! lock.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};

/// The C compiler and linker for Mach-O (`zig cc`), from PyPI.
///
/// The package contains the macOS libSystem stubs and headers.
pub const ZIGLANG: (&str, &str) = ("ziglang", "0.17.0");

/// The CPU emulator (a QEMU without devices), from PyPI, with its shared library.
pub const UNICORN: (&str, &str) = ("unicorn", "2.1.4");

/// Returns the workspace's root.
pub fn workspace_root() -> PathBuf {
    let toolbox = Path::new(env!("CARGO_MANIFEST_DIR"));
    toolbox.ancestors().nth(2).unwrap_or(toolbox).to_path_buf()
}

/// Returns the tools' folder.
///
/// It does not follow `CARGO_TARGET_DIR`: one copy (half a gigabyte) serves every build folder.
pub fn tools_dir() -> PathBuf {
    workspace_root().join("target/tools")
}

/// Returns the folder in which the commands build: cargo's own target folder.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// The environment variable that the test command sets after building everything.
pub const BUILT: &str = "CORONER_WORKSPACE_IS_BUILT";

/// Builds all programs, libraries and tests of the default packages, as the test command does.
///
/// cargo unifies features over all of them; a single package and everything it depends on would be
/// built with other features.
///
/// # Errors
/// An error if the build fails; cargo's output is printed.
pub fn build_workspace() -> anyhow::Result<()> {
    if env::var_os(BUILT).is_some() {
        return Ok(());
    }
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace_root()).args(["build", "--quiet"]).args(ALL_TARGETS);
    let status = crate::deadline::status(&mut command).context("running cargo")?;
    ensure!(status.success(), "can't build the workspace");
    Ok(())
}

/// The targets that the test command builds: all but benches.
pub const ALL_TARGETS: [&str; 4] = ["--lib", "--bins", "--tests", "--examples"];

/// Returns the path of a library built by [`build_workspace`], such as `libcoroner_ffi.so`.
pub fn built_library(name: &str) -> PathBuf {
    target_dir().join("debug/deps").join(name)
}

/// Returns a path that starts this program again.
///
/// On Linux it works even after a build has replaced the file, when `current_exe` ends in
/// "(deleted)".
///
/// # Errors
/// An error if the system doesn't provide the path.
pub fn this_program() -> anyhow::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    env::current_exe().context("can't find this program's path")
}

/// Returns the folder of a `package` at this `version`, unpacked there by pip if necessary.
///
/// # Errors
/// An error if pip is missing, or can't find or unpack the package; the message ends with pip's
/// output.
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

/// Returns a Python environment with exactly the pinned packages of `requirements`.
///
/// Its programs are in `bin`.
///
/// # Errors
/// An error if Python or its `venv` is missing, or pip can't find or unpack a package; the message
/// ends with the output.
pub fn python_environment(name: &str, requirements: &str) -> anyhow::Result<PathBuf> {
    let tools = tools_dir();
    fs::create_dir_all(&tools).with_context(|| format!("creating {}", tools.display()))?;
    // An environment contains its own path, so it is created at its final path; it is complete once
    // it contains the list.
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
        // Debian has it in a separate package.
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

/// Returns the `zig` executable.
///
/// `zig cc -target aarch64-macos` is a C compiler and linker for Mach-O.
///
/// # Errors
/// See [`python_package`].
pub fn zig() -> anyhow::Result<PathBuf> {
    Ok(python_package(ZIGLANG)?.join("ziglang/zig"))
}

/// Returns the emulator's shared library.
///
/// # Errors
/// See [`python_package`]; also an error if the package has no shared library for this machine.
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

/// Whether `target`'s standard library is installed in the current toolchain.
pub fn has_rust_target(target: &str) -> bool {
    let libdir = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    libdir.is_ok_and(|libdir| {
        libdir.status.success() && Path::new(String::from_utf8_lossy(&libdir.stdout).trim()).is_dir()
    })
}

/// The nightly toolchain for Miri and cargo-fuzz.
///
/// It is pinned, because Miri's checks change from one nightly to the next. It is also in
/// `fuzz/rust-toolchain.toml`.
pub const NIGHTLY: &str = "nightly-2026-10-30";

/// Installs the nightly toolchain.
///
/// # Errors
/// An error if rustup can't install it.
pub fn nightly() -> anyhow::Result<()> {
    let arguments = ["toolchain", "install", NIGHTLY, "--profile", "minimal", "--component", "rust-src"];
    let status = Command::new("rustup").args(arguments).status().context("running rustup")?;
    ensure!(status.success(), "rustup can't install a nightly toolchain");
    Ok(())
}

/// Ensures that `target`'s standard library is installed in the current toolchain.
///
/// # Errors
/// An error if rustc doesn't have it and rustup can't add it.
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

/// Returns the folder with a cargo subcommand at this version, to be added to the path.
///
/// # Errors
/// An error if cargo can't install it.
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

/// Returns the folder `node_modules` with exactly these packages (`name@version`) of npm, which are
/// installed into the tool folder `name` if necessary.
///
/// # Errors
/// An error if npm is missing, or can't install a package; the message ends with npm's output.
pub fn npm_packages(name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    let folder = tools_dir().join(name);
    let (marker, wanted) = (folder.join("packages"), packages.join(" "));
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return Ok(folder.join("node_modules"));
    }
    fs::create_dir_all(&folder)?;
    let output = Command::new("npm")
        .args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--silent", "--prefix"])
        .arg(&folder)
        .args(packages)
        .output()
        .context("running npm")?;
    ensure!(output.status.success(), "npm: {}", String::from_utf8_lossy(&output.stderr).trim());
    fs::write(marker, wanted)?;
    Ok(folder.join("node_modules"))
}

/// Whether a program with this name is on the path.
pub fn on_path(program: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}

/// Installs Debian's `package` unless `program` is on the path.
///
/// # Errors
/// An error if apt can't install it (not Debian, not root, no mirror).
pub fn debian_package(package: &str, program: &str) -> anyhow::Result<()> {
    if on_path(program) {
        return Ok(());
    }
    install_debian_package(package)?;
    ensure!(on_path(program), "Debian's {package} was installed but holds no {program}");
    Ok(())
}

/// Installs Debian's cross compiler and C library for Linux arm64.
///
/// # Errors
/// An error if apt can't install them.
pub fn arm64_compiler() -> anyhow::Result<()> {
    debian_package("gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc")?;
    if !Path::new("/usr/aarch64-linux-gnu/lib/libc.a").is_file() {
        install_debian_package("libc6-dev-arm64-cross")?;
    }
    Ok(())
}

/// Installs the emulator for Linux arm64 programs.
///
/// # Errors
/// An error if apt can't install it.
pub fn arm64_emulator() -> anyhow::Result<()> {
    debian_package("qemu-user-static", "qemu-aarch64-static")
}

/// Installs Debian's `package`, even if it is already installed.
///
/// # Errors
/// See [`install_debian_packages`].
pub fn install_debian_package(package: &str) -> anyhow::Result<()> {
    install_debian_packages(&[package])
}

/// Installs Debian packages in one call.
///
/// # Errors
/// An error if apt can't install them (not Debian, not root, no mirror); the message ends with
/// apt's own.
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

/// Returns the Rust toolchain's LLVM linker; `-flavor darwin` links Mach-O without an SDK.
///
/// # Errors
/// An error if the toolchain has none.
pub fn rust_lld() -> anyhow::Result<PathBuf> {
    let ask = |arguments: &[&str]| -> anyhow::Result<String> {
        let output = Command::new("rustc").args(arguments).output().context("running rustc")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let (sysroot, version) = (ask(&["--print", "sysroot"])?, ask(&["-vV"])?);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV printed no host")?;
    let lld = Path::new(&sysroot).join("lib/rustlib").join(host).join("bin/rust-lld");
    ensure!(lld.is_file(), "the toolchain has no rust-lld at {}", lld.display());
    Ok(lld)
}
