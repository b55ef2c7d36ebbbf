//! The folders of the users, and how much is in them.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Owner;
use crate::failure::{Context, Failure};
use crate::store_location::REPORTS;

/// Most bytes of a user's reports.
const BYTES: u64 = 256 << 20;

/// One of so many places at work, which is free again when this process ends.
pub(super) fn slot(store: &Path, count: usize) -> Result<File, Failure> {
    let doing = || format!("can't make `{}`", store.display());
    if !store.is_dir() {
        DirBuilder::new().recursive(true).mode(0o755).create(store).context(doing())?;
    }
    for number in 0..count {
        let path = store.join(format!(".slot-{number}"));
        // Who may read it may lock it.
        let file = File::options().create(true).append(true).mode(0o600).open(&path).context(doing())?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error).context(doing()),
        }
    }
    Err(Failure::new(format!("{count} reports are being made: this death is not recorded")))
}

/// The owner's folder for reports, in a folder of his own that no other user may look into.
pub(super) fn make(store: &Path, owner: Owner) -> Result<PathBuf, Failure> {
    let folder = store.join(owner.of.to_string());
    let doing = || format!("can't make `{}`", folder.display());
    match DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::lchown(&folder, Some(owner.user), Some(owner.group)).context(doing())?;
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let metadata = std::fs::symlink_metadata(&folder).context(doing())?;
            let is_owners = !rustix::process::geteuid().is_root() || metadata.uid() == owner.user;
            if !metadata.is_dir() || !is_owners {
                return Err(Failure::new(format!("{}: what is there is not a folder of user {}", doing(), owner.user)));
            }
        }
        Err(error) => return Err(error).context(doing()),
    }
    Ok(folder.join(REPORTS))
}

/// Removes the oldest reports where there are as many as may be kept; refuses where too many are of the last minute.
pub(super) fn make_room(folder: &Path, keep: usize, per_minute: usize) -> Result<(), Failure> {
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
        return Err(Failure::new(format!("{new} reports were made in the last minute: this death is not recorded")));
    }
    files.sort_unstable();
    let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
    let mut count = files.len();
    for (_, size, path) in &files {
        if count < keep.max(1) && bytes < BYTES {
            break;
        }
        std::fs::remove_file(path).context(format!("can't remove `{}`", path.display()))?;
        (count, bytes) = (count - 1, bytes - size);
    }
    Ok(())
}

/// Makes a socket's file root's alone.
pub(super) fn make_private(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}
