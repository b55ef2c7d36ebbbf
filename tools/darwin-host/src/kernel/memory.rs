//! The host's own memory, separate from the program's malloc.
//!
//! This is Rust's global allocator here: size classes of powers of two, cut from mapped chunks and
//! kept on free lists, under a mutex that no suspended thread can hold ([`QuietMutex`]). The
//! program's `malloc` is libc's.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::UnsafeCell,
    ptr,
};

use super::lock::QuietMutex;

const SMALLEST_SHIFT: u32 = 4;
/// Larger blocks have their own mapping.
const LARGEST_SHIFT: u32 = 16;
const CHUNK: usize = 1 << 20;

struct Free {
    lists: [*mut u8; (LARGEST_SHIFT + 1) as usize],
    next: *mut u8,
    left: usize,
}

struct Allocator {
    mutex: QuietMutex,
    free: UnsafeCell<Free>,
}

// SAFETY: `free` is only used with the mutex held.
unsafe impl Sync for Allocator {}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator {
    mutex: QuietMutex::new(),
    free: UnsafeCell::new(Free {
        lists: [ptr::null_mut(); (LARGEST_SHIFT + 1) as usize],
        next: ptr::null_mut(),
        left: 0,
    }),
};

fn map(size: usize) -> *mut u8 {
    // SAFETY: a fresh private mapping.
    let block = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if block == libc::MAP_FAILED { ptr::null_mut() } else { block.cast() }
}

fn class(layout: Layout) -> u32 {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST_SHIFT);
    size.next_power_of_two().trailing_zeros()
}

// SAFETY: blocks of a class are disjoint, sized and aligned to the class (chunks are page-aligned
// and cut in powers of two; alignments above a page don't occur in this program and fail).
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > 4096 {
            return ptr::null_mut();
        }
        let class = class(layout);
        if class > LARGEST_SHIFT {
            return map(layout.size());
        }
        let held = self.mutex.acquire();
        // SAFETY: the mutex is held.
        let free = unsafe { &mut *self.free.get() };
        let mut block = free.lists[class as usize];
        if block.is_null() {
            let size = 1usize << class;
            // Chunks are cut upwards; padding keeps each block aligned to its size.
            let mut padding = (free.next as usize).wrapping_neg() & (size - 1);
            if free.left < size + padding {
                free.next = map(CHUNK);
                free.left = if free.next.is_null() { 0 } else { CHUNK };
                padding = 0;
                if size > 4096 {
                    padding = (free.next as usize).wrapping_neg() & (size - 1);
                }
            }
            if free.left >= size + padding {
                // SAFETY: `size + padding` bytes are left in the chunk.
                unsafe {
                    block = free.next.add(padding);
                    free.next = block.add(size);
                }
                free.left -= size + padding;
            }
        } else {
            // SAFETY: a free block's first word links to the next.
            free.lists[class as usize] = unsafe { block.cast::<*mut u8>().read() };
        }
        self.mutex.release(&held);
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let class = class(layout);
        if class > LARGEST_SHIFT {
            // SAFETY: mapped by `alloc` with this size.
            unsafe { libc::munmap(block.cast(), layout.size()) };
            return;
        }
        let held = self.mutex.acquire();
        // SAFETY: the mutex is held; the block is at least a word and no longer in use.
        unsafe {
            let free = &mut *self.free.get();
            block.cast::<*mut u8>().write(free.lists[class as usize]);
            free.lists[class as usize] = block;
        }
        self.mutex.release(&held);
    }
}

/// Resets the allocator in the child after fork, which has no other threads.
pub(crate) fn reset() {
    ALLOCATOR.mutex.reset();
}
