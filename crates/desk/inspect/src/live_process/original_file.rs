//! Finds the file that a process has mapped if its path leads to another file or to none.
//!
//! This happens if the file was deleted or replaced while the process runs, or if the process has
//! other mounts (a container).
//!
//! Source: proc(5), `/proc/PID/map_files`, `/proc/PID/root`, `/proc/PID/exe`.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::MappedRange;

/// Returns a path at which the mapped file can be opened while the process lives.
///
/// `None` if the mapping's own path leads to it, or no path is found.
pub(super) fn find_path(pid: u32, mapping: &MappedRange) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let (start, end) = (mapping.mapping.start.0, mapping.mapping.start.0 + mapping.mapping.size);
    let program = process.join("exe");
    // Only root may follow the first path.
    let by_mapping = process.join(format!("map_files/{start:x}-{end:x}"));
    let original = [by_mapping, program]
        .into_iter()
        .find_map(|path| Some((fs::metadata(&path).ok().filter(|file| file.ino() == mapping.inode)?, path)));
    // A layered file system may report another device and inode in the memory map than in stat(2):
    // then there is no original.
    let is_it = |path: &Path| {
        fs::metadata(path).is_ok_and(|file| match &original {
            Some((original, _)) => (file.dev(), file.ino()) == (original.dev(), original.ino()),
            None => file.ino() == mapping.inode && !mapping.is_deleted,
        })
    };
    let own = Path::new(mapping.path()?);
    if is_it(own) {
        return None;
    }
    let inside = process.join("root").join(own.strip_prefix("/").ok()?);
    let original_path = || original.as_ref().map(|(_, path)| path.clone());
    Some(inside).filter(|path| is_it(path)).or_else(original_path)
}
