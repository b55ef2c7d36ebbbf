//! Programs outside the workspace that use an unpacked archive as an app would.
//!
//! They use pkg-config and CMake, static and shared.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use coroner_report::model::Report;

use super::Contents;
use toolbox::tools;

const PROGRAM: &str = r#"
#include <coroner.h>
#include <stdio.h>
#include <stdlib.h>

static bool keep(void *context, const char *json)
{
    return context == NULL && json != NULL;
}

int main(int count, char **words)
{
    coroner_config *config = coroner_config_new("com.example.dist");
    coroner_config_set_store_dir(config, words[1]);
    if (coroner_config_set_before_deliver(config, keep, NULL) != CORONER_STATUS_OK)
        printf("%s\n", coroner_last_error());
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "%s\n", coroner_last_error());
        return 1;
    }
    if (count > 2)
        abort();
    return coroner_flush(20000) == CORONER_STATUS_OK ? 0 : 2;
}
"#;

/// A Rust library that unwinds, with the standard library in it.
const OTHER_LIBRARY: &str = r#"
#[unsafe(no_mangle)]
pub extern "C" fn other_rust(number: i32) -> i32 {
    let sum = move || std::panic::catch_unwind(|| (0..number).collect::<Vec<i32>>().iter().sum::<i32>());
    std::thread::spawn(sum).join().map_or(-1, |sum| sum.unwrap_or(-1))
}
"#;

/// Calls the other library before `main`.
const OTHER_CALLER: &str = "
int other_rust(int);
void _Exit(int);
__attribute__((constructor)) static void call(void)
{
    if (other_rust(10) != 45)
        _Exit(3);
}
";

const CMAKE_LISTS: &str = "
cmake_minimum_required(VERSION 3.16)
project(app C)
find_package(coroner 0.1 REQUIRED)
add_executable(static main.c)
target_link_libraries(static PRIVATE coroner::static)
add_executable(shared main.c)
target_link_libraries(shared PRIVATE coroner::shared)
";

/// Runs a command; returns its output if it succeeded.
fn succeed(command: &mut Command) -> anyhow::Result<Output> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

/// Runs all checks of the archive at `unpacked`, and returns each outcome.
///
/// Files go below `scratch`. With `is_shipped`, the library is made with link-time optimization.
pub(super) fn all(
    unpacked: &Path,
    scratch: &Path,
    contents: Contents,
    is_shipped: bool,
) -> Vec<(String, anyhow::Result<()>)> {
    let source = scratch.join("main.c");
    let written = fs::write(&source, PROGRAM).context("the program");
    let mut rows = vec![("the program is written".to_owned(), written)];
    for (name, words) in
        [("pkg-config, shared", &["--cflags", "--libs"][..]), ("pkg-config, static", &["--cflags"][..])]
    {
        rows.push((name.to_owned(), by_pkg_config(unpacked, scratch, &source, words, contents)));
    }
    rows.extend([("CMake".to_owned(), by_cmake(unpacked, scratch, &source, contents))]);
    if is_shipped {
        let beside = beside_another_rust_library(unpacked, scratch, &source, contents);
        rows.push(("static, beside another Rust library".to_owned(), beside));
    }
    rows
}

fn by_pkg_config(
    unpacked: &Path,
    scratch: &Path,
    source: &Path,
    words: &[&str],
    contents: Contents,
) -> anyhow::Result<()> {
    tools::debian_package("pkg-config", "pkg-config")?;
    let asked = |words: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", unpacked.join("lib/pkgconfig")).args(words).arg("coroner");
        let output = succeed(&mut command)?;
        let text = String::from_utf8(output.stdout)?;
        anyhow::Ok(text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let program = scratch.join("by-pkg-config");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&program).arg(source).args(asked(words)?);
    if words.contains(&"--libs") {
        compiler.arg(format!("-Wl,-rpath,{}", unpacked.join("lib").display()));
    } else {
        let libraries = asked(&["--static", "--libs-only-l"])?;
        compiler.arg(unpacked.join("lib/libcoroner_ffi.a"));
        compiler.args(libraries.iter().filter(|library| *library != "-lcoroner_ffi"));
    }
    succeed(&mut compiler)?;
    if words.contains(&"--libs") {
        needs_by_version(&program)?;
    }
    crash(&program, &scratch.join(format!("store-{}", words.len())), contents)
}

fn by_cmake(unpacked: &Path, scratch: &Path, source: &Path, contents: Contents) -> anyhow::Result<()> {
    tools::debian_package("cmake", "cmake")?;
    let project = scratch.join("project");
    fs::create_dir_all(&project)?;
    fs::copy(source, project.join("main.c"))?;
    fs::write(project.join("CMakeLists.txt"), CMAKE_LISTS)?;
    let build = project.join("build");
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", unpacked.display());
    succeed(Command::new("cmake").arg("-S").arg(&project).arg("-B").arg(&build).arg(prefix))?;
    succeed(Command::new("cmake").arg("--build").arg(&build))?;
    needs_by_version(&build.join("shared"))?;
    for kind in ["static", "shared"] {
        crash(&build.join(kind), &scratch.join(format!("store-{kind}")), contents).context(kind)?;
    }
    Ok(())
}

/// Links the static library with two others of Rust, before and after it, and by clang with LTO.
///
/// One of the others is made with link-time optimization, as Coroner's is.
fn beside_another_rust_library(
    unpacked: &Path,
    scratch: &Path,
    source: &Path,
    contents: Contents,
) -> anyhow::Result<()> {
    let folder = scratch.join("beside");
    fs::create_dir_all(&folder)?;
    let (rust, caller) = (folder.join("other.rs"), folder.join("caller.c"));
    fs::write(&rust, OTHER_LIBRARY)?;
    fs::write(&caller, OTHER_CALLER)?;
    let ours = unpacked.join("lib/libcoroner_ffi.a");
    let links_by_clang = tools::on_path("clang") && tools::on_path("ld.lld");
    let compilers: &[&[&str]] =
        if links_by_clang { &[&["cc"], &["clang", "-flto", "-fuse-ld=lld"]] } else { &[&["cc"]] };
    for lto in ["lto=off", "lto=fat"] {
        let other = folder.join(format!("{lto}.a"));
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-O", "--crate-type", "staticlib", "-C", lto]);
        succeed(rustc.arg("-o").arg(&other).arg(&rust))?;
        for compiler in compilers {
            for (number, order) in [[&ours, &other], [&other, &ours]].iter().enumerate() {
                let program = folder.join("program");
                let mut link = Command::new(compiler[0]);
                link.args(&compiler[1..]).arg("-I").arg(unpacked.join("include")).arg("-o").arg(&program);
                succeed(link.arg(source).arg(&caller).args(*order).args(["-lpthread", "-ldl", "-lm"]))?;
                crash(&program, &folder.join(format!("store-{lto}-{}-{number}", compiler[0])), contents)
                    .with_context(|| format!("{compiler:?}, {lto}, order {number}"))?;
            }
        }
    }
    Ok(())
}

/// Checks that the program needs the shared library under its versioned name.
fn needs_by_version(program: &Path) -> anyhow::Result<()> {
    let output = succeed(Command::new("readelf").args(["--dynamic", "--wide"]).arg(program))?;
    let text = String::from_utf8(output.stdout)?;
    let needed: Vec<&str> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    ensure!(
        needed.iter().any(|line| line.ends_with(&format!("[{}]", super::soname()))),
        "the SONAME is not among the needed libraries: {needed:?}"
    );
    Ok(())
}

/// Checks that two folders' shared libraries export the same functions, and have the same soname.
pub(super) fn same_functions(full: &Path, lean: &Path) -> anyhow::Result<()> {
    let says = |folder: &Path| {
        let library = folder.join("lib/libcoroner_ffi.so");
        let exported = succeed(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library))?;
        let exported = String::from_utf8(exported.stdout)?;
        let names = exported.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned);
        let dynamic = succeed(Command::new("readelf").args(["--dynamic", "--wide"]).arg(&library))?;
        let dynamic = String::from_utf8(dynamic.stdout)?;
        let soname =
            dynamic.lines().find(|line| line.contains("(SONAME)")).and_then(|line| line.split('[').next_back());
        anyhow::Ok((names.collect::<BTreeSet<_>>(), soname.unwrap_or_default().to_owned()))
    };
    let ((full, name), (lean, lean_name)) = (says(full)?, says(lean)?);
    ensure!(full.contains("coroner_install") && full.contains("pthread_create"), "missing exports: {full:?}");
    let differ: Vec<_> = full.symmetric_difference(&lean).collect();
    ensure!(differ.is_empty(), "exported by one library only: {differ:?}");
    ensure!(name == lean_name, "different SONAMEs: {name} and {lean_name}");
    Ok(())
}

/// Crashes the program, starts it again, and checks the report.
///
/// The report is JSON, or the raw file, whose frames the command names.
fn crash(program: &Path, store: &Path, contents: Contents) -> anyhow::Result<()> {
    let died = Command::new(program).arg(store).arg("crash").output()?;
    ensure!(died.status.signal() == Some(libc::SIGABRT), "unexpected exit: expected SIGABRT, got {}", died.status);
    let printed = String::from_utf8(succeed(Command::new(program).arg(store))?.stdout)?;
    let is_refused = printed.contains("without the feature `json`");
    ensure!(is_refused == (contents == Contents::Lean), "unexpected answer to a JSON hook: {printed:?}");
    let reports: Vec<PathBuf> =
        fs::read_dir(store.join("reports"))?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    let form = if contents == Contents::Full { "json" } else { "coroner" };
    let found = reports.iter().find(|path| path.extension().is_some_and(|extension| extension == form));
    let found = found.context("no report found")?;
    let text = if contents == Contents::Full {
        fs::read_to_string(found)?
    } else {
        ensure!(reports.len() == 1, "expected one report, got {reports:?}");
        let mut report = Report::read_file(found)?;
        coroner::SymbolSearch::default().symbolicate(&mut report);
        report.to_json()
    };
    ensure!(text.contains("SIGABRT") && text.contains("\"main\""), "the report has no SIGABRT, or no `main`");
    Ok(())
}
