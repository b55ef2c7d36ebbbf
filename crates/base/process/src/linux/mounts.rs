//! Which file systems answer without a server: `/proc/self/mountinfo` (proc_pid_mountinfo(5)), which asks no file system.
//!
//! A call on a file of a server that is gone (NFS, FUSE) waits until SIGKILL ends the process: no handler runs meanwhile, and so no
//! deadline helps. Before a file is opened at crash time it is asked whether that can happen. Async-signal-safe.

use core::sync::atomic::{AtomicU64, Ordering};

use super::proc_files::decimal;
use super::syscall::syscall;
use crate::files::{close, open};

/// File systems without a block device that need nobody else. Overlayfs is what is below it, which is not looked at.
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

/// The longest part of a line that counts: numbers, paths, options, and the type behind them.
const LINE: usize = 1024;

/// The device that was asked for last, and [`REMOTE`] if a server has it; 0 for none.
static LAST: AtomicU64 = AtomicU64::new(0);
const REMOTE: u64 = 1 << 63;

/// Whether files of a device, as [`FileId::device`](crate::mapping::FileId::device) has it, may need a server. True for a file system that is
/// not known, or not mounted here. One of a block device needs none.
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
    let Ok(file) = open(libc::AT_FDCWD, c"/proc/self/mountinfo", libc::O_RDONLY | libc::O_CLOEXEC, 0) else {
        return false;
    };
    let mut line = Line { bytes: [0; LINE], length: 0 };
    let mut found = None;
    let mut buffer = [0; 1024];
    while found.is_none() {
        // SAFETY: the kernel writes at most that many bytes. Async-signal-safe: one system call.
        let Ok(count) = (unsafe { syscall!(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) }) else { break };
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
    close(file);
    found.unwrap_or(false)
}

struct Line {
    bytes: [u8; LINE],
    length: usize,
}

impl Line {
    /// What finds no room is dropped: a line whose type does not fit is none that is known.
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length = self.length.wrapping_add(1);
        }
    }

    /// The type of the file system, if the line is of device 0:`minor`: `36 35 0:50 / /mnt rw,noatime master:1 - nfs4 server:/ rw`.
    fn kind_of(&self, minor: u64) -> Option<&[u8]> {
        let mut words = self.bytes.get(..self.length)?.split(|byte| *byte == b' ');
        let device = words.nth(2)?;
        if decimal(device.strip_prefix(b"0:")?) != Some(minor) {
            return None;
        }
        // A path has no space: it is written as \040.
        words.find(|word| *word == b"-")?;
        words.next()
    }
}

#[cfg(test)]
mod tests;
