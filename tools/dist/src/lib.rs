//! Packages the C library, the Swift package for Apple systems, and the command's Debian package.
//!
//! The C library is `target/dist/coroner-VERSION-TARGET.tar.gz`, and `coroner-lean-…` with smaller
//! libraries that have the same functions. Builds are reproducible. See the package's `README.md`.

mod apple;
mod check;
mod debian;
mod workflows;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use flate2::{Compression, GzBuilder};
use object::{Object as _, ObjectSymbol as _};

use toolbox::{deadline, tools};

#[derive(Debug, clap::Parser)]
#[command(about)]
pub struct Arguments {
    /// Build the libraries in this Cargo profile
    #[arg(long, default_value = "ship")]
    profile: String,
    /// Build for this target instead of this machine
    #[arg(long)]
    target: Option<String>,
    /// Add features of coroner-ffi, such as `sentry`; makes no lean archive
    #[arg(long)]
    features: Option<String>,
    /// Also unpack the archives below this folder
    #[arg(long)]
    prefix: Option<PathBuf>,
    /// Build and crash programs with the archives; check their reports
    #[arg(long)]
    check: bool,
    /// Make the Swift package for Apple's systems instead
    #[arg(long, conflicts_with_all = ["target", "prefix", "check"])]
    apple: bool,
    /// Make the command's Debian package and its SBOM instead
    #[arg(long, conflicts_with_all = ["target", "prefix", "check", "features", "apple"])]
    debian: bool,
    /// Check the workflows and try the release scripts instead
    #[arg(long, conflicts_with_all = ["target", "prefix", "check", "features", "apple", "debian"])]
    workflows: bool,
    /// Print one JSON object, a row per file and check, as the last line
    #[arg(long)]
    json: bool,
}

/// The features of `coroner-ffi` in an archive.
#[derive(Clone, Copy, PartialEq)]
enum Contents {
    /// The default features, and the requested ones.
    Full,
    /// Only [`LEAN`].
    Lean,
}

/// Features of the lean libraries: the default ones except `json`, `panics` and `symbolicate`.
pub const LEAN: &str = "exceptions,interpose-cxa-throw,interpose-pthread-create,soname";
/// The lean libraries' profile, if the others are built in `ship`.
pub const LEAN_PROFILE: &str = "ship-lean";

/// Returns the profile of an archive's libraries.
fn profile(arguments: &Arguments, contents: Contents) -> &str {
    match (contents, arguments.profile.as_str()) {
        (Contents::Lean, "ship") => LEAN_PROFILE,
        (_, other) => other,
    }
}

/// The library that Windows programs link with to use the shared library.
const IMPORT_LIBRARY: &str = "libcoroner_ffi.dll.a";

/// A line of the result.
struct Row {
    what: String,
    bytes: Option<u64>,
    error: Option<String>,
}

/// Runs the instrument.
///
/// # Errors
/// An error if a build fails, a file can't be written, or a check fails.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.workflows {
        return report(arguments, &workflows::check(), &[]);
    }
    let other: Option<fn(&Arguments) -> _> = match (arguments.apple, arguments.debian) {
        (true, _) => Some(apple::make),
        (_, true) => Some(debian::make),
        _ => None,
    };
    if let Some(make) = other {
        let archive = make(arguments)?;
        let row = Row { what: archive.display().to_string(), bytes: Some(archive.metadata()?.len()), error: None };
        return report(arguments, &[row], &[&archive]);
    }
    let host = host()?;
    let target = arguments.target.clone().unwrap_or_else(|| host.clone());
    let kinds: &[Contents] = match arguments.features {
        Some(_) => &[Contents::Full],
        None => &[Contents::Full, Contents::Lean],
    };
    let made: Vec<_> = kinds.iter().map(|contents| make(arguments, &target, *contents)).collect::<Result<_, _>>()?;

    let mut rows: Vec<Row> = Vec::new();
    for (folder, archive) in &made {
        let name = folder.file_name().unwrap_or_default().display();
        for file in files_of(folder)? {
            let what = format!("{name}/{}", file.strip_prefix(folder)?.display());
            rows.push(Row { what, bytes: Some(file.symlink_metadata()?.len()), error: None });
        }
        rows.push(Row { what: format!("{name}.tar.gz"), bytes: Some(archive.metadata()?.len()), error: None });
        if let Some(prefix) = &arguments.prefix {
            unpack(archive, prefix)?;
            println!("unpacked to {}", prefix.join(name.to_string()).display());
        }
    }
    if arguments.check {
        ensure!(target == host, "can't run programs for {target} here");
        for (contents, (folder, archive)) in kinds.iter().zip(&made) {
            let scratch = tempfile::tempdir()?;
            unpack(archive, scratch.path())?;
            let name = folder.file_name().unwrap_or_default();
            for (what, outcome) in
                check::all(&scratch.path().join(name), scratch.path(), *contents, arguments.profile == "ship")
            {
                let what = format!("{}: {what}", name.display());
                rows.push(Row { what, bytes: None, error: outcome.err().map(|error| format!("{error:#}")) });
            }
        }
        if let [(full, _), (lean, _)] = &made[..] {
            let same = check::same_functions(full, lean);
            let what = "both shared libraries have the same name and functions".to_owned();
            rows.push(Row { what, bytes: None, error: same.err().map(|error| format!("{error:#}")) });
        }
    }
    let archives: Vec<_> = made.iter().map(|(_, archive)| archive.as_path()).collect();
    report(arguments, &rows, &archives)
}

/// Returns an archive's name for a target, without its extension.
pub fn name(target: &str) -> String {
    name_of(target, Contents::Full)
}

fn name_of(target: &str, contents: Contents) -> String {
    let what = if contents == Contents::Lean { "coroner-lean" } else { "coroner" };
    format!("{what}-{}-{target}", env!("CARGO_PKG_VERSION"))
}

/// Unpacks the archive for this machine, as shipped, below `prefix`; returns its path there.
///
/// # Errors
/// An error if the archive can't be built or unpacked.
pub fn unpacked(prefix: &Path) -> anyhow::Result<PathBuf> {
    let target = host()?;
    let arguments = Arguments {
        profile: "ship".to_owned(),
        target: None,
        features: None,
        prefix: None,
        check: false,
        apple: false,
        debian: false,
        workflows: false,
        json: false,
    };
    let (_, archive) = make(&arguments, &target, Contents::Full)?;
    unpack(&archive, prefix)?;
    Ok(prefix.join(name(&target)))
}

/// Builds the libraries, and packs them with the other files; returns the folder and the archive.
fn make(arguments: &Arguments, target: &str, contents: Contents) -> anyhow::Result<(PathBuf, PathBuf)> {
    let name = name_of(target, contents);
    let place = tools::target_dir().join("dist");
    let folder = place.join(&name);
    if folder.is_dir() {
        fs::remove_dir_all(&folder)?;
    }
    build(arguments, target, contents)?;
    lay_out(&folder, &libraries(profile(arguments, contents), target), target, arguments.features.as_deref())?;
    let archive = place.join(format!("{name}.tar.gz"));
    pack(&folder, &name, &archive)?;
    Ok((folder, archive))
}

fn report(arguments: &Arguments, rows: &[Row], archives: &[&Path]) -> anyhow::Result<()> {
    for row in rows {
        match (&row.error, row.bytes) {
            (Some(error), _) => println!("FAIL {}: {error}", row.what),
            (None, Some(bytes)) => println!("{bytes:>10} {}", row.what),
            (None, None) => println!("ok   {}", row.what),
        }
    }
    archives.iter().for_each(|archive| println!("{}", archive.display()));
    let failed = rows.iter().filter(|row| row.error.is_some()).count();
    if arguments.json {
        let rows: Vec<_> = rows
            .iter()
            .map(|row| serde_json::json!({ "what": row.what, "bytes": row.bytes, "unit": "bytes", "error": row.error }))
            .collect();
        println!("{}", serde_json::json!({ "tool": "dist", "pass": failed == 0, "rows": rows }));
    }
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}

/// Returns this machine's target triple.
///
/// # Errors
/// An error if rustc can't be run.
pub fn host() -> anyhow::Result<String> {
    let printed = Command::new("rustc").arg("-vV").output().context("rustc")?;
    let text = String::from_utf8(printed.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("no host in the output of rustc -vV")?.to_owned())
}

fn build(arguments: &Arguments, target: &str, contents: Contents) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(tools::workspace_root()).args(["rustc", "--quiet", "-p", "coroner-ffi", "--lib"]);
    // The crate types are given explicitly, because a Rust library among them would disable
    // cross-crate optimization.
    command.args(["--crate-type", "cdylib,staticlib", "--profile", profile(arguments, contents)]);
    command.args(["--target", target]);
    if contents == Contents::Lean {
        command.args(["--no-default-features", "--features", LEAN]);
    } else if let Some(features) = &arguments.features {
        command.args(["--features", features]);
    }
    println!("building {}: some minutes", name_of(target, contents));
    let status = deadline::status(&mut command)?;
    ensure!(status.success(), "can't build coroner-ffi: {status}");
    Ok(())
}

/// Returns the folder in which cargo put the libraries.
fn libraries(profile: &str, target: &str) -> PathBuf {
    let profile = if profile == "dev" { "debug" } else { profile };
    tools::target_dir().join(target).join(profile)
}

/// Returns the shared library's soname on Linux.
///
/// It includes the part of the version within which functions stay compatible.
pub fn soname() -> String {
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    let version = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
    format!("libcoroner_ffi.so.{version}")
}

/// Returns the shared library's names on a target: cargo's file, the archive's, the soname.
fn shared_library(target: &str) -> (&'static str, String, String) {
    let plain = match target {
        _ if target.contains("apple") => "libcoroner_ffi.dylib",
        _ if target.contains("windows") => "coroner_ffi.dll",
        _ => "libcoroner_ffi.so",
    };
    match target {
        _ if target.contains("apple") => (plain, plain.to_owned(), format!("@rpath/{plain}")),
        _ if target.contains("android") || target.contains("windows") => (plain, plain.to_owned(), plain.to_owned()),
        _ => (plain, format!("{plain}.{}", env!("CARGO_PKG_VERSION")), soname()),
    }
}

/// Returns the libraries that a program links with the static library.
fn system_libraries(target: &str) -> &'static str {
    match target {
        _ if target.contains("apple") => "",
        // From rustc's `--print native-static-libs`.
        _ if target.contains("windows") => "-lntdll -luserenv -lws2_32 -ldbghelp",
        _ => "-lpthread -ldl -lm",
    }
}

/// Returns the documentation page on C as an archive's README.
///
/// Links to files that are not in the archive lead to the published ones.
fn readme(page: &str) -> String {
    const FILES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main");
    let linked = |(place, text): (usize, &str)| match text {
        _ if place == 0 || text.starts_with('#') || text.starts_with("http") => text.to_owned(),
        _ => text.strip_prefix("..").map_or_else(|| format!("{FILES}/docs/{text}"), |path| format!("{FILES}{path}")),
    };
    page.split("](").enumerate().map(linked).collect::<Vec<_>>().join("](")
}

/// Puts `libraries` and the other files into `folder`, laid out as in an archive.
///
/// # Errors
/// An error if a file can't be read or written.
pub fn lay_out(folder: &Path, libraries: &Path, target: &str, features: Option<&str>) -> anyhow::Result<()> {
    let root = tools::workspace_root();
    let (lib, include) = (folder.join("lib"), folder.join("include"));
    let (pkg_config, cmake) = (lib.join("pkgconfig"), lib.join("cmake/coroner"));
    for directory in [&include, &pkg_config, &cmake] {
        fs::create_dir_all(directory)?;
    }
    let copy = |from: &Path, to: PathBuf| {
        fs::copy(from, &to).map(|_| ()).with_context(|| format!("{} to {}", from.display(), to.display()))
    };
    let header = fs::read_to_string(root.join("crates/bindings/ffi/include/coroner.h"))?;
    fs::write(include.join("coroner.h"), apple::with_features(&header, features))?;
    if target.contains("apple") {
        copy(&root.join("crates/bindings/ffi/include/coroner_apple.h"), include.join("coroner_apple.h"))?;
    }
    copy(&root.join("LICENSE-MIT"), folder.join("LICENSE-MIT"))?;
    copy(&root.join("LICENSE-APACHE"), folder.join("LICENSE-APACHE"))?;
    fs::write(folder.join("README.md"), readme(&fs::read_to_string(root.join("docs/c.md"))?))?;
    copy(&libraries.join("libcoroner_ffi.a"), lib.join("libcoroner_ffi.a"))?;
    let (plain, shared, soname) = shared_library(target);
    let mut shared_folder = "lib";
    let mut name_property = format!("IMPORTED_SONAME \"{soname}\"");
    if target.contains("windows") {
        // Beside the programs that need it. They are linked with another file, which lists its
        // contents.
        shared_folder = "bin";
        fs::create_dir_all(folder.join(shared_folder))?;
        copy(&libraries.join(IMPORT_LIBRARY), lib.join(IMPORT_LIBRARY))?;
        name_property = format!("IMPORTED_IMPLIB \"${{CORONER_PREFIX}}/lib/{IMPORT_LIBRARY}\"");
    }
    let shared_place = folder.join(shared_folder).join(&shared);
    copy(&libraries.join(plain), shared_place.clone())?;
    strip(&lib.join("libcoroner_ffi.a"), &shared_place, target)?;
    if shared != plain {
        // The names that programs need, and that linkers look for.
        for (link, to) in [(soname.as_str(), shared.as_str()), (plain, &soname)] {
            symlink(to, lib.join(link)).with_context(|| format!("{link} to {to}"))?;
        }
    }

    let texts = [
        (pkg_config.join("coroner.pc"), include_str!("coroner.pc")),
        (cmake.join("coroner-config.cmake"), include_str!("coroner-config.cmake")),
        (cmake.join("coroner-config-version.cmake"), include_str!("coroner-config-version.cmake")),
    ];
    for (path, text) in texts {
        let is_cmake = path.extension().is_some_and(|extension| extension == "cmake");
        let system = system_libraries(target);
        let system = if is_cmake { system.replace(' ', ";") } else { system.to_owned() };
        let text = text
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"))
            .replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
            .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
            .replace("@SHARED@", &format!("{shared_folder}/{shared}"))
            .replace("@NAME_PROPERTY@", &name_property)
            .replace("@SYSTEM_LIBRARIES@", &system);
        fs::write(path, text)?;
    }
    Ok(())
}

/// Removes debug information; symbols for linking and unwind data stay.
fn strip(archive: &Path, shared: &Path, target: &str) -> anyhow::Result<()> {
    let program = match target {
        _ if target.contains("apple") => return Ok(()),
        "aarch64-unknown-linux-gnu" => "aarch64-linux-gnu-strip",
        "x86_64-pc-windows-gnu" => "x86_64-w64-mingw32-strip",
        _ => "strip",
    };
    if target.contains("windows") {
        leave_out_split_debug_information(archive)?;
    } else {
        separate_from_other_rust(archive, &program.replace("strip", "objcopy"))?;
    }
    for (file, what) in [(archive, "--strip-debug"), (shared, "--strip-unneeded")] {
        // A DLL contains timestamps, too.
        quietly(Command::new(program).args([what, "--preserve-dates", "--enable-deterministic-archives"]).arg(file))?;
    }
    Ok(())
}

/// Makes the static library linkable beside another Rust static library, and by clang with LTO.
///
/// Both libraries would define Rust's personality routine, and those items of the standard library
/// that link-time optimization leaves global. Rust's bitcode is of another LLVM than the linker's.
fn separate_from_other_rust(archive: &Path, objcopy: &str) -> anyhow::Result<()> {
    let mut command = Command::new(objcopy);
    command.args(["--preserve-dates", "--enable-deterministic-archives"]);
    command.args(["--remove-section", ".llvmbc", "--remove-section", ".llvmcmd"]);
    let list = archive.with_extension("local-symbols");
    // Without link-time optimization, the standard library has its own members in both libraries,
    // and the linker takes one of them.
    if let Some(names) = local_names(&fs::read(archive)?)? {
        fs::write(&list, names)?;
        command.arg("--localize-symbols").arg(&list);
        for prefix in ["", "DW.ref."] {
            let name = format!("{prefix}rust_eh_personality={prefix}coroner_rust_eh_personality");
            command.args(["--redefine-sym", &name]);
        }
    }
    let done = quietly(command.arg(archive));
    _ = fs::remove_file(&list);
    done.map(drop)
}

/// Returns Rust's mangled names that one member of the archive defines and no other refers to, a
/// line each; `None` if the Rust code is in several members.
fn local_names(archive: &[u8]) -> anyhow::Result<Option<String>> {
    let (mut defined, mut used) = (BTreeSet::new(), BTreeSet::new());
    let mut rust_members = 0;
    for member in object::read::archive::ArchiveFile::parse(archive)?.members() {
        let member = member?;
        let name = String::from_utf8_lossy(member.name());
        rust_members += usize::from(name.ends_with(".rcgu.o") && !name.starts_with("compiler_builtins"));
        let file = object::File::parse(member.data(archive)?)?;
        for symbol in file.symbols().filter(object::ObjectSymbol::is_global) {
            let name = symbol.name()?;
            if name.starts_with("_R") || name.starts_with("_ZN") {
                if symbol.is_undefined() { &mut used } else { &mut defined }.insert(name.to_owned());
            }
        }
    }
    let names = defined.difference(&used).map(|name| format!("{name}\n")).collect();
    Ok((rust_members == 1).then_some(names))
}

/// Runs a binutils tool.
///
/// If LLVM's plugin is installed, the tool prints a warning about each archive member with Rust's
/// bitcode.
fn quietly(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Removes members that contain only debug information (`.dwo`), which `strip` rejects.
///
/// Rust's standard library for mingw-w64 has such members.
fn leave_out_split_debug_information(archive: &Path) -> anyhow::Result<()> {
    const AR: &str = "x86_64-w64-mingw32-ar";
    let listed = String::from_utf8_lossy(&quietly(Command::new(AR).arg("t").arg(archive))?).into_owned();
    let split: Vec<&str> = listed.lines().filter(|name| name.ends_with(".dwo")).collect();
    if !split.is_empty() {
        quietly(Command::new(AR).arg("dD").arg(archive).args(split))?;
    }
    Ok(())
}

/// Returns all files below a folder, sorted by name.
fn files_of(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() { waiting.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Packs a folder under a name, reproducibly: sorted names, no owners, no times.
fn pack(folder: &Path, name: &str, archive: &Path) -> anyhow::Result<()> {
    let file = fs::File::create(archive).with_context(|| archive.display().to_string())?;
    let mut tar = tar::Builder::new(GzBuilder::new().mtime(0).write(file, Compression::best()));
    tar.mode(tar::HeaderMode::Deterministic);
    tar.follow_symlinks(false);
    for path in files_of(folder)? {
        tar.append_path_with_name(&path, Path::new(name).join(path.strip_prefix(folder)?))?;
    }
    tar.into_inner()?.finish()?;
    Ok(())
}

fn unpack(archive: &Path, into: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(into)?;
    let file = fs::File::open(archive)?;
    tar::Archive::new(flate2::read::GzDecoder::new(file)).unpack(into)?;
    Ok(())
}
