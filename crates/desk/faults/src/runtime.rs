//! Faults inside the C library's allocator, by damage that the program itself does.

/// The second `free` of a block is what the allocator most easily notices. It holds no lock then.
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

/// A freed block of glibc's unsorted list, as `struct malloc_chunk` lays it out (malloc.c): the block's own size stands
/// 8 bytes before what the program was given, and the links to the next and previous free block are its first words.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
struct FreedBlock {
    words: *mut usize,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl FreedBlock {
    /// Too large for the per-thread cache (0x410), so it goes to the arena; the block behind it keeps it from being
    /// merged with the rest of the arena; the second thread makes glibc take the arena's lock at all.
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
        // SAFETY: none is claimed: the block was freed, and writing to it is the fault. The page is still mapped.
        unsafe { self.words.offset(word).write_volatile(value) }
    }
}

/// A size that can't be: `malloc(): invalid size (unsorted)`, then abort.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[inline(never)]
pub(crate) fn abort_in_malloc() -> u64 {
    FreedBlock::new().damage(-1, 0x8000_0000_0000_0001);
    // SAFETY: ordinary use of malloc.
    std::hint::black_box(unsafe { libc::malloc(0x700) }) as u64
}

/// A link to nowhere: the check of `bck->fd` faults.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[inline(never)]
pub(crate) fn segv_in_malloc() -> u64 {
    FreedBlock::new().damage(1, 0x4141_4141_0000);
    // SAFETY: ordinary use of malloc.
    std::hint::black_box(unsafe { libc::malloc(0x700) }) as u64
}
