//! What the tests with programs in C have in common.

use std::path::PathBuf;

/// Where cargo put the library when it built this test: the newest.
pub(crate) fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let libraries = entries.filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libcoroner_ffi") && path.extension().is_some_and(|kind| kind == "so")
    });
    let newest = libraries.max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.unwrap_or_else(|| panic!("no libcoroner_ffi.so in {}", folder.display()))
}
