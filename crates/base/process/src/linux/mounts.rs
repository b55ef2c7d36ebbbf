//! Finds file systems that work without a server: `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
//!
//! Reading that file queries no file system. A call on a file whose server is gone (NFS, FUSE)
//! waits until SIGKILL ends the process: no handler runs meanwhile, so no deadline helps. Before a
//! file is opened at crash time, this module checks whether that can happen. Async-signal-safe.

use core::sync::atomic::{AtomicU64, Ordering};

use super::proc_files::decimal;
use super::syscall::syscall;
use crate::files::{Descriptor, open};

/// File systems without a block device that need no server.
///
/// The file systems below an overlayfs are not examined.
const LOCAL: [&[u8]; 12] = [
    b"overlay",
    b"tmpfs",
    b"ramfs",
    b"rootfs",
    b"btrfs",
    b"zfs",
    b"bcachefs",
    b"ubifs",
    b"aufs",
    b"devtmpfs",
    b"hugetlbfs",
    b"incremental-fs",
];

/// Maximum length of the relevant part of a line: numbers, paths, options, and the type after them.
const LINE: usize = 1024;

/// The last queried device, with [`REMOTE`] if it has a server; 0 for none.
static LAST: AtomicU64 = AtomicU64::new(0);
const REMOTE: u64 = 1 << 63;

/// Whether files on a device may need a server.
///
/// `device` is a [`FileId::device`](crate::mapping::FileId::device). True for a file system that is
/// not known, or not mounted here. A block device needs no server.
pub fn needs_server(device: u64) -> bool {
    let (major, minor) = (device >> 24, device & 0xff_ffff);
    if major != 0 {
        return false;
    }
    let known = LAST.load(Ordering::Relaxed);
    if known & !REMOTE == minor && known != 0 {
        return known & REMOTE != 0;
    }
    let needs = !is_local(minor);
    LAST.store(minor | if needs { REMOTE } else { 0 }, Ordering::Relaxed);
    needs
}

fn is_local(minor: u64) -> bool {
    let Ok(file) = open(Descriptor::WORKING_DIRECTORY, c"/proc/self/mountinfo", libc::O_RDONLY | libc::O_CLOEXEC, 0)
    else {
        return false;
    };
    let mut line = Line { bytes: [0; LINE], length: 0 };
    let mut found = None;
    let mut buffer = [0; 1024];
    while found.is_none() {
        // SAFETY: the kernel writes at most that many bytes. Async-signal-safe: one system call.
        let Ok(count) = (unsafe { syscall!(libc::SYS_read, file.number(), buffer.as_mut_ptr(), buffer.len()) }) else {
            break;
        };
        if count == 0 {
            break;
        }
        for byte in buffer.iter().take(count) {
            if *byte != b'\n' {
                line.push(*byte);
                continue;
            }
            if let Some(kind) = line.kind_of(minor) {
                found = Some(LOCAL.contains(&kind));
                break;
            }
            line.length = 0;
        }
    }
    found.unwrap_or(false)
}

struct Line {
    bytes: [u8; LINE],
    length: usize,
}

impl Line {
    /// Appends a byte. Bytes that don't fit are dropped: a line whose type doesn't fit is treated
    /// as unknown.
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length = self.length.wrapping_add(1);
        }
    }

    /// Returns the file system type, if the line is for device 0:`minor`.
    ///
    /// Example: `36 35 0:50 / /mnt rw,noatime master:1 - nfs4 server:/ rw`.
    fn kind_of(&self, minor: u64) -> Option<&[u8]> {
        let mut words = self.bytes.get(..self.length)?.split(|byte| *byte == b' ');
        let device = words.nth(2)?;
        if decimal(device.strip_prefix(b"0:")?) != Some(minor) {
            return None;
        }
        // A path contains no space: it is written as \040.
        words.find(|word| *word == b"-")?;
        words.next()
    }
}

#[cfg(test)]
mod tests;
