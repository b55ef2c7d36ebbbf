//! The files with the addresses.
//!
//! They are built here by common compilers and linkers, or taken from a distribution.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use object::{
    Architecture,
    read::macho::{FatArch, MachOFatFile32},
};

use toolbox::android_bed::{self as android, Arch};
use toolbox::tools;

/// A file, and how to create it.
pub(super) struct Subject {
    pub(super) name: &'static str,
    make: Make,
}

enum Make {
    /// The Rust program, with these rustc options.
    Rust(&'static [&'static str]),
    /// The program with this suffix, built by a compiler with options.
    Compiled(&'static str, &'static str, &'static [&'static str]),
    /// Another subject's file, changed by a program.
    ///
    /// The program's arguments are the options, the file and, if `writes` is true, the output file.
    Changed { of: &'static str, program: &'static str, options: &'static [&'static str], writes: bool },
    /// Like [`Self::Compiled`], with its `.dwo` files packed by this tool.
    Packed(&'static str, &'static str, &'static [&'static str], &'static str),
    /// An image in one of the repository's fat Mach-O files.
    Slice(&'static str, Architecture),
    /// The program with this suffix for Android, built with the bed of `cargo xtask android`.
    Android(&'static str, Arch),
    /// A release build of this workspace.
    Workspace(Build),
    /// A debug build of this command itself.
    Itself,
    /// The compiler's own library, which has symbols but no debug information.
    Compiler,
    /// The largest file with debug information in a Debian package, or the one with this suffix.
    Debian(&'static str, &'static str),
}

const DSYM: &str = "fixtures/symbols/program.dylib.dSYM/Contents/Resources/DWARF/program.dylib";

/// A cargo build.
pub(super) struct Build {
    target: &'static [&'static str],
    /// The profile's `debug`.
    debug: &'static str,
    /// Path below cargo's folder for the profile.
    file: &'static str,
}

/// The program that prints our answers.
pub(super) const SYMBOLIZE: Build =
    Build { target: &["-p", "coroner-symbols", "--example", "symbolize"], debug: "full", file: "examples/symbolize" };

const CORONER: Build =
    Build { target: &["-p", "coroner-cli", "--bin", "coroner"], debug: "line-tables-only", file: "coroner" };

const SPLIT: &[&str] = &["-O2", "-g", "-gsplit-dwarf"];
/// Flags for binutils' `dwp`, which crashes on DWARF 5.
const SPLIT_4: &[&str] = &["-O2", "-gdwarf-4", "-gsplit-dwarf"];

/// All subjects.
pub(super) const SUBJECTS: &[Subject] = &[
    subject("rust-release-lines", Make::Rust(&["-O", "-Cdebuginfo=1"])),
    subject("rust-release", Make::Rust(&["-O", "-Cdebuginfo=2"])),
    subject("rust-size", Make::Rust(&["-Copt-level=z", "-Cdebuginfo=2", "-Cpanic=abort"])),
    subject("rust-debug", Make::Rust(&["-Cdebuginfo=2"])),
    subject("rust-lto", Make::Rust(&["-O", "-Cdebuginfo=2", "-Clto=fat", "-Ccodegen-units=1"])),
    subject("rust-v0", Make::Rust(&["-O", "-Cdebuginfo=2", "-Csymbol-mangling-version=v0"])),
    subject("rust-dwp", Make::Rust(&["-O", "-Cdebuginfo=2", "-Csplit-debuginfo=packed"])),
    subject("rust-dwo", Make::Rust(&["-O", "-Cdebuginfo=2", "-Csplit-debuginfo=unpacked"])),
    subject("rust-compressed", changed("rust-release", "objcopy", &["--compress-debug-sections=zlib"], true)),
    subject("rust-debug-file", changed("rust-release", "objcopy", &["--only-keep-debug"], true)),
    subject("coroner-release", Make::Workspace(CORONER)),
    subject("symbolize-release", Make::Workspace(SYMBOLIZE)),
    subject("xtask-debug", Make::Itself),
    subject("rustc-symbols", Make::Compiler),
    subject("g++", Make::Compiled("cpp", "g++", &["-O2", "-g"])),
    subject("g++-debug", Make::Compiled("cpp", "g++", &["-O0", "-g"])),
    subject("g++-dwarf-4", Make::Compiled("cpp", "g++", &["-O2", "-gdwarf-4"])),
    subject("g++-dwarf-3", Make::Compiled("cpp", "g++", &["-O2", "-gdwarf-3", "-gstrict-dwarf"])),
    subject("g++-type-units", Make::Compiled("cpp", "g++", &["-O2", "-gdwarf-5", "-fdebug-types-section"])),
    subject("g++-type-units-4", Make::Compiled("cpp", "g++", &["-O2", "-gdwarf-4", "-fdebug-types-section"])),
    subject("g++-lto", Make::Compiled("cpp", "g++", &["-O2", "-g", "-flto"])),
    subject("g++-compressed", Make::Compiled("cpp", "g++", &["-O2", "-g", "-gz=zlib"])),
    subject("g++-dwo", Make::Compiled("cpp", "g++", SPLIT)),
    subject(
        "g++-dwo-type-units",
        Make::Compiled("cpp", "g++", &["-O2", "-gdwarf-5", "-gsplit-dwarf", "-fdebug-types-section"]),
    ),
    subject("g++-dwp", Make::Packed("cpp", "g++", SPLIT_4, "dwp")),
    subject("g++-dwz", changed("g++", "dwz", &[], false)),
    subject("g++-lto-dwz", changed("g++-lto", "dwz", &[], false)),
    subject("clang++", Make::Compiled("cpp", "clang++-14", &["-std=c++17", "-O2", "-g"])),
    subject("clang++-lines", Make::Compiled("cpp", "clang++-14", &["-std=c++17", "-O2", "-gline-tables-only"])),
    subject(
        "clang++-type-units",
        Make::Compiled("cpp", "clang++-14", &["-std=c++17", "-O2", "-g", "-fdebug-types-section"]),
    ),
    subject(
        "clang++-icf",
        Make::Compiled(
            "cpp",
            "clang++-14",
            &["-std=c++17", "-O2", "-g", "-ffunction-sections", "-fuse-ld=lld", "-Wl,--icf=all", "-Wl,--gc-sections"],
        ),
    ),
    subject("clang++-lto", Make::Compiled("cpp", "clang++-14", &["-std=c++17", "-O2", "-g", "-flto", "-fuse-ld=lld"])),
    subject(
        "clang++-dwp",
        Make::Packed("cpp", "clang++-14", &["-std=c++17", "-O2", "-gdwarf-4", "-gsplit-dwarf"], "llvm-dwp-14"),
    ),
    subject("gcc-arm64", Make::Compiled("c", "aarch64-linux-gnu-gcc", &["-O2", "-g", "-static"])),
    subject("android-rust-x86_64", Make::Android("rs", Arch::X86_64)),
    subject("android-rust-arm64", Make::Android("rs", Arch::Aarch64)),
    subject("android-c++-x86_64", Make::Android("cpp", Arch::X86_64)),
    subject("android-c++-arm64", Make::Android("cpp", Arch::Aarch64)),
    subject("gdc", Make::Compiled("d", "gdc", &["-O2", "-g", "-static-libphobos"])),
    subject("go", Make::Compiled("go", "go", &[])),
    subject("dsym-x86_64", Make::Slice(DSYM, Architecture::X86_64)),
    subject("dsym-arm64", Make::Slice(DSYM, Architecture::Aarch64)),
    subject("libc6-dbg", Make::Debian("libc6-dbg", "")),
    subject("libstdc++6-12-dbg", Make::Debian("libstdc++6-12-dbg", "")),
    subject("python3.11-dbg", Make::Debian("python3.11-dbg", "bin/python3.11d")),
    subject("ceph-mon-dbg", Make::Debian("ceph-mon-dbg", "")),
];

const fn subject(name: &'static str, make: Make) -> Subject {
    Subject { name, make }
}

const fn changed(of: &'static str, program: &'static str, options: &'static [&'static str], writes: bool) -> Make {
    Make::Changed { of, program, options, writes }
}

impl Subject {
    /// Returns the path of the file, which is created if it doesn't exist.
    pub(super) fn file(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let place = folder.join(self.name);
        fs::create_dir_all(&place)?;
        let made = place.join("program");
        if made.exists() {
            return Ok(made);
        }
        let source =
            |suffix: &str| tools::workspace_root().join("fixtures/symbols-truth").join(format!("program.{suffix}"));
        let beside = place.join("partial");
        match &self.make {
            Make::Rust(options) => {
                run(Command::new("rustc")
                    .current_dir(&place)
                    .args(["--edition=2024", "-o"])
                    .arg(&beside)
                    .args(*options)
                    .arg(source("rs")))?;
                // The split debug information is beside it under its own name.
                if place.join("partial.dwp").exists() {
                    fs::rename(place.join("partial.dwp"), place.join("program.dwp"))?;
                }
            }
            Make::Compiled("go", compiler, options) => {
                run(Command::new(compiler).args(["build", "-o"]).arg(&beside).args(*options).arg(source("go")))?;
            }
            Make::Compiled(suffix, compiler, options) | Make::Packed(suffix, compiler, options, _) => {
                run(Command::new(compiler)
                    .current_dir(&place)
                    .args(*options)
                    .arg("-o")
                    .arg(&beside)
                    .arg(source(suffix)))?;
                if let Make::Packed(_, _, _, packer) = &self.make {
                    pack(packer, &place, &beside)?;
                }
            }
            Make::Android(suffix, arch) => run(&mut android_command(*arch, &source(suffix), &beside)?)?,
            Make::Changed { of, program, options, writes } => {
                let original = find(of)?.file(folder)?;
                let mut command = Command::new(program);
                command.args(*options);
                if *writes {
                    command.arg(original).arg(&beside);
                } else {
                    fs::copy(original, &beside)?;
                    command.arg(&beside);
                }
                run(&mut command)?;
            }
            Make::Slice(path, architecture) => {
                let bytes = fs::read(tools::workspace_root().join(path))?;
                let fat = MachOFatFile32::parse(&*bytes)?;
                let slice = fat.arches().iter().find(|slice| slice.architecture() == *architecture);
                fs::write(&beside, slice.context("no such slice")?.data(&*bytes)?)?;
            }
            Make::Workspace(build) => return self::build(build),
            // A copy, because cargo may replace the file meanwhile.
            Make::Itself => drop(fs::copy("/proc/self/exe", &beside)?),
            Make::Compiler => return compiler_library(),
            Make::Debian(package, end) => return debian_file(package, end),
        }
        fs::rename(&beside, &made)?;
        Ok(made)
    }
}

/// Compiles and links a program for Android, with debug information.
fn android_command(arch: Arch, source: &Path, into: &Path) -> anyhow::Result<Command> {
    let bed = android::unpacked_bed()?.map_err(anyhow::Error::msg)?;
    let compiler = android::compiler(&bed, arch);
    if source.extension().is_some_and(|suffix| suffix == "rs") {
        let mut command = Command::new("rustc");
        command.args(["--edition=2024", "-O", "-Cdebuginfo=2", "--target", &arch.target(), "-o"]).arg(into);
        command.arg(format!("-Clinker={}", compiler.display())).arg(source);
        return Ok(command);
    }
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O2", "-g", "-o"]).arg(into).arg(source).arg(android::libcxx(&bed, arch));
    Ok(command)
}

fn find(name: &str) -> anyhow::Result<&'static Subject> {
    SUBJECTS.iter().find(|subject| subject.name == name).with_context(|| format!("no subject {name}"))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("running {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?} ended with {}: {}",
        command.get_program(),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

/// Packs a program's split units into `program.dwp`.
///
/// Removes the `.dwo` files, so that only the package is found.
fn pack(packer: &str, place: &Path, program: &Path) -> anyhow::Result<()> {
    run(Command::new(packer).current_dir(place).arg("-e").arg(program).arg("-o").arg(place.join("program.dwp")))?;
    for entry in fs::read_dir(place)?.flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "dwo") {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Builds the program.
pub(super) fn build(build: &Build) -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("symbols-truth/cargo");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(tools::workspace_root()).args(["build", "--quiet", "--release", "--locked", "--target-dir"]);
    command.arg(&folder).arg("--config").arg(format!("profile.release.debug = \"{}\"", build.debug));
    run(command.args(build.target))?;
    Ok(folder.join("release").join(build.file))
}

/// Builds `symbols-peer`.
pub(super) fn build_peers() -> anyhow::Result<PathBuf> {
    let folder = tools::target_dir().join("symbols-truth/peer");
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--locked", "--target-dir"]).arg(&folder).arg("--manifest-path");
    run(command.arg(tools::workspace_root().join("tools/bench/symbols-peer/Cargo.toml")))?;
    Ok(folder.join("release/symbols-peer"))
}

fn compiler_library() -> anyhow::Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output().context("running rustc")?;
    let folder = Path::new(String::from_utf8(output.stdout)?.trim()).join("lib");
    let files = fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?;
    let is_driver =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librustc_driver-"));
    files.flatten().map(|entry| entry.path()).find(is_driver).context("no librustc_driver")
}

fn debian_file(package: &str, end: &str) -> anyhow::Result<PathBuf> {
    let listed = || Command::new("dpkg").args(["-L", package]).output().context("running dpkg");
    let mut output = listed()?;
    if !output.status.success() {
        tools::install_debian_package(package)?;
        output = listed()?;
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_elf = |path: &PathBuf| {
        let mut magic = [0; 4];
        fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
    };
    let files = text.lines().map(PathBuf::from);
    let files = files.filter(|path| path.to_string_lossy().ends_with(end) && path.is_file() && is_elf(path));
    let largest = files.max_by_key(|path| fs::metadata(path).map_or(0, |metadata| metadata.len()));
    let Some(largest) = largest else { bail!("{package} has no such file") };
    Ok(largest)
}
