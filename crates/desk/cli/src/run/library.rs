//! Where the shared library is that is preloaded.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::shown;
use crate::failure::{Context, Failure};

const NAME: &str = "libcoroner_ffi.so";
/// The variable that names it.
const LIBRARY: &str = "CORONER_LIBRARY";
/// From this command's folder: beside it, as archives and cargo have it; where packages of systems put libraries; in cargo's folder of tests.
const FOLDERS: [&str; 5] = [".", "../lib", "../lib/coroner", "../lib64", "deps"];

/// The library, by a path that `LD_PRELOAD` can have: its list is divided by spaces and colons, so that of another path there is a link in
/// `links`.
pub(super) fn find(links: &Path) -> Result<PathBuf, Failure> {
    let path = named_or_near()?;
    if !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Ok(path);
    }
    let link = links.join(NAME);
    std::os::unix::fs::symlink(&path, &link).context(format!("can't make a link to {}", shown(&path)))?;
    Ok(link)
}

fn named_or_near() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os(LIBRARY).filter(|named| !named.is_empty()) {
        let path = PathBuf::from(named);
        return std::fs::canonicalize(&path).context(format!("can't find the library {} ({LIBRARY})", shown(&path)));
    }
    let command = std::env::current_exe().context("can't find this program")?;
    let folder = command.parent().unwrap_or(Path::new("/"));
    let mut near = FOLDERS.iter().map(|near| folder.join(near).join(NAME));
    near.find_map(|path| std::fs::canonicalize(path).ok()).ok_or_else(|| {
        Failure::new(format!("there is no {NAME} beside {} nor in ../lib", shown(&command))).advice(format!(
            "it is in Coroner's archives (`cargo build -p coroner-ffi` makes it); name it with {LIBRARY}=PATH"
        ))
    })
}
