//! A file that is there whole or not at all: Ctrl-C and a full disk leave no half one.

use std::io::Write;
use std::path::Path;

use crate::failure::{Context, Failure};

/// Writes `bytes` to a file at `path`, in place of what is there. What is no regular file (`/dev/stdout`, a pipe) is written to as it is.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let doing = || format!("can't write `{}`", path.display());
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, bytes).context(doing());
    }
    // A link stays one.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".coroner-").tempfile_in(folder).context(doing())?;
    file.write_all(bytes).context(doing())?;
    let permissions = std::fs::metadata(&path).map(|metadata| metadata.permissions());
    let permissions = permissions.unwrap_or_else(|_| std::os::unix::fs::PermissionsExt::from_mode(0o600));
    file.as_file().set_permissions(permissions).context(doing())?;
    file.persist(&path).map(drop).context(doing())
}
