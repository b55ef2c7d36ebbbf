//! Shared code of the tests with C programs.

use std::path::{Path, PathBuf};

/// Returns the newest library that cargo built with this test.
fn find_library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let libraries = entries.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libcoroner_ffi") && path.extension().is_some_and(|kind| kind == "so")
    });
    let newest = libraries.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no libcoroner_ffi.so in {}", folder.display()))
}

/// Copies the library to `folder`, under the name that linked programs need, and returns its path.
pub(crate) fn copy_library_to(folder: &Path) -> PathBuf {
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let path = folder.join(format!("libcoroner_ffi.so.{version}"));
    if !path.exists() {
        std::fs::copy(find_library(), &path).unwrap();
    }
    path
}
