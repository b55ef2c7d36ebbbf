//! The users' folders and their limits.

use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{CollectError, MAX_AT_ONCE, Owner};

/// Maximum bytes of a user's reports.
const MAX_BYTES: u64 = 256 << 20;

/// Takes one of [`MAX_AT_ONCE`] slots, which is released when this process ends.
pub(super) fn take_slot(store: &Path) -> Result<File, CollectError> {
    let cannot_create = || CollectError::system::<io::Error>(format!("can't create `{}`", store.display()));
    if !store.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(store).map_err(cannot_create())?;
    }
    for number in 0..MAX_AT_ONCE {
        let path = store.join(format!(".slot-{number}"));
        // A user who can read the file could lock it.
        let file = File::options().create(true).append(true).mode(0o600).open(&path).map_err(cannot_create())?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(cannot_create()(error)),
        }
    }
    Err(CollectError::Busy)
}

/// Creates the owner's folder, which no other user can access.
pub(super) fn create_folder(store: &Path, owner: Owner) -> Result<PathBuf, CollectError> {
    let folder = store.join(owner.of.to_string());
    let cannot_create = || CollectError::system::<io::Error>(format!("can't create `{}`", folder.display()));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {
            if nix::unistd::geteuid().is_root() {
                std::os::unix::fs::lchown(&folder, Some(owner.user), Some(owner.group)).map_err(cannot_create())?;
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let metadata = std::fs::symlink_metadata(&folder).map_err(cannot_create())?;
            let is_owners = !nix::unistd::geteuid().is_root() || metadata.uid() == owner.user;
            if !metadata.is_dir() || !is_owners {
                return Err(CollectError::NotTheUsers { folder, user: owner.user });
            }
        }
        Err(error) => return Err(cannot_create()(error)),
    }
    Ok(folder)
}

/// Removes the oldest reports if the limit is reached.
///
/// # Errors
/// [`CollectError::TooMany`] if there are too many reports from the last minute.
pub(super) fn make_room(folder: &Path, keep: usize, per_minute: usize) -> Result<(), CollectError> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
            Some((metadata.modified().ok()?, metadata.len(), entry.path()))
        })
        .collect();
    let minute_ago = SystemTime::now().checked_sub(Duration::from_mins(1));
    let new = files.iter().filter(|(time, ..)| Some(*time) > minute_ago).count();
    if new >= per_minute {
        return Err(CollectError::TooMany(new));
    }
    files.sort_unstable();
    let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    let mut count = files.len();
    for (_, size, path) in &files {
        if count < keep.max(1) && bytes < MAX_BYTES {
            break;
        }
        std::fs::remove_file(path)
            .map_err(CollectError::system::<io::Error>(format!("can't remove `{}`", path.display())))?;
        (count, bytes) = (count - 1, bytes - size);
    }
    Ok(())
}
