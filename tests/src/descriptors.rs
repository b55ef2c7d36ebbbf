//! An app's treatment of unknown descriptors: it closes them or replaces them with its own.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

/// Number of the app's files: more than Coroner has descriptors.
const FILES: usize = 48;
/// Length of each file, in bytes: longer than a report.
const LENGTH: usize = 256 << 10;
/// Descriptors below this are checked one by one; descriptors above can only belong to a library
/// that moved them there.
const HIGHEST: i32 = 1 << 16;

/// Returns the folder of the app's files, in its store.
pub fn app_files(store: &Path) -> PathBuf {
    store.join("app-files")
}

/// Returns the app's content for the file with that number.
fn content(number: usize) -> Vec<u8> {
    (0..LENGTH).map(|at| (at / 7 + number * 31) as u8 | 1).collect()
}

/// Closes all descriptors except the standard ones with one system call, like a daemon.
///
/// # Panics
/// The kernel lacks the system call.
pub fn close_range() {
    // SAFETY: closes descriptors; this program doesn't use its own ones again.
    let failed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    assert_eq!(failed, 0, "can't close descriptors");
}

/// Closes all descriptors except the standard ones, one by one.
pub fn close_each() {
    for descriptor in 3..HIGHEST {
        // SAFETY: as in `close_range`.
        unsafe { libc::close(descriptor) };
    }
}

/// Creates the app's files, which use the lowest free descriptors and stay open until the process
/// ends.
///
/// # Panics
/// The files can't be created.
pub fn open_files(folder: &Path) {
    std::fs::create_dir_all(folder).expect("can't create the folder for the app's files");
    for number in 0..FILES {
        let path = folder.join(number.to_string());
        let mut file =
            std::fs::File::options().read(true).write(true).create_new(true).open(path).expect("can't create a file");
        file.write_all(&content(number)).expect("can't write the app's files");
        let _ = file.into_raw_fd();
    }
}

fn open_descriptors() -> Vec<i32> {
    // SAFETY: only queries whether they are open.
    (3..HIGHEST).filter(|descriptor| unsafe { libc::fcntl(*descriptor, libc::F_GETFD) } >= 0).collect()
}

/// Replaces every open descriptor with one of the app's files, without closing it first.
///
/// # Panics
/// The files can't be created.
pub fn replace_by_files(folder: &Path) {
    let before = open_descriptors();
    open_files(folder);
    let files: Vec<i32> = open_descriptors().into_iter().filter(|now| !before.contains(now)).collect();
    for (old, new) in before.iter().zip(files.iter().cycle()) {
        // SAFETY: both are open.
        assert!(unsafe { libc::dup2(*new, *old) } >= 0, "can't replace a descriptor");
    }
}

/// Replaces every other descriptor with this process's standard output, where writes to them become
/// visible.
///
/// # Panics
/// There is no standard output.
pub fn replace_by_output() {
    for descriptor in open_descriptors() {
        // SAFETY: both are open.
        assert!(unsafe { libc::dup2(1, descriptor) } >= 0, "can't replace a descriptor");
    }
}

/// Checks that the app's files in this store are unchanged. `Ok` if there are none.
///
/// # Errors
/// The first changed file.
pub fn files_are_untouched(store: &Path) -> anyhow::Result<()> {
    let folder = app_files(store);
    if !folder.exists() {
        return Ok(());
    }
    for number in 0..FILES {
        let found = std::fs::read(folder.join(number.to_string())).context("an app file is missing")?;
        let right = found == content(number);
        ensure!(right, "app file {number} was changed: {} bytes of {LENGTH}", found.len());
    }
    Ok(())
}

/// Closes all descriptors, opens the app's files, runs `act`, and returns how many of the files'
/// descriptors are then closed or refer to another file.
///
/// # Panics
/// The files can't be created.
pub fn lost_descriptors(folder: &Path, act: impl FnOnce()) -> usize {
    close_range();
    open_files(folder);
    let identity = |descriptor: i32| {
        // SAFETY: the kernel fills a local structure.
        unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (libc::fstat(descriptor, &raw mut status) == 0).then_some((status.st_dev, status.st_ino))
        }
    };
    let before: Vec<_> = open_descriptors().into_iter().map(|descriptor| (descriptor, identity(descriptor))).collect();
    assert!(before.len() >= FILES, "the app's files are not open");
    act();
    before.into_iter().filter(|(descriptor, was)| identity(*descriptor) != *was).count()
}

/// Maps a page of a file at this path that another process maps as well; never unmapped.
///
/// # Panics
/// The file can't be created or mapped.
pub fn shared_word(path: &Path) -> &'static std::sync::atomic::AtomicU64 {
    let options = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path);
    let file = options.expect("can't open the shared file");
    file.set_len(4096).expect("can't resize the shared file");
    // SAFETY: a new mapping of one page, page-aligned and never unmapped.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert!(page != libc::MAP_FAILED, "can't map the shared file");
        &*page.cast()
    }
}
