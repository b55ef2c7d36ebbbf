//! What the tests with programs in C have in common.

use std::path::{Path, PathBuf};

/// Where cargo put the library when it built this test: the newest.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let libraries = entries.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libcoroner_ffi") && path.extension().is_some_and(|kind| kind == "so")
    });
    let newest = libraries.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no libcoroner_ffi.so in {}", folder.display()))
}

/// Puts the library into `folder`, under the name by which a program that is linked with it needs it; where it is.
pub(crate) fn library_in(folder: &Path) -> PathBuf {
    let version = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    let path = folder.join(format!("libcoroner_ffi.so.{version}"));
    if !path.exists() {
        std::fs::copy(library(), &path).unwrap();
    }
    path
}
