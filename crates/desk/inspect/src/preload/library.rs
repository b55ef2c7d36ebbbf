//! Finds the shared library to preload.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::PreloadError;

/// File name of the shared library.
pub const LIBRARY_NAME: &str = "libcoroner_ffi.so";
/// The environment variable that names the library.
pub const LIBRARY_VARIABLE: &str = "CORONER_LIBRARY";
/// Folders to search, relative to this command's folder.
///
/// In archives and in cargo's target folder the library is beside the command; next come the
/// library folders of system packages, and cargo's folder of tests.
const FOLDERS: [&str; 5] = [".", "../lib", "../lib/coroner", "../lib64", "deps"];

/// Returns a path of the library that `LD_PRELOAD` accepts.
///
/// `LD_PRELOAD` is a list separated by spaces and colons: for a path that contains one, a link is
/// created in `links`.
pub(super) fn find(links: &Path) -> Result<PathBuf, PreloadError> {
    let path = named_or_near()?;
    if !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Ok(path);
    }
    let link = links.join(LIBRARY_NAME);
    std::os::unix::fs::symlink(&path, &link)
        .map_err(PreloadError::system(format!("can't create a link to `{}`", path.display())))?;
    Ok(link)
}

fn named_or_near() -> Result<PathBuf, PreloadError> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        let doing = format!("can't find the library `{}` ({LIBRARY_VARIABLE})", path.display());
        return std::fs::canonicalize(&path).map_err(PreloadError::system(doing));
    }
    let command = std::env::current_exe().map_err(PreloadError::system("can't find this program"))?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let near = FOLDERS.iter().find_map(|near| std::fs::canonicalize(folder.join(near).join(LIBRARY_NAME)).ok());
    near.ok_or(PreloadError::NoLibrary(command))
}
