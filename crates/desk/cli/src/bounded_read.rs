//! Reads of report files that end: not of devices and pipes, and at most so much.

use std::path::Path;

use crate::failure::{Context, Failure};
use crate::report_files::Stamp;

/// No report is larger; those with much memory in them have some megabytes.
const LARGEST: u64 = 256 << 20;
/// Most that is read of a file that says that it has less.
const UNSAID: u64 = 16 << 20;

/// The bytes of a file that a person names: not of a device or a pipe, which may have no end.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let metadata = std::fs::metadata(path).context(doing())?;
    if !metadata.is_file() {
        return Err(Failure::new(format!("{}: it is not a regular file", doing())));
    }
    if metadata.len() > LARGEST {
        return Err(Failure::new(format!("{}: no report has {} MiB", doing(), metadata.len() >> 20)));
    }
    read_bounded(path).context(doing())
}

/// Opens a regular file so that no read waits: some of `/proc` do (`kmsg`).
pub(crate) fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// A file of a folder of reports, with its stamp as it was before it was read. The folder's list says already that it is a regular one.
pub(crate) fn read_listed(path: &Path) -> Result<(Stamp, Vec<u8>), Failure> {
    use std::io::Read;
    let doing = || format!("can't read `{}`", path.display());
    let mut file = open_regular(path).context(doing())?;
    let status = rustix::fs::fstat(&file).map_err(std::io::Error::from).context(doing())?;
    let stamp = Stamp::of(&status);
    let is_regular = rustix::fs::FileType::from_raw_mode(status.st_mode).is_file();
    if !is_regular || stamp.size == 0 || stamp.size > LARGEST {
        return Err(Failure::new(doing()));
    }
    // Room for more than it had: a read that leaves some of it has seen the end.
    let mut bytes = vec![0; usize::try_from(stamp.size).unwrap_or(0).saturating_add(1)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..]) {
            Ok(count) => {
                let is_end = count < bytes.len() - filled;
                filled += count;
                if is_end {
                    break;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context(doing()),
        }
    }
    bytes.truncate(filled);
    Ok((stamp, bytes))
}

/// The bytes of a regular file: what is of the kernel (`/proc`) says that it is empty, and may have no end.
pub(crate) fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let file = open_regular(path)?;
    let length = LARGEST.min(file.metadata()?.len());
    let limit = length.max(UNSAID);
    // Room for all of it and some more, with which the file's end is seen by the read after it.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(64));
    // Eight bytes more: `pagemap` gives words.
    file.take(limit + 8).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "it has no end, or grows while it is read"));
    }
    Ok(bytes)
}
