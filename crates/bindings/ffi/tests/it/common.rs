//! The library that cargo built with a test, and C programs linked with it.
#![allow(dead_code, reason = "not every system has all tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns this crate's newest library with this extension, as built with this test.
pub(crate) fn library(extension: &str) -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let candidates = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libcoroner_ffi") && path.extension().is_some_and(|other| other == extension)
    });
    let newest = candidates.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no libcoroner_ffi.{extension} in {}", folder.display()))
}

/// Builds the program of `tests/SOURCE` with the static library in a folder; returns its path.
pub(crate) fn c_program(source: &str, arguments: &[&str], folder: &Path) -> PathBuf {
    let (here, program) = (Path::new(env!("CARGO_MANIFEST_DIR")), folder.join("program"));
    let mut command = Command::new(std::env::var_os("CC").unwrap_or("cc".into()));
    command.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).args(arguments);
    command.arg(here.join("tests").join(source)).arg("-I").arg(here.join("include"));
    succeed(command.args(fast_linker()).arg(library("a")).args(["-lpthread", "-ldl", "-lm"]));
    program
}

/// Returns the option for LLVM's linker if it is installed.
///
/// It links the static library in a quarter of the time. The examples use the compiler's own
/// linker.
pub(crate) fn fast_linker() -> Option<&'static str> {
    let is_set = |variable: &str| std::env::var_os(variable).is_some();
    let is_native = cfg!(target_os = "linux") && !is_set("CC") && !is_set("CORONER_TEST_CXX");
    let is_installed = std::env::split_paths(&std::env::var_os("PATH")?).any(|folder| folder.join("ld.lld").is_file());
    (is_native && is_installed).then_some("-fuse-ld=lld")
}

/// Runs a compiler.
pub(crate) fn succeed(command: &mut Command) {
    let ran = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(ran.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&ran.stderr));
}
