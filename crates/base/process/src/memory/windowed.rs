//! Cached windows over another reader.

use super::{Memory, Unreadable};

/// Size and alignment of a [`Windowed`] window.
///
/// This is the smallest page size of all supported systems, so that a window is readable as a whole
/// or not at all.
pub const WINDOW: usize = 4096;

/// `N` cached windows over a reader whose calls are expensive.
///
/// A window keeps the contents of the memory when it was first read: create a new reader (or call
/// [`Memory::forget`]) for each walk of a running thread. It is large (`N` × 4 KiB): keep it in
/// preallocated memory on the crash path.
#[derive(Debug)]
pub struct Windowed<M, const N: usize> {
    inner: M,
    /// The base address of each window; `u64::MAX` means empty (no page starts there).
    bases: [u64; N],
    next: usize,
    bytes: [[u8; WINDOW]; N],
}

impl<M: Memory, const N: usize> Windowed<M, N> {
    /// Creates empty windows over `inner`.
    pub const fn new(inner: M) -> Self {
        Windowed { inner, bases: [u64::MAX; N], next: 0, bytes: [[0; WINDOW]; N] }
    }

    /// Returns the window that starts at `base`, read if it is not cached yet.
    fn window(&mut self, base: u64) -> Result<&[u8; WINDOW], Unreadable> {
        let found = self.bases.iter().position(|held| *held == base);
        let index = if let Some(index) = found {
            index
        } else {
            let index = self.next;
            self.next = if index + 1 < N { index + 1 } else { 0 };
            let (Some(held), Some(bytes)) = (self.bases.get_mut(index), self.bytes.get_mut(index)) else {
                return Err(Unreadable { address: base });
            };
            *held = u64::MAX;
            self.inner.read(base, bytes)?;
            *held = base;
            index
        };
        self.bytes.get(index).ok_or(Unreadable { address: base })
    }
}

impl<M: Memory, const N: usize> Memory for Windowed<M, N> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let mut at = address;
        let mut rest = into;
        while !rest.is_empty() {
            let base = at & !(WINDOW as u64 - 1);
            let offset = (at - base) as usize;
            let take = rest.len().min(WINDOW - offset);
            let (now, later) = core::mem::take(&mut rest).split_at_mut_checked(take).ok_or(Unreadable { address })?;
            let window = self.window(base).map_err(|_| Unreadable { address })?;
            let source = window.get(offset..).and_then(|tail| tail.get(..take)).ok_or(Unreadable { address })?;
            for (to, from) in now.iter_mut().zip(source) {
                *to = *from;
            }
            at = at.checked_add(take as u64).ok_or(Unreadable { address })?;
            rest = later;
        }
        Ok(())
    }

    fn forget(&mut self) {
        self.bases = [u64::MAX; N];
    }
}
