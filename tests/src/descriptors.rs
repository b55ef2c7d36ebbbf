//! What an app does to descriptors that it does not know: it closes them, or puts its own in their places.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// How many files the app has: more than a library below it has descriptors.
const FILES: usize = 48;
/// The length of each, in bytes: longer than a report.
const LENGTH: usize = 256 << 10;
/// Descriptors below this are looked at one by one; what is above belongs to nobody here but a library that moved its own.
const HIGHEST: i32 = 1 << 16;

/// Where the app's files are, in the folder of its store.
pub fn app_files(store: &Path) -> PathBuf {
    store.join("app-files")
}

/// What the app wrote into its file of that number.
fn content(number: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 7 + number * 31) as u8 | 1).collect()
}

/// Closes all descriptors but the standard ones, as a daemon does, by one call.
///
/// # Panics
/// The kernel has no such call.
pub fn close_range() {
    // SAFETY: closes descriptors; those of this program's own values are not used again.
    let failed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    assert_eq!(failed, 0, "descriptors can be closed");
}

/// Closes all descriptors but the standard ones, one by one.
pub fn close_each() {
    for descriptor in 3..HIGHEST {
        // SAFETY: as in `close_range`.
        unsafe { libc::close(descriptor) };
    }
}

/// Makes the app's files, which keep the lowest descriptors that are free, and are open until the process ends.
///
/// # Panics
/// They can't be made.
pub fn open_files(folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder for the app's files");
    for number in 0..FILES {
        let path = folder.join(number.to_string());
        let mut file = std::fs::File::options().read(true).write(true).create_new(true).open(path).expect("a new file");
        file.write_all(&content(number)).expect("the disk takes the app's files");
        let _ = file.into_raw_fd();
    }
}

fn open_descriptors() -> Vec<i32> {
    // SAFETY: asks whether they are open.
    (3..HIGHEST).filter(|descriptor| unsafe { libc::fcntl(*descriptor, libc::F_GETFD) } >= 0).collect()
}

/// Puts the app's files in the place of every descriptor that was open before, without closing them first.
///
/// # Panics
/// The files can't be made.
pub fn replace_by_files(folder: &Path) {
    let before = open_descriptors();
    open_files(folder);
    let files: Vec<i32> = open_descriptors().into_iter().filter(|now| !before.contains(now)).collect();
    for (old, new) in before.iter().zip(files.iter().cycle()) {
        // SAFETY: both are open.
        assert!(unsafe { libc::dup2(*new, *old) } >= 0, "a descriptor can be replaced");
    }
}

/// Puts this process's standard output in the place of every other descriptor: what is written to them is seen there.
///
/// # Panics
/// There is no standard output.
pub fn replace_by_output() {
    for descriptor in open_descriptors() {
        // SAFETY: both are open.
        assert!(unsafe { libc::dup2(1, descriptor) } >= 0, "a descriptor can be replaced");
    }
}

/// The app's files in the folder of this store are as the app wrote them. `Ok` also where it wrote none.
///
/// # Errors
/// The first file that is not.
pub fn files_are_untouched(store: &Path) -> anyhow::Result<()> {
    let folder = app_files(store);
    if !folder.exists() {
        return Ok(());
    }
    for number in 0..FILES {
        let found = std::fs::read(folder.join(number.to_string())).context("a file of the app is gone")?;
        let right = found == content(number);
        ensure!(right, "file {number} of the app is not as it wrote it: {} bytes of {LENGTH}", found.len());
    }
    Ok(())
}

/// Closes what is open, opens the app's files, lets `act` happen, and returns how many of the files' descriptors were open before
/// and are not, or are of another file, after it.
///
/// # Panics
/// The files can't be made.
pub fn lost_descriptors(folder: &Path, act: impl FnOnce()) -> usize {
    close_range();
    open_files(folder);
    let identity = |descriptor: i32| {
        // SAFETY: the kernel fills a structure of ours.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (libc::fstat(descriptor, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
        }
    };
    let before: Vec<_> = open_descriptors().into_iter().map(|descriptor| (descriptor, identity(descriptor))).collect();
    assert!(before.len() >= FILES, "the app's files are open");
    act();
    before.into_iter().filter(|(descriptor, was)| identity(*descriptor) != *was).count()
}

/// A page that another process maps as well, in a file of this path; as long as the process lives.
///
/// # Panics
/// The file can't be made or mapped.
pub fn shared_word(path: &Path) -> &'static std::sync::atomic::AtomicU64 {
    let options = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = options.expect("a file to share");
    file.set_len(4096).expect("a page of it");
    // SAFETY: a new mapping touches nothing that exists; it is page-aligned, of a page, and never unmapped.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert!(page != libc::MAP_FAILED, "the file can be mapped");
        &*page.cast()
    }
}
