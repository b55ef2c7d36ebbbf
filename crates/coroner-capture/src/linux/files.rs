//! Files and mappings by system call, without allocation: a child made by fork or vfork uses them when it crashes.

use coroner_machine::syscall::{Errno, Result, syscall};

/// openat(2), close-on-exec. `path` is NUL-terminated.
pub(crate) fn open(directory: i32, path: *const u8, flags: i32, mode: u32) -> Result<i32> {
    // SAFETY: `path` is NUL-terminated (the callers' types see to it). Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_openat, directory, path, flags | libc::O_CLOEXEC, mode) }.map(|fd| fd as i32)
}

/// mkdirat(2) for the owner only. `path` is NUL-terminated.
pub(crate) fn make_directory(directory: i32, path: *const u8) -> Result<()> {
    // SAFETY: as in `open`.
    unsafe { syscall!(libc::SYS_mkdirat, directory, path, 0o700) }.map(|_| ())
}

/// close(2).
pub(crate) fn close(fd: i32) {
    // SAFETY: the descriptor is ours; closing a wrong one is only an error. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_close, fd) };
}

/// unlinkat(2). What can't be removed stays, and is the next launch's to remove. `path` is NUL-terminated.
pub(crate) fn unlink(directory: i32, path: *const u8, flags: i32) {
    // SAFETY: as in `open`.
    let _ = unsafe { syscall!(libc::SYS_unlinkat, directory, path, flags) };
}

/// Sets a file's times, to the nanosecond. Where that is refused, what the kernel wrote has to do.
pub(crate) fn set_times(fd: i32, since_epoch_ns: u64) {
    let time = [(since_epoch_ns / 1_000_000_000) as i64, (since_epoch_ns % 1_000_000_000) as i64];
    let times = [time, time];
    // SAFETY: the kernel reads two 64-bit `timespec`s. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(libc::SYS_utimensat, fd, 0_usize, times.as_ptr(), 0) };
}

/// A write lock on the whole file, or the kernel's refusal.
pub(crate) fn take_lock(fd: i32) -> Result<()> {
    #[repr(C)]
    struct Flock {
        kind: i16,
        whence: i16,
        start: i64,
        length: i64,
        pid: i32,
    }
    let lock = Flock { kind: libc::F_WRLCK as i16, whence: libc::SEEK_SET as i16, start: 0, length: 0, pid: 0 };
    // SAFETY: the kernel reads one `struct flock` (64-bit layout of asm-generic/fcntl.h).
    unsafe { syscall!(libc::SYS_fcntl, fd, libc::F_SETLK, &raw const lock) }.map(|_| ())
}

/// Gives the file that many bytes of disk, all zero. Where the file system can't reserve (`EOPNOTSUPP`), zeros are
/// written, which reserves as well on every file system that does not compress or copy on write.
pub(crate) fn reserve(fd: i32, bytes: u32) -> Result<()> {
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    match unsafe { syscall!(libc::SYS_fallocate, fd, 0, 0, bytes) } {
        Err(Errno(libc::EOPNOTSUPP | libc::ENOSYS)) => {}
        other => return other.map(|_| ()),
    }
    let zeros = [0_u8; 512];
    let mut offset = 0;
    while offset < bytes {
        let count = zeros.len().min((bytes - offset) as usize);
        // SAFETY: the kernel reads `count` bytes of `zeros`.
        unsafe { syscall!(libc::SYS_pwrite64, fd, zeros.as_ptr(), count, offset) }?;
        offset += count as u32;
    }
    Ok(())
}

/// pwrite(2); how many bytes were taken. The kernel alone reads `bytes`, and refuses what is not there.
#[inline]
pub(crate) fn write_at(fd: i32, bytes: *const [u8], offset: u64) -> Result<usize> {
    // SAFETY: the kernel reads `bytes`. Async-signal-safe: one system call.
    unsafe { syscall!(libc::SYS_pwrite64, fd, bytes.cast::<u8>(), bytes.len(), offset) }
}

/// ftruncate(2).
pub(crate) fn truncate(fd: i32, length: u64) {
    // SAFETY: no memory is touched. Async-signal-safe: one system call.
    let _ = unsafe { syscall!(SYS_FTRUNCATE, fd, length) };
}

/// ftruncate's number (asm/unistd_64.h, asm-generic/unistd.h); libc has it not for Android.
const SYS_FTRUNCATE: i64 = if cfg!(target_arch = "x86_64") { 77 } else { 46 };

/// Random bytes from the kernel. False where it has none to give (early boot).
pub(crate) fn random(into: &mut [u8; 16]) -> bool {
    // SAFETY: the kernel writes at most 16 bytes. Async-signal-safe: one system call.
    let count = unsafe { syscall!(libc::SYS_getrandom, into.as_mut_ptr(), into.len(), libc::GRND_NONBLOCK) };
    count == Ok(into.len())
}

/// A zeroed, touched mapping of at least `size` bytes.
pub(crate) fn map(size: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    unsafe { syscall!(libc::SYS_mmap, 0, size, protection, flags, -1_isize, 0) }
}

/// Maps `length` bytes of a file at `address` (0: anywhere), shared with the file or private to this process.
pub(crate) fn map_file(fd: i32, length: usize, address: usize, shared: bool) -> Result<usize> {
    let mut flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    if address != 0 {
        flags |= libc::MAP_FIXED;
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: at address 0 the kernel chooses; else the caller names a mapping of its own that is to be replaced.
    unsafe { syscall!(libc::SYS_mmap, address, length, protection, flags, fd, 0) }
}
