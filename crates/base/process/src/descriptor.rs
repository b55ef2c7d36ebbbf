//! A descriptor that stays open while the app runs, and is verified before each use.
//!
//! An app may close every descriptor that it doesn't know (`closefrom(3)`, as daemons do), put
//! another file at the same number (`dup2`, or just the next open), or close one of ours by
//! mistake. So a number alone proves nothing: before each use, and before the descriptor is closed,
//! its file is compared by device and inode with the one that was opened. The descriptor is also
//! moved to a high number, out of the way of programs that expect theirs to be low.
//!
//! The check and the use are two system calls: an app that replaces a descriptor between them gets
//! a directory listing attempted on its own file's descriptor, which fails; nothing is ever
//! *written* through such a number.

use crate::files::{Descriptor, File, status};
use crate::os::syscall::{Result, call};

/// Lowest number that is tried first, if the limit of open files allows it.
const HIGH: u64 = 1000;
/// Distance below the limit, for several descriptors of ours.
const ROOM: u64 = 16;

/// A descriptor with the identity of its file. See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct OwnedDescriptor {
    number: i32,
    device: libc::dev_t,
    inode: u64,
    /// Number of the file's links when it was opened.
    links: u64,
}

impl OwnedDescriptor {
    /// Takes over an open descriptor and moves it to a high number, close-on-exec.
    ///
    /// Records the file's identity. The descriptor keeps its number if the limit of open files
    /// allows no higher one. Not async-signal-safe.
    ///
    /// # Errors
    /// The error of fstat; the descriptor is then closed.
    pub fn adopt(low: File) -> Result<OwnedDescriptor> {
        OwnedDescriptor::here(move_high(low))
    }

    /// Takes over an open descriptor at its current number. Async-signal-safe.
    ///
    /// # Errors
    /// The error of fstat; the descriptor is then closed.
    pub fn here(file: File) -> Result<OwnedDescriptor> {
        let status = status(&file)?;
        let (device, inode, links) = (status.st_dev, status.st_ino, status.st_nlink as u64);
        Ok(OwnedDescriptor { number: file.into_number(), device, inode, links })
    }

    /// The descriptor, without verification.
    ///
    /// For the code that has just opened it, so that nobody can have replaced it yet.
    pub fn opened_at(&self) -> &Descriptor {
        // SAFETY: ours, unless the app has replaced it: see the module documentation.
        unsafe { Descriptor::borrow_raw(&self.number) }
    }

    /// The file's inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Number of the file's links when it was opened.
    pub fn links(&self) -> u64 {
        self.links
    }

    /// Returns the descriptor if its file is still the one that was opened.
    pub fn verified(&self) -> Option<&Descriptor> {
        let descriptor = self.opened_at();
        self.is(&status(descriptor).ok()?).then_some(descriptor)
    }

    /// Whether the descriptor was opened as the file with this status.
    pub fn is(&self, status: &libc::stat) -> bool {
        status.st_dev == self.device && status.st_ino == self.inode
    }

    /// Closes the descriptor if it is still ours; another file at its number stays open.
    pub fn close(self) {
        if let Some(descriptor) = self.verified() {
            // SAFETY: the file that this value opened, at the same number.
            drop(unsafe { File::from_number(descriptor.number()) });
        }
    }
}

fn move_high(low: File) -> File {
    // SAFETY: no memory is touched.
    let moved_to = |from: u64| unsafe { call!(fcntl, low.number(), libc::F_DUPFD_CLOEXEC, from) };
    let moved = moved_to(HIGH).or_else(|errno| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes one `struct rlimit`.
        unsafe { call!(getrlimit, libc::RLIMIT_NOFILE, &raw mut limit) }?;
        let from = limit.rlim_cur.saturating_sub(ROOM).min(HIGH);
        if from > low.number() as u64 { moved_to(from) } else { Err(errno) }
    });
    match moved {
        // SAFETY: a new descriptor.
        Ok(high) => unsafe { File::from_number(high as i32) },
        Err(_) => low,
    }
}
