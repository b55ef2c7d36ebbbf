//! Files and mappings through system calls alone, without allocation.
//!
//! A child created by fork or vfork uses them when it crashes. All functions are async-signal-safe
//! unless noted.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

pub use crate::file::{Descriptor, File};
use crate::os::files as system;
use crate::os::syscall::{Errno, Result, call};
use crate::trust;

/// openat(2) with close-on-exec.
pub fn open(directory: &Descriptor, path: &CStr, flags: i32, mode: u32) -> Result<File> {
    // SAFETY: the kernel reads the path.
    unsafe { call!(openat, directory.number(), path.as_ptr(), flags | libc::O_CLOEXEC, mode) }
        .map(|file| File::opened(file as i32))
}

/// fstat(2).
pub fn status(file: &Descriptor) -> Result<libc::stat> {
    // SAFETY: all zeroes is a `stat`; the kernel writes one.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    unsafe { call!(fstat, file.number(), &raw mut status) }?;
    Ok(status)
}

/// Checks a directory that is open by [`trust`]'s rule.
///
/// # Errors
/// `EPERM` if it fails, or the error of fstat.
pub fn check_directory(file: &Descriptor) -> Result<()> {
    entry(file)?.check_directory(effective_user()).map_err(|_| Errno(libc::EPERM))
}

/// Checks a file that is open by [`trust`]'s rule.
///
/// # Errors
/// `EPERM` if it fails, or the error of fstat.
pub fn check_file(file: &Descriptor) -> Result<()> {
    entry(file)?.check_file(effective_user()).map_err(|_| Errno(libc::EPERM))
}

#[allow(clippy::unnecessary_cast, clippy::useless_conversion, reason = "the types differ by system")]
fn entry(file: &Descriptor) -> Result<trust::Entry> {
    let status = status(file)?;
    Ok(trust::Entry { mode: status.st_mode.into(), owner: status.st_uid, links: status.st_nlink as u64 })
}

fn effective_user() -> u32 {
    // SAFETY: no memory is touched. Async-signal-safe: one system call, which can't fail.
    unsafe { call!(geteuid) }.map_or(u32::MAX, |user| user as u32)
}

/// fstatat(2), for a symbolic link itself.
pub fn status_of(directory: &Descriptor, path: &CStr) -> Result<libc::stat> {
    status_at(directory, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// fstatat(2), for the target of a path.
pub fn status_of_target(path: &CStr) -> Result<libc::stat> {
    status_at(Descriptor::WORKING_DIRECTORY, path, 0)
}

fn status_at(directory: &Descriptor, path: &CStr, flags: i32) -> Result<libc::stat> {
    // SAFETY: all zeroes is a `stat`; the kernel writes one.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above; the kernel reads the path.
    unsafe { call!(fstatat, directory.number(), path.as_ptr(), &raw mut status, flags) }?;
    Ok(status)
}

/// mkdirat(2) for the owner only.
pub fn make_directory(directory: &Descriptor, path: &CStr) -> Result<()> {
    // SAFETY: the kernel reads the path.
    unsafe { call!(mkdirat, directory.number(), path.as_ptr(), 0o700) }.map(|_| ())
}

/// unlinkat(2). Files that can't be removed are left to the next launch.
pub fn unlink(directory: &Descriptor, path: &CStr, flags: i32) {
    // SAFETY: the kernel reads the path.
    let _ = unsafe { call!(unlinkat, directory.number(), path.as_ptr(), flags) };
}

/// renameat(2) within a directory.
pub fn rename(directory: &Descriptor, path: &CStr, new_path: &CStr) -> Result<()> {
    // SAFETY: the kernel reads the paths.
    unsafe { call!(renameat, directory.number(), path.as_ptr(), directory.number(), new_path.as_ptr()) }.map(|_| ())
}

/// Zeroes all bytes of a file, and keeps them reserved.
pub fn make_zero(file: &Descriptor, bytes: u32) -> Result<()> {
    if system::zero_range(file, bytes) {
        return Ok(());
    }
    truncate(file, 0)?;
    reserve(file, bytes)
}

/// Sets a file's times, to the nanosecond. If that fails, the kernel's times remain.
pub fn set_times(file: &Descriptor, since_epoch_ns: u64) {
    let (seconds, rest) = (since_epoch_ns / 1_000_000_000, since_epoch_ns % 1_000_000_000);
    let time = libc::timespec { tv_sec: seconds as libc::time_t, tv_nsec: rest as libc::c_long };
    let _ = system::set_times(file, &[time, time]);
}

/// Takes a write lock on the whole file, without waiting.
pub fn take_lock(file: &Descriptor) -> Result<()> {
    // SAFETY: all zeroes is a `flock`: from the start, of any length.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the kernel reads one `struct flock`.
    unsafe { call!(fcntl, file.number(), libc::F_SETLK, &raw const lock) }.map(|_| ())
}

/// Reserves zeroed disk space for a file.
///
/// If the file system can't reserve, zeros are written, which also reserves on every file system
/// that doesn't compress or copy on write.
///
/// # Errors
/// The kernel's error, or `EFBIG` if the process may not have files so large (`RLIMIT_FSIZE`). The
/// limit is checked first: the kernel would send SIGXFSZ together with its error, which would kill
/// the app.
pub fn reserve(file: &Descriptor, bytes: u32) -> Result<()> {
    check_limit(bytes.into())?;
    fill(file, bytes)
}

/// Makes a file longer, by a hole that takes no disk space.
///
/// # Errors
/// See [`reserve`].
pub fn extend(file: &Descriptor, bytes: u64) -> Result<()> {
    check_limit(bytes)?;
    truncate(file, bytes)
}

fn check_limit(bytes: u64) -> Result<()> {
    // SAFETY: all zeroes is a limit; the kernel writes one.
    let mut limit: libc::rlimit = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let asked = unsafe { call!(getrlimit, libc::RLIMIT_FSIZE, &raw mut limit) };
    if asked.is_ok() && limit.rlim_cur < bytes { Err(Errno(libc::EFBIG)) } else { Ok(()) }
}

fn fill(file: &Descriptor, bytes: u32) -> Result<()> {
    if system::preallocate(file, bytes)? {
        return Ok(());
    }
    let zeros = [0_u8; 512];
    let mut offset = 0;
    while offset < bytes {
        let count = zeros.len().min((bytes - offset) as usize);
        write_at(file, &raw const zeros[..count], offset.into())?;
        offset += count as u32;
    }
    Ok(())
}

/// pwrite(2); returns the number of bytes written.
///
/// Only the kernel reads `bytes`, and fails if it is not mapped.
#[inline(always)]
pub fn write_at(file: &Descriptor, bytes: *const [u8], offset: u64) -> Result<usize> {
    // SAFETY: the kernel reads `bytes`.
    unsafe { call!(pwrite, file.number(), bytes.cast::<u8>(), bytes.len(), offset) }
}

/// pread(2); returns the number of bytes read, fewer at the end of the file.
#[inline(always)]
pub fn read_at(file: &Descriptor, into: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: the kernel writes at most `into.len()` bytes into it.
    unsafe { call!(pread, file.number(), into.as_mut_ptr(), into.len(), offset) }
}

/// ftruncate(2).
pub fn truncate(file: &Descriptor, length: u64) -> Result<()> {
    // SAFETY: no memory is touched.
    unsafe { call!(ftruncate, file.number(), length) }.map(|_| ())
}

/// Gets random bytes from the kernel. `false` if none are available (early boot).
pub fn random(into: &mut [u8; 16]) -> bool {
    system::random(into)
}

/// Returns a zeroed mapping of at least `size` bytes with its pages present.
///
/// Not async-signal-safe.
pub fn map(size: usize) -> Result<usize> {
    let mapping = map_untouched(size)?;
    // SAFETY: the mapping is new.
    unsafe { touch(mapping, size) };
    Ok(mapping)
}

/// Like [`map`], except that the pages within `untouched` are not touched.
///
/// Not async-signal-safe.
pub fn map_but(size: usize, untouched: Range<usize>) -> Result<usize> {
    let mapping = map_untouched(size)?;
    // SAFETY: the mapping is new.
    unsafe {
        touch(mapping, untouched.start);
        touch(mapping + untouched.end, size.saturating_sub(untouched.end));
    }
    Ok(mapping)
}

/// Returns a zeroed mapping of at least `size` bytes with no page touched.
#[allow(deprecated, reason = "`try_update` needs Rust 1.95")]
pub fn map_untouched(size: usize) -> Result<usize> {
    let pieces = size.next_multiple_of(PIECE);
    let end = AHEAD_END.load(Ordering::Acquire);
    let take = |next: usize| next.checked_add(pieces).filter(|after| *after <= end);
    if let Ok(taken) = AHEAD.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
        return Ok(taken);
    }
    // SAFETY: a new mapping touches nothing that exists.
    unsafe { map_anonymous(0, size) }
}

/// Like [`map_untouched`], above an inaccessible guard page.
///
/// A loop in the app that writes upwards beyond its own memory, as most do, ends at the page and
/// not in the memory that a report is made from. If the kernel refuses the page, there is none.
pub fn map_guarded(size: usize) -> Result<usize> {
    if ABOVE_SIZE.load(Ordering::Acquire) == size.next_multiple_of(PIECE) {
        let above = ABOVE.swap(0, Ordering::AcqRel);
        if above != 0 {
            return Ok(above);
        }
    }
    let mapping = map_untouched(size + PIECE)?;
    // SAFETY: the first piece of a mapping that nobody uses yet.
    let _ = unsafe { call!(mprotect, mapping, PIECE, libc::PROT_NONE) };
    Ok(mapping + PIECE)
}

/// Makes the first pages of a mapping inaccessible, without a mapping of their own if possible.
///
/// # Safety
/// The caller must own the pages, and nobody may use them.
pub(crate) unsafe fn guard(address: usize, length: usize) -> Result<()> {
    // SAFETY: by the contract.
    unsafe {
        if system::install_guard(address, length) {
            return Ok(());
        }
        call!(mprotect, address, length, libc::PROT_NONE).map(|_| ())
    }
}

/// Unmaps a mapping returned by [`map_guarded`] for `size` bytes.
///
/// # Safety
/// Nothing must refer to the mapping any more.
pub unsafe fn unmap_guarded(address: usize, size: usize) {
    // SAFETY: by the contract.
    unsafe { unmap(address - PIECE, size + PIECE) };
}

/// Adds a guard page below a permanent mapping, if nothing is there.
///
/// Not async-signal-safe.
pub fn guard_below(address: usize) {
    system::map_inaccessible(address - PIECE, PIECE);
}

/// The largest page size on this architecture.
///
/// Pieces of this size can be protected and unmapped separately.
const PIECE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 1 << 16 };

/// Start of the unused part of the mapping made ahead.
static AHEAD: AtomicUsize = AtomicUsize::new(0);
/// End of that mapping; 0 if there is none.
static AHEAD_END: AtomicUsize = AtomicUsize::new(0);

/// Start of the guarded part of the mapping made ahead; 0 if there is none or it is taken.
static ABOVE: AtomicUsize = AtomicUsize::new(0);
/// Size of the guarded part.
static ABOVE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Creates one mapping ahead of its use.
///
/// The next calls of [`map_untouched`] take from its first `size` bytes. Above an inaccessible page
/// it has `above` bytes for the next [`map_guarded`] of that size. Each should be smaller than what
/// the kernel gives huge pages for, which would be resident as a whole. If there is no memory, each
/// call creates its own mapping. The first user should be a [`Stack`](crate::stack::Stack), which
/// has a guard page of its own.
///
/// Not async-signal-safe. By one thread at a time.
pub fn map_ahead(size: usize, above: usize) {
    // Nobody takes memory while the end is 0, nor from an earlier mapping once the start has
    // changed.
    let end = AHEAD_END.swap(0, Ordering::AcqRel);
    let above = above.next_multiple_of(PIECE);
    // SAFETY: a new mapping touches nothing that exists.
    let made = unsafe { map_anonymous(0, size + PIECE + above) }.ok().filter(|start| start.is_multiple_of(PIECE));
    if let Some(start) = made {
        // SAFETY: nobody takes the piece between the parts: see `map_guarded`.
        let _ = unsafe { call!(mprotect, start + size, PIECE, libc::PROT_NONE) };
    }
    let rest = AHEAD.swap(made.unwrap_or(0), Ordering::AcqRel);
    if rest < end {
        // SAFETY: nobody took it.
        unsafe { unmap(rest, end - rest) };
    }
    let (size_before, above_before) = (ABOVE_SIZE.swap(above, Ordering::AcqRel), ABOVE.swap(0, Ordering::AcqRel));
    if above_before != 0 {
        // SAFETY: as above.
        unsafe { unmap_guarded(above_before, size_before) };
    }
    if let Some(start) = made {
        ABOVE.store(start + size + PIECE, Ordering::Release);
        AHEAD_END.store(start + size, Ordering::Release);
    }
}

/// Maps zeroed memory at `address` (0: anywhere).
///
/// # Safety
/// The caller must own whatever is mapped at `address`, which is replaced.
unsafe fn map_anonymous(address: usize, size: usize) -> Result<usize> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE | if address == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: at address 0 the kernel chooses; else by the contract.
    unsafe { call!(mmap, address, size, libc::PROT_READ | libc::PROT_WRITE, flags, -1_isize, 0) }
}

/// Maps `length` bytes of a file, shared with it, without read-ahead.
pub fn map_file(file: &Descriptor, length: usize) -> Result<usize> {
    map_shared(file, length).inspect(|at| read_nothing_ahead(*at, length))
}

/// Maps `length` bytes of a file, shared with it.
pub fn map_shared(file: &Descriptor, length: usize) -> Result<usize> {
    // SAFETY: a new mapping touches nothing that exists.
    unsafe { call!(mmap, 0, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.number(), 0) }
}

/// Maps a private page that the kernel zeros in a child that copies this process's memory.
///
/// # Errors
/// The kernel's error; `EINVAL` before Linux 4.14.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn map_wiped_on_fork() -> Result<usize> {
    // SAFETY: a new mapping touches nothing that exists.
    let page = unsafe { map_anonymous(0, PIECE) }?;
    // SAFETY: advice about the new mapping.
    let advised = unsafe { call!(madvise, page, PIECE, libc::MADV_WIPEONFORK) };
    // SAFETY: nobody uses it.
    advised.map(|_| page).inspect_err(|_| unsafe { unmap(page, PIECE) })
}

/// Maps `length` bytes of a file at `address`, in place of another mapping of that length.
///
/// # Safety
/// The caller must own that mapping, and its users must be prepared for the file's contents.
pub unsafe fn map_file_at(address: usize, file: &Descriptor, length: usize) -> Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    // SAFETY: by the contract.
    unsafe { call!(mmap, address, length, libc::PROT_READ | libc::PROT_WRITE, flags, file.number(), 0) }.map(|_| ())
}

/// Disables read-ahead for a file mapping.
///
/// The first page of a file of zeros would otherwise cost as much as hundreds of them.
pub fn read_nothing_ahead(address: usize, length: usize) {
    // SAFETY: advice: no byte changes.
    let _ = unsafe { call!(madvise, address, length, libc::MADV_RANDOM) };
}

/// Gives every page of fresh, zeroed memory its frame, so that none is needed when memory is short.
///
/// Not async-signal-safe.
///
/// # Safety
/// `address..address + length` must be a private, writable mapping that nobody else uses and to
/// which nothing was written.
pub(crate) unsafe fn touch(address: usize, length: usize) {
    /// The smallest page size.
    const PAGE: usize = 4096;
    const FEW: usize = 32;
    let start = address & !(PAGE - 1);
    let end = address.saturating_add(length);
    // One system call if there is one for it: a page costs half of a fault, but the call pays off
    // only for some tens of pages.
    if !system::POPULATES || end - start <= FEW * PAGE || populate(start, end - start).is_err() {
        for at in (start..end).step_by(PAGE) {
            // SAFETY: by the contract: zeros that are writable and ours.
            unsafe { (at as *mut u8).write_volatile(0) };
        }
    }
}

/// Asks the kernel to populate the pages of a mapping ahead of their use.
///
/// A page that the disk can't provide is an error of the call (`EFAULT`), and not a SIGBUS. Linux
/// before 5.14 leaves the pages as they are.
pub fn populate(address: usize, length: usize) -> Result<()> {
    // SAFETY: no byte changes.
    unsafe { call!(madvise, address, length, system::POPULATE) }.map(|_| ())
}

/// munmap(2).
///
/// # Safety
/// The caller must own the mapping, and nothing must refer to it any more.
pub unsafe fn unmap(address: usize, length: usize) {
    // SAFETY: by the contract.
    let _ = unsafe { call!(munmap, address, length) };
}

/// Replaces one page of a mapping with a private one of zeros. `false` if the kernel refuses.
///
/// # Safety
/// The caller must own the page, and its users must expect zeros.
pub unsafe fn replace_page(address: usize, page: usize) -> bool {
    // SAFETY: by the contract.
    unsafe { map_anonymous(address, page) }.is_ok()
}

/// Replaces a mapping with private memory of zeros at the same address.
///
/// If the kernel refuses, it stays as it is.
///
/// # Safety
/// The caller must own the mapping, and its users must expect zeros.
pub unsafe fn replace(address: usize, length: usize) {
    if length != 0 {
        // SAFETY: by the contract.
        let _ = unsafe { map_anonymous(address, length) };
    }
}

/// Copies a mapping into another one, word by word.
///
/// # Safety
/// Both must be page-aligned mappings of `length` bytes, and the caller must own the second.
pub unsafe fn copy_words(from: usize, to: usize, length: usize) {
    for offset in (0..length).step_by(8) {
        // SAFETY: by the contract. Volatile: another process may write a shared one meanwhile.
        unsafe { ((to + offset) as *mut u64).write_volatile(((from + offset) as *const u64).read_volatile()) };
    }
}
