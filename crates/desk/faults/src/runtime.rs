//! Faults inside the C library's allocator, after heap corruption by the program.

/// Frees a block twice, the error that allocators detect most reliably. No lock is held then.
#[inline(never)]
#[cfg(not(target_os = "android"))]
pub(crate) fn double_free() -> u64 {
    // SAFETY: none is claimed: the second free is the fault.
    unsafe {
        let block = std::hint::black_box(libc::malloc(0x90));
        libc::free(block);
        libc::free(std::hint::black_box(block));
    }
    0
}

/// A freed block in glibc's unsorted list, laid out as `struct malloc_chunk` (malloc.c).
///
/// The block's size is stored 8 bytes before the pointer that malloc returned, and the links to the
/// next and previous free block are the block's first words.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
struct FreedBlock {
    words: *mut usize,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl FreedBlock {
    /// Allocates and frees the block so that it ends up in the unsorted list.
    ///
    /// It is too large for the per-thread cache (0x410), so it goes to the arena; the block after
    /// it prevents its being merged with the rest of the arena; and glibc takes the arena's lock
    /// only if there is a second thread.
    fn new() -> FreedBlock {
        crate::threads::park(1);
        // SAFETY: ordinary use of malloc and free.
        unsafe {
            let block = std::hint::black_box(libc::malloc(0x500));
            std::hint::black_box(libc::malloc(0x500));
            libc::free(block);
            FreedBlock { words: block.cast() }
        }
    }

    /// Overwrites a word of the freed block.
    fn damage(&self, word: isize, value: usize) {
        // SAFETY: none is claimed: the block is freed, and writing to it is the fault. The page is
        // still mapped.
        unsafe { self.words.offset(word).write_volatile(value) }
    }
}

/// Writes an invalid size: `malloc(): invalid size (unsorted)`, then abort.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[inline(never)]
pub(crate) fn abort_in_malloc() -> u64 {
    FreedBlock::new().damage(-1, 0x8000_0000_0000_0001);
    // SAFETY: ordinary use of malloc.
    std::hint::black_box(unsafe { libc::malloc(0x700) }) as u64
}

/// Writes an invalid link: the check of `bck->fd` faults.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[inline(never)]
pub(crate) fn segv_in_malloc() -> u64 {
    FreedBlock::new().damage(1, 0x4141_4141_0000);
    // SAFETY: ordinary use of malloc.
    std::hint::black_box(unsafe { libc::malloc(0x700) }) as u64
}
