//! The matrix of programs and how each is built.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use anyhow::{Context, ensure};

use toolbox::android_bed::{self as android, Arch};
use toolbox::tools;

/// A target of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    MachoArm64,
    MachoX86_64,
    ElfX86_64,
    ElfArm64,
}

impl Target {
    pub(super) const ALL: [Target; 4] = [Target::MachoArm64, Target::MachoX86_64, Target::ElfX86_64, Target::ElfArm64];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Target::MachoArm64 => "macho-arm64",
            Target::MachoX86_64 => "macho-x86_64",
            Target::ElfX86_64 => "elf-x86_64",
            Target::ElfArm64 => "elf-arm64",
        }
    }

    const fn rust(self) -> &'static str {
        match self {
            Target::MachoArm64 => "aarch64-apple-darwin",
            Target::MachoX86_64 => "x86_64-apple-darwin",
            Target::ElfX86_64 => "x86_64-unknown-linux-gnu",
            Target::ElfArm64 => "aarch64-unknown-linux-gnu",
        }
    }

    const fn is_macho(self) -> bool {
        matches!(self, Target::MachoArm64 | Target::MachoX86_64)
    }
}

/// A language with an optimization level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// C compiled by the target's usual compiler: gcc for ELF, clang for Mach-O.
    C(&'static str),
    /// C compiled by clang, for ELF, as on Android.
    Clang(&'static str),
    /// C compiled by clang at `-Os` with outlined functions, as Apple's compilers do for size.
    Outlined,
    /// C compiled by clang at `-Oz`, as large apps are built (arm64).
    ///
    /// Prologues and epilogues call shared helpers, and outlined functions have outlined parts.
    SharedPrologues,
    /// Rust at `-O3`.
    Rust,
    /// Rust at `-Oz`, where LLVM outlines automatically on arm64.
    RustSize,
    /// C compiled by clang for Android, with the flags of Android's programs.
    Android(&'static str),
    /// Rust at `-O3` for Android.
    RustAndroid,
    /// Rust at `-O3` with `panic=abort`: no unwind tables except those that the target always has.
    RustAbort,
}

/// A program of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Build {
    pub(super) target: Target,
    pub(super) source: Source,
    pub(super) frame_pointers: bool,
}

impl Build {
    /// Returns all programs.
    pub(super) fn all() -> Vec<Build> {
        let mut builds = Vec::new();
        for target in Target::ALL {
            for source in [Source::C("-O0"), Source::C("-O2"), Source::C("-Os"), Source::Rust] {
                for frame_pointers in [true, false] {
                    builds.push(Build { target, source, frame_pointers });
                }
            }
        }
        // Besides the matrix: outlined functions, clang's ELF, programs that don't unwind.
        let more = [
            (Target::MachoArm64, Source::Outlined),
            (Target::MachoArm64, Source::SharedPrologues),
            (Target::MachoArm64, Source::RustSize),
            (Target::MachoArm64, Source::RustAbort),
            (Target::MachoX86_64, Source::Outlined),
            (Target::ElfX86_64, Source::Clang("-O2")),
            (Target::ElfX86_64, Source::Clang("-Os")),
            (Target::ElfX86_64, Source::Outlined),
            (Target::ElfArm64, Source::Clang("-O2")),
            (Target::ElfArm64, Source::Outlined),
            (Target::ElfArm64, Source::SharedPrologues),
            (Target::ElfArm64, Source::RustSize),
            (Target::ElfArm64, Source::RustAbort),
        ];
        for (target, source) in more {
            for frame_pointers in [true, false] {
                builds.push(Build { target, source, frame_pointers });
            }
        }
        builds
    }

    /// Returns the programs for Android, built with the Android bed.
    pub(super) fn android() -> Vec<Build> {
        let mut builds = Vec::new();
        for target in [Target::ElfX86_64, Target::ElfArm64] {
            for source in [Source::Android("-O0"), Source::Android("-O2"), Source::Android("-Os"), Source::RustAndroid]
            {
                for frame_pointers in [true, false] {
                    builds.push(Build { target, source, frame_pointers });
                }
            }
        }
        builds
    }

    /// Whether parts of functions are outlined.
    pub(super) fn is_outlined(self) -> bool {
        matches!(self.source, Source::Outlined | Source::SharedPrologues | Source::RustSize)
    }

    /// Whether it is part of a short run.
    ///
    /// These are optimized programs without frame pointers, where only unwind data and code
    /// analysis help.
    pub(super) fn is_in_short(self) -> bool {
        !self.frame_pointers && matches!(self.source, Source::C("-O2") | Source::Rust)
    }

    /// Returns a name such as `macho-arm64-c-O2-nofp`, which is also the file's name.
    pub fn name(self) -> String {
        let source = match self.source {
            Source::C(level) => format!("c{level}"),
            Source::Clang(level) => format!("clang{level}"),
            Source::Outlined => String::from("clang-outlined"),
            Source::SharedPrologues => String::from("clang-shared-prologues"),
            Source::Rust => String::from("rust-O3"),
            Source::RustSize => String::from("rust-Oz"),
            Source::RustAbort => String::from("rust-O3-abort"),
            Source::Android(level) => format!("android{level}"),
            Source::RustAndroid => String::from("android-rust-O3"),
        };
        format!("{}-{source}-{}", self.target.name(), if self.frame_pointers { "fp" } else { "nofp" })
    }

    /// Returns the program's file, built if missing or older than its sources or this program.
    ///
    /// # Errors
    /// An error if a compiler is missing and can't be installed, or fails; the message contains its
    /// output.
    pub fn file(self, cache: &Path) -> anyhow::Result<PathBuf> {
        let sources = tools::workspace_root().join("fixtures/oracle");
        let file = cache.join(self.name());
        let inputs = ["program.c", "shapes.h", "program.rs", "libSystem.tbd"].map(|name| sources.join(name));
        let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        let newest = inputs.iter().filter_map(|path| modified(path)).max().unwrap_or(SystemTime::UNIX_EPOCH);
        let stamp = cache.join(format!("{}.command", self.name()));
        let command = match self.source {
            Source::C(level) | Source::Clang(level) | Source::Android(level) => self.c(level, &sources, &file)?,
            Source::Outlined => self.c("-Os", &sources, &file)?,
            Source::SharedPrologues => self.c("-Oz", &sources, &file)?,
            Source::Rust | Source::RustSize | Source::RustAbort | Source::RustAndroid => {
                self.rust(&sources, cache, &file)?
            }
        };
        let line = format!("{command:?}");
        if modified(&file).is_some_and(|built| built > newest)
            && fs::read_to_string(&stamp).is_ok_and(|old| old == line)
        {
            return Ok(file);
        }
        run(command)?;
        fs::write(stamp, line)?;
        Ok(file)
    }

    fn c(self, level: &str, sources: &Path, file: &Path) -> anyhow::Result<Command> {
        let mut command = match self.target {
            _ if matches!(self.source, Source::Android(_)) => Command::new(self.android_compiler()),
            Target::ElfX86_64 | Target::ElfArm64 if !matches!(self.source, Source::C(_)) => {
                let mut zig = Command::new(tools::zig()?);
                let arch = if self.target == Target::ElfArm64 { "aarch64" } else { "x86_64" };
                zig.args([
                    "cc",
                    "-target",
                    &format!("{arch}-linux-gnu"),
                    "-fno-sanitize=all",
                    "-Wl,--allow-shlib-undefined",
                ]);
                zig
            }
            Target::ElfX86_64 => {
                tools::debian_package("gcc", "gcc")?;
                Command::new("gcc")
            }
            // clang's CFI of arm64 prologues was inexact in a measurement (version 14); gcc's
            // isn't.
            Target::ElfArm64 => {
                tools::arm64_compiler()?;
                Command::new("aarch64-linux-gnu-gcc")
            }
            Target::MachoArm64 | Target::MachoX86_64 => {
                let mut zig = Command::new(tools::zig()?);
                let target = if self.target == Target::MachoArm64 { "aarch64-macos" } else { "x86_64-macos" };
                zig.args(["cc", "-target", target, "-fno-sanitize=all", "-Wl,-undefined,dynamic_lookup"]);
                zig
            }
        };
        // With -ffreestanding no unwind data is emitted unless requested.
        command.args([
            level,
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-ffreestanding",
            "-fno-stack-protector",
            "-funwind-tables",
        ]);
        if self.is_outlined() {
            // LLVM has the outliner for x86_64, but clang's flag is only for arm64.
            if matches!(self.target, Target::MachoArm64 | Target::ElfArm64) {
                command.arg("-moutline");
            }
            // With debug information zig leaves local symbols in ELF; the oracle needs the names of
            // outlined parts.
            command.args(["-mllvm", "-enable-machine-outliner=always", "-gline-tables-only"]);
        }
        if self.source == Source::SharedPrologues {
            // zig treats -Oz as -Os.
            command.args(["-Xclang", "-Oz"]);
            command.args(["-mllvm", "-homogeneous-prolog-epilog", "-mllvm", "-machine-outliner-reruns=2"]);
        }
        command.arg(if self.frame_pointers { "-fno-omit-frame-pointer" } else { "-fomit-frame-pointer" });
        command.arg("-o").arg(file).arg(sources.join("program.c"));
        Ok(command)
    }

    /// Returns the bed's compiler, which is also the linker. The bed is already unpacked.
    fn android_compiler(self) -> PathBuf {
        android::compiler(&tools::tools_dir().join("android-bed"), self.android_arch())
    }

    fn android_arch(self) -> Arch {
        if self.target == Target::ElfArm64 { Arch::Aarch64 } else { Arch::X86_64 }
    }

    fn rust(self, sources: &Path, cache: &Path, file: &Path) -> anyhow::Result<Command> {
        let is_android = self.source == Source::RustAndroid;
        let target = if is_android { self.android_arch().target() } else { self.target.rust().to_owned() };
        tools::rust_target(&target)?;
        let mut command = Command::new("rustc");
        command.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=program", "-Aunused"]);
        command.arg(if self.source == Source::RustSize { "-Copt-level=z" } else { "-Copt-level=3" });
        command.args(["--target", &target]);
        command.arg(format!("-Cforce-frame-pointers={}", if self.frame_pointers { "yes" } else { "no" }));
        if self.source == Source::RustAbort {
            command.arg("-Cpanic=abort");
        }
        if is_android {
            command.arg(format!("-Clinker={}", self.android_compiler().display()));
        } else if self.target == Target::ElfArm64 {
            tools::arm64_compiler()?;
            command.arg("-Clinker=aarch64-linux-gnu-gcc");
        }
        if self.target.is_macho() {
            // The toolchain's LLVM linker, which writes __unwind_info as Apple's does; it needs
            // files for -lSystem and similar libraries.
            let stubs = cache.join("stubs");
            fs::create_dir_all(&stubs)?;
            for library in ["libSystem.tbd", "libc.tbd", "libm.tbd"] {
                // Two builds may do this concurrently: the file appears atomically.
                let partial = stubs.join(format!("{library}.{}", self.name()));
                fs::copy(sources.join("libSystem.tbd"), &partial)?;
                fs::rename(&partial, stubs.join(library))?;
            }
            command.arg(format!("-Clinker={}", tools::rust_lld()?.display()));
            command.args(["-Clinker-flavor=ld64.lld", "-Clink-arg=-undefined", "-Clink-arg=dynamic_lookup"]);
            command.arg("-Clink-arg=-no_fixup_chains").arg(format!("-Clink-arg=-L{}", stubs.display()));
        }
        command.arg("-o").arg(file).arg(sources.join("program.rs"));
        Ok(command)
    }
}

fn run(mut command: Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
