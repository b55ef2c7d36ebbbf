//! A descriptor that stays open while the app runs, and is believed only after a look.
//!
//! An app may close every descriptor that it does not know (`closefrom(3)`, what daemons do), put another file at the same
//! number (`dup2`, or just the next open), or close one of ours by mistake. So a number alone proves nothing: before each use,
//! and before it is closed, the file behind it is compared with the one that was opened, by device and inode. And it is moved
//! to a high number, out of the way of programs that expect theirs to be low.
//!
//! The check and the use are two system calls: an app that replaces a descriptor between them gets a listing of a
//! directory from its own file's descriptor, which fails; nothing is ever *written* through such a number.

use crate::files::{close, status};
use crate::os::syscall::{Result, call};

/// Numbers from here on are tried first, where the limit of open files allows.
const HIGH: u64 = 1000;
/// Room below the limit, for several of ours.
const ROOM: u64 = 16;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct OwnedDescriptor {
    number: i32,
    device: libc::dev_t,
    inode: u64,
    /// Names of the file when it was opened.
    links: u64,
}

impl OwnedDescriptor {
    /// Takes over an open descriptor: moves it to a high number, close-on-exec, and notes what file it is (not
    /// async-signal-safe). It keeps its number where the limit of open files leaves none that is higher.
    ///
    /// # Errors
    /// What fstat answered; the descriptor is closed then.
    pub fn adopt(low: i32) -> Result<OwnedDescriptor> {
        let number = move_high(low);
        OwnedDescriptor::here(number).inspect_err(|_| close(number))
    }

    /// Takes over an open descriptor at the number that it has. Async-signal-safe.
    pub fn here(number: i32) -> Result<OwnedDescriptor> {
        let status = status(number)?;
        Ok(OwnedDescriptor { number, device: status.st_dev, inode: status.st_ino, links: status.st_nlink as u64 })
    }

    /// The number that it was opened at, for who has just opened it: nobody can have replaced it yet.
    pub fn opened_at(&self) -> i32 {
        self.number
    }

    /// The number of the file in its file system.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// How many names the file had when it was opened.
    pub fn links(&self) -> u64 {
        self.links
    }

    /// The number, if the file behind it is still the one that was opened.
    pub fn verified(&self) -> Option<i32> {
        let status = status(self.number).ok()?;
        (status.st_dev == self.device && status.st_ino == self.inode).then_some(self.number)
    }

    /// Whether it was opened as the file of this status.
    pub fn is(&self, status: &libc::stat) -> bool {
        status.st_dev == self.device && status.st_ino == self.inode
    }

    /// Closes it, if it is still ours; whatever else is at its number stays open.
    pub fn close(self) {
        if let Some(number) = self.verified() {
            close(number);
        }
    }
}

fn move_high(low: i32) -> i32 {
    // SAFETY: no memory is touched.
    let moved_to = |from: u64| unsafe { call!(fcntl, low, libc::F_DUPFD_CLOEXEC, from) };
    let moved = moved_to(HIGH).or_else(|errno| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel writes one `struct rlimit`.
        unsafe { call!(getrlimit, libc::RLIMIT_NOFILE, &raw mut limit) }?;
        let from = limit.rlim_cur.saturating_sub(ROOM).min(HIGH);
        if from > low as u64 { moved_to(from) } else { Err(errno) }
    });
    match moved {
        Ok(high) => {
            close(low);
            high as i32
        }
        Err(_) => low,
    }
}
