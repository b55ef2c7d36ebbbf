//! Bounded reads of report files: no devices and pipes, and a maximum size.

use std::path::Path;

use nix::sys::stat::SFlag;

use crate::failure::{Context, Failure};
use crate::report_files::{Stamp, kind_of};

/// Maximum size of a report in bytes; reports with much memory have some megabytes.
const MAX_SIZE: u64 = 256 << 20;
/// Maximum bytes to read from a file that reports a smaller size.
const MAX_UNREPORTED_SIZE: u64 = 16 << 20;

/// Reads a file named by the user; fails for devices and pipes, which may be endless.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let metadata = std::fs::metadata(path).context(doing())?;
    if !metadata.is_file() {
        return Err(Failure::new(format!("{}: not a regular file", doing())));
    }
    if metadata.len() > MAX_SIZE {
        let (size, limit) = (metadata.len() >> 20, MAX_SIZE >> 20);
        return Err(Failure::new(format!("{}: the file is {size} MiB; the limit is {limit} MiB", doing())));
    }
    read_bounded(path).context(doing())
}

/// Opens a regular file for reads that don't block, as those of some files in `/proc` do (`kmsg`).
pub(crate) fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Reads a file in a folder of reports; returns its stamp from before the read, and its bytes.
///
/// The folder's listing has already shown that it is a regular file.
pub(crate) fn read_listed(path: &Path) -> Result<(Stamp, Vec<u8>), Failure> {
    use std::io::Read;
    let doing = || format!("can't read `{}`", path.display());
    let mut file = open_regular(path).context(doing())?;
    let status = nix::sys::stat::fstat(&file).map_err(std::io::Error::from).context(doing())?;
    let stamp = Stamp::from_stat(&status);
    let is_regular = kind_of(&status) == SFlag::S_IFREG;
    if !is_regular || stamp.size == 0 || stamp.size > MAX_SIZE {
        return Err(Failure::new(doing()));
    }
    // One byte more than the file's size: a read that doesn't fill it has reached the end.
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

/// Reads a regular file of bounded size.
///
/// The kernel's files (`/proc`) report size 0 and may be endless.
pub(crate) fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let file = open_regular(path)?;
    let length = MAX_SIZE.min(file.metadata()?.len());
    let limit = length.max(MAX_UNREPORTED_SIZE);
    // Extra room, so that the next read detects the end of the file without growing the buffer.
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(64));
    // Eight bytes more, because `pagemap` returns whole words.
    file.take(limit + 8).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "the file is endless, or grows while it is read",
        ));
    }
    Ok(bytes)
}
