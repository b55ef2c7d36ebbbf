//! C programs, built by CMake with the archive of `cargo xtask dist`, and crashed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::{LINKER, TARGET, cargo, entries, succeed};
use toolbox::{deadline, tools};

const CMAKE_LISTS: &str = "
cmake_minimum_required(VERSION 3.16)
project(app C)
find_package(coroner 0.1 REQUIRED)
add_compile_options(-Wall -Wextra -Werror)
add_executable(static notes.c)
target_link_libraries(static PRIVATE coroner::static)
add_executable(shared notes.c)
target_link_libraries(shared PRIVATE coroner::shared)
add_executable(closes closes_library.c)
target_include_directories(closes PRIVATE $<TARGET_PROPERTY:coroner::shared,INTERFACE_INCLUDE_DIRECTORIES>)
";

/// Builds and crashes the programs. Their stores are in `stores`.
pub(super) fn programs(folder: &Path, prefix: &Path, stores: &Path) -> anyhow::Result<()> {
    tools::debian_package("cmake", "cmake")?;
    let mut library = cargo(prefix);
    library.args(["rustc", "--quiet", "-p", "coroner-ffi", "--lib", "--crate-type", "cdylib,staticlib"]);
    succeed(library.args(["--target", TARGET, "--features", "windows-crashes"]))?;
    let place = folder.join("c");
    let _ = fs::remove_dir_all(&place);
    let (archive, project, build) = (place.join("archive"), place.join("project"), place.join("build"));
    dist::lay_out(&archive, &tools::target_dir().join(TARGET).join("debug"), TARGET, None)?;
    fs::create_dir_all(&project)?;
    for source in ["examples/c/notes.c", "fixtures/windows/closes_library.c"] {
        let source = tools::workspace_root().join(source);
        fs::copy(&source, project.join(source.file_name().context("a file")?))?;
    }
    fs::write(project.join("CMakeLists.txt"), CMAKE_LISTS)?;
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&project).arg("-B").arg(&build).arg(format!("-DCMAKE_PREFIX_PATH={}", archive.display()));
    configure.args(["-DCMAKE_SYSTEM_NAME=Windows", "-DCMAKE_BUILD_TYPE=Debug"]);
    // It searches for packages as on the target system.
    configure.arg(format!("-DCMAKE_C_COMPILER={LINKER}")).stdout(std::process::Stdio::null());
    succeed(&mut configure)?;
    succeed(Command::new("cmake").arg("--build").arg(&build).stdout(std::process::Stdio::null()))?;
    // Beside the programs, as shipped.
    fs::copy(archive.join("bin/coroner_ffi.dll"), build.join("coroner_ffi.dll"))?;
    for (name, functions) in [
        ("static", &["length_of", "save", "main"][..]),
        ("shared", &["length_of", "save", "main"]),
        ("closes", &["use", "main"]),
    ] {
        let store = stores.join(format!("c {name}"));
        let start = |crashes: bool| {
            let mut program = Command::new("wine");
            program.arg(build.join(format!("{name}.exe"))).env("WINEPREFIX", prefix).env("WINEDEBUG", "-all");
            program.env("WINEDLLOVERRIDES", "winedbg.exe=d").env("NOTES_STORE", format!("Z:{}", store.display()));
            if name == "closes" {
                program.arg(format!("Z:{}", store.display()));
            }
            program.args(crashes.then_some("crash"));
            program
        };
        let crashed = deadline::status(&mut start(true))?;
        // The same as without Coroner: the low byte of the exception code.
        ensure!(crashed.code() == Some(5), "unexpected exit of {name}: {crashed}");
        succeed(&mut start(false))?;
        let reports = entries(&store.join("reports"))?;
        let report = reports.iter().find(|path| path.extension().is_some_and(|end| end == "json"));
        let report = report.with_context(|| format!("missing report of {name}"))?;
        check(&serde_json::from_slice(&fs::read(report)?)?, functions).with_context(|| report.display().to_string())?;
        println!("a program in C, {name}: {}", report.display());
    }
    Ok(())
}

/// Checks that the report has the fault, and the functions with their lines.
fn check(report: &Value, functions: &[&str]) -> anyhow::Result<()> {
    let crash = &report["crash"];
    ensure!(crash["signal"]["name"] == "EXCEPTION_ACCESS_VIOLATION", "{crash:#}");
    let frames = report["threads"][0]["frames"].as_array().context("no frames")?;
    for (frame, function) in frames.iter().zip(functions) {
        ensure!(frame["function"] == *function && frame["line"].is_u64(), "no {function}: {frame:#}");
    }
    Ok(())
}
