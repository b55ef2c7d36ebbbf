//! Files and mappings by the kernel's calls alone, without allocation: a child made by fork or vfork uses them when it crashes.
//!
//! Everything here is async-signal-safe unless it says otherwise.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::os::files as system;
#[cfg(any(target_os = "linux", target_os = "android"))]
pub use crate::os::files::move_mapping;
use crate::os::syscall::{Errno, Result, call};

/// openat(2), close-on-exec.
pub fn open(directory: i32, path: &CStr, flags: i32, mode: u32) -> Result<i32> {
    // SAFETY: the kernel reads the path.
    unsafe { call!(openat, directory, path.as_ptr(), flags | libc::O_CLOEXEC, mode) }.map(|file| file as i32)
}

/// Closes a descriptor that was opened a moment ago and never left this thread's hands.
pub fn close(file: i32) {
    // SAFETY: no memory is touched; closing a wrong number is only an error.
    let _ = unsafe { call!(close, file) };
}

/// fstat(2).
pub fn status(file: i32) -> Result<libc::stat> {
    // SAFETY: all zeroes is a `stat`; the kernel writes one.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    unsafe { call!(fstat, file, &raw mut status) }?;
    Ok(status)
}

/// fstatat(2), of a symbolic link itself.
pub fn status_of(directory: i32, path: &CStr) -> Result<libc::stat> {
    status_at(directory, path, libc::AT_SYMLINK_NOFOLLOW)
}

/// fstatat(2), of what a path leads to.
pub fn status_of_target(path: &CStr) -> Result<libc::stat> {
    status_at(libc::AT_FDCWD, path, 0)
}

fn status_at(directory: i32, path: &CStr, flags: i32) -> Result<libc::stat> {
    // SAFETY: all zeroes is a `stat`; the kernel writes one.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above; the kernel reads the path.
    unsafe { call!(fstatat, directory, path.as_ptr(), &raw mut status, flags) }?;
    Ok(status)
}

/// mkdirat(2) for the owner only.
pub fn make_directory(directory: i32, path: &CStr) -> Result<()> {
    // SAFETY: the kernel reads the path.
    unsafe { call!(mkdirat, directory, path.as_ptr(), 0o700) }.map(|_| ())
}

/// unlinkat(2). What can't be removed stays, and is the next launch's to remove.
pub fn unlink(directory: i32, path: &CStr, flags: i32) {
    // SAFETY: the kernel reads the path.
    let _ = unsafe { call!(unlinkat, directory, path.as_ptr(), flags) };
}

/// renameat(2) within a directory.
pub fn rename(directory: i32, path: &CStr, new_path: &CStr) -> Result<()> {
    // SAFETY: the kernel reads the paths.
    unsafe { call!(renameat, directory, path.as_ptr(), directory, new_path.as_ptr()) }.map(|_| ())
}

/// Makes all bytes of a file zero, and keeps them reserved.
pub fn make_zero(file: i32, bytes: u32) -> Result<()> {
    if system::zero_range(file, bytes) {
        return Ok(());
    }
    truncate(file, 0)?;
    reserve(file, bytes)
}

/// Sets a file's times, to the nanosecond. Where that is refused, what the kernel wrote has to do.
pub fn set_times(file: i32, since_epoch_ns: u64) {
    let (seconds, rest) = (since_epoch_ns / 1_000_000_000, since_epoch_ns % 1_000_000_000);
    let time = libc::timespec { tv_sec: seconds as libc::time_t, tv_nsec: rest as libc::c_long };
    let _ = system::set_times(file, &[time, time]);
}

/// A write lock on the whole file, or the kernel's refusal.
pub fn take_lock(file: i32) -> Result<()> {
    // SAFETY: all zeroes is a `flock`: from the start, of any length.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the kernel reads one `struct flock`.
    unsafe { call!(fcntl, file, libc::F_SETLK, &raw const lock) }.map(|_| ())
}

/// Gives the file that many bytes of disk, all zero. Where the file system can't reserve, zeros are written, which reserves as
/// well on every file system that does not compress or copy on write.
///
/// # Errors
/// What the kernel answered, and `EFBIG` if the process may not have files so large (`RLIMIT_FSIZE`). That is asked first: the kernel would send
/// SIGXFSZ with its refusal, of which the app would die.
pub fn reserve(file: i32, bytes: u32) -> Result<()> {
    // SAFETY: all zeroes is a limit; the kernel writes one.
    let mut limit: libc::rlimit = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    let asked = unsafe { call!(getrlimit, libc::RLIMIT_FSIZE, &raw mut limit) };
    if asked.is_ok() && limit.rlim_cur < libc::rlim_t::from(bytes) {
        return Err(Errno(libc::EFBIG));
    }
    fill(file, bytes)
}

fn fill(file: i32, bytes: u32) -> Result<()> {
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

/// pwrite(2); how many bytes were taken. The kernel alone reads `bytes`, and refuses what is not there.
#[inline(always)]
pub fn write_at(file: i32, bytes: *const [u8], offset: u64) -> Result<usize> {
    // SAFETY: the kernel reads `bytes`.
    unsafe { call!(pwrite, file, bytes.cast::<u8>(), bytes.len(), offset) }
}

/// pread(2); how many bytes were read, fewer at the file's end.
#[inline(always)]
pub fn read_at(file: i32, into: &mut [u8], offset: u64) -> Result<usize> {
    // SAFETY: the kernel writes at most `into.len()` bytes into it.
    unsafe { call!(pread, file, into.as_mut_ptr(), into.len(), offset) }
}

/// ftruncate(2).
pub fn truncate(file: i32, length: u64) -> Result<()> {
    // SAFETY: no memory is touched.
    unsafe { call!(ftruncate, file, length) }.map(|_| ())
}

/// Random bytes from the kernel. False if it has none to give (early boot).
pub fn random(into: &mut [u8; 16]) -> bool {
    system::random(into)
}

/// A zeroed mapping of at least `size` bytes whose pages are there (not async-signal-safe).
pub fn map(size: usize) -> Result<usize> {
    let mapping = map_untouched(size)?;
    // SAFETY: the mapping is new.
    unsafe { touch(mapping, size) };
    Ok(mapping)
}

/// As [`map`], but for the pages within `untouched` (not async-signal-safe).
pub fn map_but(size: usize, untouched: Range<usize>) -> Result<usize> {
    let mapping = map_untouched(size)?;
    // SAFETY: the mapping is new.
    unsafe {
        touch(mapping, untouched.start);
        touch(mapping + untouched.end, size.saturating_sub(untouched.end));
    }
    Ok(mapping)
}

/// A mapping of at least `size` bytes, all zero, of which no page is touched.
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

/// As [`map_untouched`], above a page that nobody can access: a loop of the app that writes beyond its own memory, upwards, as most do, ends
/// there and not behind what a report is made of. Where the kernel refuses the page, there is none.
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

/// Unmaps what [`map_guarded`] gave for `size` bytes.
///
/// # Safety
/// Nothing refers to it any more.
pub unsafe fn unmap_guarded(address: usize, size: usize) {
    // SAFETY: by the contract.
    unsafe { unmap(address - PIECE, size + PIECE) };
}

/// Such a page below a mapping that stays, if nothing is there (not async-signal-safe).
pub fn guard_below(address: usize) {
    system::map_inaccessible(address - PIECE, PIECE);
}

/// No page is larger on this architecture: pieces of it can be protected and unmapped by themselves.
const PIECE: usize = if cfg!(target_arch = "x86_64") { 4096 } else { 1 << 16 };

/// Where the part begins that nobody has taken of the mapping that was made ahead.
static AHEAD: AtomicUsize = AtomicUsize::new(0);
/// The end of that mapping; 0 for none.
static AHEAD_END: AtomicUsize = AtomicUsize::new(0);

/// Its part above a guard, until somebody takes it; 0 for none.
static ABOVE: AtomicUsize = AtomicUsize::new(0);
/// The size of that part.
static ABOVE_SIZE: AtomicUsize = AtomicUsize::new(0);

/// Makes one mapping ahead (not async-signal-safe, by one thread at a time): `size` bytes from which the next calls of [`map_untouched`]
/// take, and above a page that nobody can access `above` bytes for the next [`map_guarded`] of that size. Each is to be less than what the kernel
/// gives huge pages for, of which the whole would be resident. Where there is no memory for it, each makes its own. The first to take is
/// best a [`Stack`](crate::stack::Stack), which has a guard of its own.
pub fn map_ahead(size: usize, above: usize) {
    // Nobody takes while the end is 0, nor from an earlier mapping once the start is another one.
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

/// Zeroed memory at `address` (0: anywhere).
///
/// # Safety
/// What is mapped at `address` is the caller's, to be replaced.
unsafe fn map_anonymous(address: usize, size: usize) -> Result<usize> {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE | if address == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: at address 0 the kernel chooses; else by the contract.
    unsafe { call!(mmap, address, size, libc::PROT_READ | libc::PROT_WRITE, flags, -1_isize, 0) }
}

/// Maps `length` bytes of a file, shared with it. Nothing is read ahead.
pub fn map_file(file: i32, length: usize) -> Result<usize> {
    map_shared(file, length).inspect(|at| read_nothing_ahead(*at, length))
}

/// Maps `length` bytes of a file, shared with it.
pub fn map_shared(file: i32, length: usize) -> Result<usize> {
    // SAFETY: a new mapping touches nothing that exists.
    unsafe { call!(mmap, 0, length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file, 0) }
}

/// Has nothing read ahead of mappings of files: of one that is all zeros, the first page would otherwise cost what hundreds of them do.
pub fn read_nothing_ahead(address: usize, length: usize) {
    // SAFETY: advice: no byte changes.
    let _ = unsafe { call!(madvise, address, length, libc::MADV_RANDOM) };
}

/// Gives every page of fresh, zeroed memory its frame (not async-signal-safe), so that none has to be found when memory is short.
///
/// # Safety
/// `address..address + length` is a private mapping, writable, that nobody else uses and nothing was written to.
pub(crate) unsafe fn touch(address: usize, length: usize) {
    /// The smallest page there is.
    const PAGE: usize = 4096;
    const FEW: usize = 32;
    let start = address & !(PAGE - 1);
    let end = address.saturating_add(length);
    // One system call where there is one for it: a page costs half of what a fault does, and more than some tens pay for the call.
    if !system::POPULATES || end - start <= FEW * PAGE || populate(start, end - start).is_err() {
        for at in (start..end).step_by(PAGE) {
            // SAFETY: by the contract: zeros that are writable and ours.
            unsafe { (at as *mut u8).write_volatile(0) };
        }
    }
}

/// Asks the kernel for the pages of a mapping ahead of their use, as far as it can: a page that the disk refuses is an error of the
/// call (`EFAULT`), and no SIGBUS. Linux before 5.14 leaves them as they are.
pub fn populate(address: usize, length: usize) -> Result<()> {
    // SAFETY: no byte changes.
    unsafe { call!(madvise, address, length, system::POPULATE) }.map(|_| ())
}

/// munmap(2).
///
/// # Safety
/// The mapping is the caller's own, and nothing refers to it any more.
pub unsafe fn unmap(address: usize, length: usize) {
    // SAFETY: by the contract.
    let _ = unsafe { call!(munmap, address, length) };
}

/// Replaces one page of a mapping by a private one of zeros. False if the kernel refuses.
///
/// # Safety
/// The page is the caller's own, and who uses it expects zeros.
pub unsafe fn replace_page(address: usize, page: usize) -> bool {
    // SAFETY: by the contract.
    unsafe { map_anonymous(address, page) }.is_ok()
}

/// Replaces a shared mapping by a private copy of itself, at the same address. Where that fails it stays shared.
///
/// # Safety
/// The mapping is the caller's own, of whole words, and the calling thread is the only one of its process (a child right after fork).
pub unsafe fn make_private(address: usize, length: usize) {
    let Ok(copy) = map_untouched(length) else { return };
    // SAFETY: both are mappings of that length, page-aligned; the first is replaced by the contract.
    unsafe {
        copy_words(address, copy, length);
        if map_anonymous(address, length).is_ok() {
            copy_words(copy, address, length);
        }
        unmap(copy, length);
    }
}

/// Copies a mapping of that length into another one, word by word.
///
/// # Safety
/// Both are mappings of that length, page-aligned; the second is the caller's own.
pub unsafe fn copy_words(from: usize, to: usize, length: usize) {
    for offset in (0..length).step_by(8) {
        // SAFETY: by the contract. Volatile: another process may write a shared one meanwhile.
        unsafe { ((to + offset) as *mut u64).write_volatile(((from + offset) as *const u64).read_volatile()) };
    }
}
