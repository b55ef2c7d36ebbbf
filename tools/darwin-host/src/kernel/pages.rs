//! Pages: mapping, probing and copying memory that may be unmapped.

use std::{
    ptr,
    sync::atomic::{AtomicI32, Ordering},
};

use super::lock::QuietMutex;

/// The page size seen by the program: 16 KiB on arm64, 4 KiB on x86_64.
///
/// It is `vm_page_size` (<mach/vm_page_size.h>). Linux pages (and qemu's) are 4 KiB on both, so
/// requests in multiples of 16 KiB are multiples of 4 KiB, too.
pub(crate) const PAGE: usize = if cfg!(target_arch = "aarch64") { 16384 } else { 4096 };

/// Rounds up to a page.
pub(crate) const fn round(size: usize) -> usize {
    (size + PAGE - 1) & !(PAGE - 1)
}

/// Maps `size` fresh bytes at a multiple of [`PAGE`], readable and writable; null if out of memory.
pub(crate) fn map(size: usize) -> *mut u8 {
    map_with(size, libc::PROT_READ | libc::PROT_WRITE)
}

/// Like [`map`], with this protection.
pub(crate) fn map_with(size: usize, protection: i32) -> *mut u8 {
    let size = round(size);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: fresh mappings; the ends that are only needed for alignment are unmapped.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), size + PAGE, protection, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return ptr::null_mut();
        }
        let start = round(base as usize);
        let (head, tail) = (start - base as usize, base as usize + PAGE - start);
        if head > 0 {
            libc::munmap(base, head);
        }
        if tail > 0 {
            libc::munmap((start + size) as *mut libc::c_void, tail);
        }
        start as *mut u8
    }
}

/// A pipe for copying memory if `process_vm_readv` is not available (as in qemu-user).
static PIPE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];
static PIPE_LOCK: QuietMutex = QuietMutex::new();

fn pipe() -> [i32; 2] {
    if PIPE[0].load(Ordering::Relaxed) < 0 {
        let mut ends = [-1; 2];
        // SAFETY: two descriptors are written. They are moved to high numbers that the program
        // doesn't use.
        unsafe {
            libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC);
            for (end, place) in ends.iter_mut().zip(&PIPE) {
                let high = libc::fcntl(*end, libc::F_DUPFD_CLOEXEC, 900);
                libc::close(*end);
                *end = high;
                place.store(high, Ordering::Relaxed);
            }
        }
    }
    [PIPE[0].load(Ordering::Relaxed), PIPE[1].load(Ordering::Relaxed)]
}

/// Opens the pipe early, because a crash must not create descriptors.
pub(crate) fn prepare() {
    pipe();
}

/// Copies memory that may be unmapped; returns whether all of it was read. Errno stays unchanged.
pub(crate) fn copy_in(mut from: usize, to: &mut [u8]) -> bool {
    // SAFETY: errno is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    let held = PIPE_LOCK.acquire();
    let [read_end, write_end] = pipe();
    let mut good = true;
    let mut done = 0;
    while good && done < to.len() {
        // One Linux page at a time: never more than a pipe's capacity, and never across mappings.
        let count = (4096 - from % 4096).min(to.len() - done);
        // SAFETY: write(2) reports a bad source as EFAULT; the destination is `to`.
        unsafe {
            good = libc::write(write_end, from as *const libc::c_void, count) == count as isize
                && libc::read(read_end, to[done..].as_mut_ptr().cast(), count) == count as isize;
        }
        from = from.wrapping_add(count);
        done += count;
    }
    PIPE_LOCK.release(&held);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    good
}

/// Copies to memory that may not be writable; returns whether all was written.
///
/// Errno stays unchanged.
pub(crate) fn copy_out(from: &[u8], mut to: usize) -> bool {
    // SAFETY: errno is this thread's.
    let errno = unsafe { *libc::__errno_location() };
    let held = PIPE_LOCK.acquire();
    let [read_end, write_end] = pipe();
    let mut good = true;
    let mut done = 0;
    while good && done < from.len() {
        let count = (4096 - to % 4096).min(from.len() - done);
        // SAFETY: read(2) reports a bad destination as EFAULT; the bytes left in the pipe are
        // drained.
        unsafe {
            good = libc::write(write_end, from[done..].as_ptr().cast(), count) == count as isize;
            if good && libc::read(read_end, to as *mut libc::c_void, count) != count as isize {
                let mut rest = [0u8; 4096];
                libc::read(read_end, rest.as_mut_ptr().cast(), count);
                good = false;
            }
        }
        to = to.wrapping_add(count);
        done += count;
    }
    PIPE_LOCK.release(&held);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    good
}

/// Reads a plain value from memory that may be unmapped.
pub(crate) fn read_value<T: Copy>(from: usize) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the bytes of `value` are local; it is only used if all are written, and T is plain
    // data by contract.
    unsafe {
        let bytes = std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>());
        copy_in(from, bytes).then(|| value.assume_init())
    }
}

/// One mapping of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Mach's VM_PROT_*: 1 read, 2 write, 4 execute.
    pub(crate) protection: i32,
    pub(crate) shared: bool,
}

/// Returns the first mapping that ends above `address`, from `/proc/self/maps`, without allocating.
pub(crate) fn mapping_at_or_after(address: usize) -> Option<Mapping> {
    // SAFETY: this function's own descriptor, read into a local buffer; errno is restored.
    unsafe {
        let errno = *libc::__errno_location();
        let file = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let mut found = None;
        let mut line = [0u8; 64];
        let mut used = 0;
        let mut buffer = [0u8; 4096];
        'file: loop {
            if file < 0 {
                break;
            }
            let count = libc::read(file, buffer.as_mut_ptr().cast(), buffer.len());
            if count <= 0 {
                break;
            }
            for &byte in &buffer[..count as usize] {
                if byte != b'\n' {
                    if used < line.len() {
                        line[used] = byte;
                        used += 1;
                    }
                    continue;
                }
                if let Some(mapping) = parse(&line[..used])
                    && mapping.end > address
                {
                    found = Some(mapping);
                    break 'file;
                }
                used = 0;
            }
        }
        libc::close(file);
        *libc::__errno_location() = errno;
        found
    }
}

/// `55d0c8a00000-55d0c8a21000 rw-p …`
fn parse(line: &[u8]) -> Option<Mapping> {
    let line = std::str::from_utf8(line).ok()?;
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let flags = rest.as_bytes().get(..4)?;
    let bit = |index: usize, letter: u8, value: i32| if flags[index] == letter { value } else { 0 };
    Some(Mapping {
        start: usize::from_str_radix(start, 16).ok()?,
        end: usize::from_str_radix(end, 16).ok()?,
        protection: bit(0, b'r', 1) | bit(1, b'w', 2) | bit(2, b'x', 4),
        shared: flags[3] == b's',
    })
}

/// Resets the pipe in the child after fork: the inherited pipe is the parent's.
pub(crate) fn reset() {
    PIPE_LOCK.reset();
    for end in &PIPE {
        end.store(-1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps() {
        let mapping = parse(b"7f0012340000-7f0012342000 r-xp 00001000 08:01 12345 /lib/x").expect("a mapping");
        assert_eq!((mapping.start, mapping.end), (0x7f00_1234_0000, 0x7f00_1234_2000));
        assert_eq!((mapping.protection, mapping.shared), (5, false));
        assert!(parse(b"nonsense").is_none());
    }

    #[test]
    fn bad_memory_is_an_error() {
        let page = map(PAGE) as usize;
        assert_eq!(page % PAGE, 0);
        assert!(copy_out(b"seen", page));
        assert_eq!(read_value::<[u8; 4]>(page), Some(*b"seen"));
        // SAFETY: this test owns the page.
        unsafe { libc::mprotect(page as *mut libc::c_void, PAGE, libc::PROT_NONE) };
        assert_eq!(read_value::<u8>(page), None);
        assert!(!copy_out(b"x", page));
        assert_eq!(read_value::<u64>(8), None);
        // The failed copies leave nothing in the pipe.
        let word = 0x1234_5678_u32;
        assert_eq!(read_value::<u32>(&raw const word as usize), Some(word));
        assert_eq!(mapping_at_or_after(page).map(|m| m.protection), Some(0));
    }
}
