//! Atomic file writes: Ctrl-C or a full disk leaves no partial file.

use std::io::{self, Write};
use std::path::Path;

use crate::failure::{Context, Failure};

/// Writes `bytes` to a file at `path`, replacing an existing file.
///
/// If `path` is not a regular file (`/dev/stdout`, a pipe), writes to it directly.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let doing = || format!("can't write `{}`", path.display());
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, bytes).context(doing());
    }
    // If the path is a symbolic link, replace its target.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match std::fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let what = format!("{}: no folder `{}`", doing(), folder.display());
            return Err(Failure::new(what));
        }
        Ok(metadata) if !metadata.is_dir() => {
            return Err(Failure::new(format!("{}: `{}` is not a folder", doing(), folder.display())));
        }
        _ => {}
    }
    let made = tempfile::Builder::new().prefix(".coroner-").tempfile_in(folder);
    let mut file = made.map_err(|error| without_path(&error)).context(doing())?;
    file.write_all(bytes).map_err(|error| without_path(&error)).context(doing())?;
    let permissions = std::fs::metadata(&path).map(|metadata| metadata.permissions());
    let permissions = permissions.unwrap_or_else(|_| std::os::unix::fs::PermissionsExt::from_mode(0o600));
    file.as_file().set_permissions(permissions).context(doing())?;
    file.persist(&path).map(drop).map_err(|failed| without_path(&failed.error)).context(doing())
}

/// Returns the system's error without the path, which would be that of the temporary file.
fn without_path(error: &io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.source()).and_then(|source| source.downcast_ref::<io::Error>());
    match inner.unwrap_or(error).raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::from(error.kind()),
    }
}
