//! Builds the Android library (AAR) and checks its shared libraries.
//!
//! The output is `target/aar/coroner-android-VERSION.aar`.
//!
//! See `README.md` next to this package's manifest.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::Parser as _;
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, Object as _, ObjectSymbol as _, elf};

use toolbox::android_bed::{self as android, Arch};
use toolbox::{deadline, tools};

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Build the shared libraries in this Cargo profile
    #[arg(long, default_value = "ship")]
    profile: String,
    /// Crash and relaunch a C program with the x86_64 library on the bed
    #[arg(long)]
    run: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    json: bool,
}

/// The shared library's file name and soname.
const LIBRARY: &str = "libcoroner_android.so";
/// The lowest API level of Rust's standard library.
const MIN_API: u32 = 21;
/// The largest page size of devices.
const MAX_PAGE: u64 = 16 << 10;
/// The system libraries that the shared library may need.
const SYSTEM_LIBRARIES: [&str; 4] = ["libc.so", "libm.so", "libdl.so", "liblog.so"];
/// The shared library's imports, all in the C library of [`MIN_API`].
///
/// Newer functions are looked up at run time.
const IMPORTS: &str = include_str!("imports.txt");

/// Imports of the bed's start files and libunwind, which are for API level 30 and require 23.
const IMPORTS_OF_BED: [&str; 2] = ["__register_atfork", "stderr"];
const MIN_API_OF_BED: u32 = 23;

/// The linker for Android.
enum Linker {
    Ndk(PathBuf),
    Bed(PathBuf),
}

impl Linker {
    fn find() -> anyhow::Result<Result<Self, String>> {
        if let Some(ndk) = std::env::var_os("ANDROID_NDK_HOME") {
            let tools = PathBuf::from(ndk).join("toolchains/llvm/prebuilt/linux-x86_64/bin");
            ensure!(tools.is_dir(), "missing in ANDROID_NDK_HOME: {}", tools.display());
            return Ok(Ok(Self::Ndk(tools)));
        }
        Ok(android::unpacked_bed()?.map(Self::Bed))
    }

    /// Returns the lowest API level on which its output runs.
    fn min_api(&self) -> u32 {
        match self {
            Self::Ndk(_) => MIN_API,
            Self::Bed(_) => MIN_API_OF_BED,
        }
    }

    fn cargo(&self, arch: Arch, words: &[&str]) -> Command {
        match self {
            Self::Bed(bed) => android::cargo(bed, arch, words),
            Self::Ndk(tools) => {
                let compiler = tools.join(format!("{}{MIN_API}-clang", arch.target()));
                let name = arch.target().replace('-', "_");
                let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
                command.current_dir(tools::workspace_root()).args(words).args(["--target", &arch.target()]);
                command.env(format!("CARGO_TARGET_{}_LINKER", name.to_uppercase()), &compiler);
                command.env(format!("CC_{name}"), &compiler).env(format!("AR_{name}"), tools.join("llvm-ar"));
                command
            }
        }
    }
}

/// Returns Android's name of the ABI.
fn abi(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "x86_64",
        Arch::Aarch64 => "arm64-v8a",
    }
}

/// Runs the instrument.
///
/// # Errors
/// An error if a build fails, or a library doesn't meet Android's requirements.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let linker = match Linker::find()? {
        Ok(linker) => linker,
        Err(why) => {
            println!("skipped: {why}, and ANDROID_NDK_HOME is not set");
            return Ok(());
        }
    };
    tools::debian_package("default-jdk-headless", "javac")?;
    let root = tools::workspace_root();
    let of_crate = root.join("crates/bindings/android");
    let place = tools::target_dir().join("aar");
    if place.is_dir() {
        fs::remove_dir_all(&place)?;
    }
    let content = place.join("content");
    fs::create_dir_all(&content)?;
    fs::copy(of_crate.join("aar/proguard.txt"), content.join("proguard.txt")).context("proguard.txt")?;
    let manifest = fs::read_to_string(of_crate.join("aar/AndroidManifest.xml"))?;
    let level = |level: u32| format!("android:minSdkVersion=\"{level}\"");
    ensure!(manifest.contains(&level(MIN_API)), "AndroidManifest.xml doesn't have minSdkVersion {MIN_API}");
    let manifest = manifest.replace(&level(MIN_API), &level(linker.min_api()));
    fs::write(content.join("AndroidManifest.xml"), manifest)?;
    // The library has no resources.
    fs::write(content.join("R.txt"), "")?;
    classes(&of_crate, &place, &content.join("classes.jar"))?;
    let module = content.join("prefab/modules/coroner");
    write_json(
        &content.join("prefab/prefab.json"),
        &serde_json::json!({
            "schema_version": 2, "name": "coroner", "version": env!("CARGO_PKG_VERSION"), "dependencies": [],
        }),
    )?;
    let library_name = LIBRARY.strip_suffix(".so");
    write_json(
        &module.join("module.json"),
        &serde_json::json!({ "export_libraries": [], "library_name": library_name }),
    )?;
    fs::create_dir_all(module.join("include"))?;
    fs::copy(root.join("crates/bindings/ffi/include/coroner.h"), module.join("include/coroner.h"))?;
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let library = shared_library(&linker, arch, &arguments.profile, &place)?;
        let prefab = module.join(format!("libs/android.{}", abi(arch)));
        write_json(
            &prefab.join("abi.json"),
            &serde_json::json!({ "abi": abi(arch), "api": linker.min_api(), "ndk": 26, "stl": "none", "static": false }),
        )?;
        let jni = content.join("jni").join(abi(arch));
        fs::create_dir_all(&jni)?;
        fs::copy(&library, jni.join(LIBRARY))?;
        fs::copy(&library, prefab.join(LIBRARY))?;
        println!("{} {} kB", abi(arch), library.metadata()?.len() / 1000);
        if let Linker::Bed(bed) = &linker {
            link_example(bed, arch, &prefab, &place)?;
            if arguments.run && arch == Arch::X86_64 {
                run_example(bed, &prefab, &place)?;
            }
        }
    }
    let archive = place.join(format!("coroner-android-{}.aar", env!("CARGO_PKG_VERSION")));
    zip(&content, &archive)?;
    fs::remove_dir_all(&content)?;
    println!("{}", archive.display());
    Ok(())
}

fn succeed(command: &mut Command) -> anyhow::Result<()> {
    let status = deadline::status(command).with_context(|| format!("{}", command.get_program().display()))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

fn write_json(path: &Path, value: &serde_json::Value) -> anyhow::Result<()> {
    fs::create_dir_all(path.parent().context("a file's folder")?)?;
    Ok(fs::write(path, format!("{value:#}\n"))?)
}

/// Zips a folder reproducibly.
fn zip(folder: &Path, archive: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("jar");
    // The earliest date in a zip file.
    command.args(["--create", "--no-manifest", "--date=1980-01-01T00:00:02Z", "--file"]).arg(archive);
    succeed(command.arg("-C").arg(folder).arg("."))
}

/// Compiles the Java classes, for Android 5 and later.
///
/// Android's own classes are those of the SDK if `ANDROID_HOME` is set, or else the few in the
/// tests.
fn classes(of_crate: &Path, place: &Path, jar: &Path) -> anyhow::Result<()> {
    let classes = place.join("classes");
    let mut command = Command::new("javac");
    command.args(["--release", "8", "-encoding", "UTF-8", "-Xlint:all,-options", "-Werror", "-implicit:none", "-g"]);
    match std::env::var_os("ANDROID_HOME") {
        Some(sdk) => {
            let platforms = fs::read_dir(Path::new(&sdk).join("platforms")).context("the platforms of ANDROID_HOME")?;
            let jars = platforms.filter_map(|entry| Some(entry.ok()?.path().join("android.jar")));
            let newest = jars.filter(|jar| jar.is_file()).max().context("no android.jar in ANDROID_HOME")?;
            command.arg("-classpath").arg(newest);
        }
        None => {
            command.arg("-sourcepath").arg(of_crate.join("tests/java"));
        }
    }
    for entry in fs::read_dir(of_crate.join("java/dev/coroner"))? {
        command.arg(entry?.path());
    }
    succeed(command.arg("-d").arg(&classes))?;
    zip(&classes, jar)
}

/// Builds the library, keeps a copy with symbols next to the archive, and returns the stripped one.
fn shared_library(linker: &Linker, arch: Arch, profile: &str, place: &Path) -> anyhow::Result<PathBuf> {
    let words = ["build", "--quiet", "-p", "coroner-android", "--lib", "--profile", profile];
    succeed(&mut linker.cargo(arch, &words))?;
    let folder = if profile == "dev" { "debug" } else { profile };
    let built = tools::target_dir().join(arch.target()).join(folder).join(LIBRARY);
    let symbols = place.join("symbols").join(abi(arch));
    fs::create_dir_all(&symbols)?;
    fs::copy(&built, symbols.join(LIBRARY)).with_context(|| format!("{}", built.display()))?;
    let stripped = place.join("stripped").join(abi(arch));
    fs::create_dir_all(&stripped)?;
    let stripped = stripped.join(LIBRARY);
    let objcopy = tools::rust_lld()?.with_file_name("rust-objcopy");
    // It is in lib/rustlib/HOST/bin, and looks for LLVM, which is in lib, in the wrong place.
    let llvm = objcopy.ancestors().nth(4).context("the toolchain's libraries")?;
    let mut strip = Command::new(&objcopy);
    succeed(strip.env("LD_LIBRARY_PATH", llvm).arg("--strip-unneeded").arg(&built).arg(&stripped))?;
    check(&stripped, arch, linker).with_context(|| format!("{LIBRARY} for {}", abi(arch)))?;
    Ok(stripped)
}

/// Checks that every Android version from the linker's API level on can load a shared library.
fn check(library: &Path, arch: Arch, linker: &Linker) -> anyhow::Result<()> {
    let data = fs::read(library)?;
    let file = ElfFile64::<LittleEndian>::parse(&*data)?;
    let endian = LittleEndian;
    let machine = if arch == Arch::X86_64 { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    ensure!(file.elf_header().e_machine(endian) == machine, "unexpected processor");
    for header in file.elf_program_headers() {
        let (kind, alignment) = (header.p_type(endian), header.p_align(endian));
        ensure!(kind != elf::PT_LOAD || alignment >= MAX_PAGE, "a segment is aligned to {alignment} bytes");
    }
    ensure!(file.build_id()?.is_some(), "missing build ID");
    let mut soname = None;
    let mut needed = Vec::new();
    let (entries, link) = file.elf_section_table().dynamic(endian, &*data)?.context("missing dynamic section")?;
    let strings = file.elf_section_table().strings(endian, &*data, link)?;
    for entry in entries {
        let text = || Ok::<_, anyhow::Error>(str::from_utf8(entry.string(endian, strings)?)?);
        match entry.tag(endian) {
            elf::DT_SONAME => soname = Some(text()?),
            elf::DT_NEEDED => needed.push(text()?),
            _ => {}
        }
    }
    ensure!(soname == Some(LIBRARY), "unexpected SONAME: expected {LIBRARY}, got {soname:?}");
    let others: Vec<_> = needed.iter().filter(|name| !SYSTEM_LIBRARIES.contains(name)).collect();
    ensure!(others.is_empty(), "unexpected needed libraries: {others:?}");
    let mut known: BTreeSet<&str> = IMPORTS.lines().filter(|line| !line.starts_with('#')).collect();
    if matches!(linker, Linker::Bed(_)) {
        known.extend(IMPORTS_OF_BED);
    }
    let mut exports = BTreeSet::new();
    let mut unknown = Vec::new();
    for symbol in file.dynamic_symbols() {
        let name = symbol.name()?;
        if !symbol.is_undefined() {
            exports.insert(name);
        } else if !symbol.is_weak() && !name.is_empty() && !known.contains(name) {
            unknown.push(name);
        }
    }
    ensure!(
        unknown.is_empty(),
        "unknown imports: {unknown:?}; add those that API level {MIN_API} has to tools/aar/src/imports.txt"
    );
    for name in ["coroner_install", "coroner_set_tag", "coroner_config_add_sentry_sink", "coroner_config_add_otlp_sink"]
    {
        ensure!(exports.contains(name), "missing export: {name}");
    }
    let natives = exports.iter().filter(|name| name.starts_with("Java_dev_coroner_Coroner_native")).count();
    ensure!(natives == NATIVES, "unexpected number of native methods: expected {NATIVES}, got {natives}");
    Ok(())
}

/// Number of native methods in the Java class.
const NATIVES: usize = 14;

/// Links the C++ code of the Gradle example as its CMake would, with the archive's contents.
fn link_example(bed: &Path, arch: Arch, prefab: &Path, place: &Path) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let include = prefab.join("../../include");
    let jdk = fs::canonicalize(which("javac")?)?;
    let jdk = jdk.ancestors().nth(2).context("a JDK")?.join("include");
    let mut command = Command::new(bed.join(format!("cc-{}", arch.name())));
    command.args(["-shared", "-fPIC", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-Wl,-z,max-page-size=16384", "-o"]);
    command.arg(place.join(format!("libshop-{}.so", arch.name())));
    command.arg(root.join("examples/android/app/src/main/cpp/shop.cpp"));
    command.arg("-I").arg(include).arg("-I").arg(&jdk).arg("-I").arg(jdk.join("linux"));
    succeed(command.arg("-L").arg(prefab).arg("-lcoroner_android"))
}

fn which(program: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|path| path.is_file());
    found.with_context(|| format!("no {program} on the path"))
}

/// Runs a C program with the library on the device's bionic.
///
/// It crashes, and its next launch delivers the report.
fn run_example(bed: &Path, prefab: &Path, place: &Path) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let program = place.join("notes");
    let mut command = Command::new(bed.join("cc-x86_64"));
    command.args(["-g", "-o"]).arg(&program).arg(root.join("examples/c/notes.c"));
    command.arg("-I").arg(prefab.join("../../include")).arg("-L").arg(prefab).arg("-lcoroner_android");
    succeed(&mut command)?;
    let store = tempfile::tempdir()?;
    let system = bed.join("device/x86_64/system");
    let launch = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.args(words).env("LD_LIBRARY_PATH", prefab).env("NOTES_STORE", store.path());
        android::on_device(&system, &mut command)
    };
    ensure!(launch(&["crash"]).is_err(), "the example did not crash");
    launch(&[])?;
    let reports = store.path().join("reports");
    if fs::read_dir(&reports).is_ok_and(|mut entries| entries.next().is_some()) {
        return Ok(());
    }
    bail!("the next launch of the example delivered no report to {}", reports.display())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let outcome = run(&arguments);
    if arguments.json {
        let error = outcome.as_ref().err().map(|error| format!("{error:#}"));
        println!("{}", serde_json::json!({ "tool": "aar", "pass": outcome.is_ok(), "error": error }));
    }
    outcome
}
