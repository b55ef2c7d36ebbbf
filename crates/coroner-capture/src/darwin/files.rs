//! Files and mappings, by the functions of libSystem that only enter the kernel (sigaction(2) names them async-signal-safe).

use coroner_machine::syscall::{Errno, Result, check};

/// openat(2), close-on-exec. `path` is NUL-terminated.
pub(crate) fn open(directory: i32, path: *const u8, flags: i32, mode: u32) -> Result<i32> {
    // SAFETY: `path` is NUL-terminated (the callers' types see to it). Async-signal-safe.
    check(unsafe { libc::openat(directory, path.cast(), flags | libc::O_CLOEXEC, mode) } as isize).map(|fd| fd as i32)
}

/// mkdirat(2) for the owner only. `path` is NUL-terminated.
pub(crate) fn make_directory(directory: i32, path: *const u8) -> Result<()> {
    // SAFETY: as in `open`.
    check(unsafe { libc::mkdirat(directory, path.cast(), 0o700) } as isize).map(|_| ())
}

/// close(2).
pub(crate) fn close(fd: i32) {
    // SAFETY: the descriptor is ours; closing a wrong one is only an error. Async-signal-safe.
    unsafe { libc::close(fd) };
}

/// unlinkat(2). What can't be removed stays, and is the next launch's to remove. `path` is NUL-terminated.
pub(crate) fn unlink(directory: i32, path: *const u8, flags: i32) {
    // SAFETY: as in `open`.
    unsafe { libc::unlinkat(directory, path.cast(), flags) };
}

/// Sets a file's times, to the nanosecond. Where that is refused, what the kernel wrote has to do.
pub(crate) fn set_times(fd: i32, since_epoch_ns: u64) {
    let (seconds, rest) = (since_epoch_ns / 1_000_000_000, since_epoch_ns % 1_000_000_000);
    let time = libc::timespec { tv_sec: seconds as libc::time_t, tv_nsec: rest as libc::c_long };
    let times = [time, time];
    // SAFETY: the kernel reads two `timespec`s. Async-signal-safe: one system call.
    unsafe { libc::futimens(fd, times.as_ptr()) };
}

/// A write lock on the whole file, or the kernel's refusal.
pub(crate) fn take_lock(fd: i32) -> Result<()> {
    let lock = libc::flock {
        l_start: 0,
        l_len: 0,
        l_pid: 0,
        l_type: libc::F_WRLCK,
        l_whence: libc::SEEK_SET as libc::c_short,
    };
    // SAFETY: the kernel reads one `struct flock`.
    check(unsafe { libc::fcntl(fd, libc::F_SETLK, &raw const lock) } as isize).map(|_| ())
}

/// Gives the file that many bytes of disk, all zero. Where the file system can't reserve, zeros are written.
pub(crate) fn reserve(fd: i32, bytes: u32) -> Result<()> {
    let mut store = libc::fstore_t {
        fst_flags: libc::F_ALLOCATEALL,
        fst_posmode: libc::F_PEOFPOSMODE,
        fst_offset: 0,
        fst_length: bytes.into(),
        fst_bytesalloc: 0,
    };
    // SAFETY: the kernel reads and writes one `fstore_t` (fcntl(2), F_PREALLOCATE). It does not change the file's length.
    match check(unsafe { libc::fcntl(fd, libc::F_PREALLOCATE, &raw mut store) } as isize) {
        Ok(_) => {
            // SAFETY: no memory is touched.
            return check(unsafe { libc::ftruncate(fd, bytes.into()) } as isize).map(|_| ());
        }
        Err(Errno(libc::ENOTSUP | libc::EINVAL | libc::ENODEV | libc::ENOTTY)) => {}
        Err(errno) => return Err(errno),
    }
    let zeros = [0_u8; 512];
    let mut offset = 0;
    while offset < bytes {
        let count = zeros.len().min((bytes - offset) as usize);
        write_at(fd, &raw const zeros[..count], offset.into())?;
        offset += count as u32;
    }
    Ok(())
}

/// pwrite(2); how many bytes were taken. The kernel alone reads `bytes`, and refuses what is not there.
pub(crate) fn write_at(fd: i32, bytes: *const [u8], offset: u64) -> Result<usize> {
    // SAFETY: the kernel reads `bytes`. Async-signal-safe.
    check(unsafe { libc::pwrite(fd, bytes.cast(), bytes.len(), offset as libc::off_t) })
}

/// ftruncate(2).
pub(crate) fn truncate(fd: i32, length: u64) {
    // SAFETY: no memory is touched. Async-signal-safe.
    unsafe { libc::ftruncate(fd, length as libc::off_t) };
}

/// Random bytes from the kernel (getentropy(2)). False where it has none to give.
pub(crate) fn random(into: &mut [u8; 16]) -> bool {
    // SAFETY: the kernel writes 16 bytes. Async-signal-safe: one system call.
    unsafe { libc::getentropy(into.as_mut_ptr().cast(), into.len()) == 0 }
}

/// A zeroed, touched mapping of at least `size` bytes.
pub(crate) fn map(size: usize) -> Result<usize> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let mapping = unsafe { libc::mmap(core::ptr::null_mut(), size, protection, flags, -1, 0) };
    if mapping == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    for offset in (0..size).step_by(4096) {
        // SAFETY: inside the mapping, which is new and writable.
        unsafe { mapping.cast::<u8>().add(offset).write_volatile(0) };
    }
    Ok(mapping as usize)
}

/// Maps `length` bytes of a file at `address` (0: anywhere), shared with the file or private to this process.
pub(crate) fn map_file(fd: i32, length: usize, address: usize, shared: bool) -> Result<usize> {
    let mut flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    if address != 0 {
        flags |= libc::MAP_FIXED;
    }
    // SAFETY: at address 0 the kernel chooses; else the caller names a mapping of its own that is to be replaced.
    let mapping =
        unsafe { libc::mmap(address as *mut libc::c_void, length, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if mapping == libc::MAP_FAILED { Err(Errno::last()) } else { Ok(mapping as usize) }
}
