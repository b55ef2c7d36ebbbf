//! Reading memory that the crash may have touched: a bad address is an error value, never a fault.
//!
//! A reader is a [`Memory`]. The unwinder and everything else on the crash path read through one and do not know which:
//! * [`LoadGuarded`]: plain loads from one small routine whose faults Coroner's signal handler (on Darwin: its exception
//!   threads) turns into an error. It costs about a nanosecond, needs no kernel service (so it works where a sandbox denies
//!   `process_vm_readv`), and is right only while that handler is in place, and on Linux SIGSEGV and SIGBUS unblocked: at
//!   crash time, or outside a signal handler on a thread that does not block them.
//! * [`KernelCopy`]: the kernel copies (`process_vm_readv` on Linux, `vm_read_overwrite` on Darwin). It costs about a
//!   microsecond a call whatever its size up to a page, so it is always put behind a [`Windowed`].
//! * `CheckedMemory` (Linux, Android): the kernel copies, through a pipe where it refuses `process_vm_readv`. For outside crash
//!   time, before a handler is in place.
//! * [`Windowed`]: a few cached windows of 4 KiB over another reader.
//! * [`Snapshot`]: memory that was saved before, for another process to read.

/// The error of a guarded read: no readable memory at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The first address that was asked for (in the memory's own address space).
    pub address: u64,
}

impl core::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no readable memory at {:#x}", self.address)
    }
}

impl core::error::Error for Unreadable {}

/// The little-endian 16-bit number at `at` in these bytes; 0 if it is not all in them.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u16::from_le_bytes(*field))
}

/// The little-endian 32-bit number at `at` in these bytes; 0 if it is not all in them.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u32::from_le_bytes(*field))
}

/// The little-endian 64-bit number at `at` in these bytes; 0 if it is not all in them.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u64::from_le_bytes(*field))
}

/// The length of what [`Memory::read_block`] reads.
pub const BLOCK: usize = 64;

/// Something that can read the memory of a process, live or saved. All addresses are absolute in that process (avma).
pub trait Memory {
    /// Fills `into` with the bytes at `address`.
    ///
    /// # Errors
    /// [`Unreadable`] where any of the bytes can't be read; `into` may then be partly written.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// The little-endian 64-bit word at `address`, aligned or not.
    ///
    /// # Errors
    /// [`Unreadable`] where it can't be read.
    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The two 64-bit words at `address` and `address + 8`: a frame record costs one read.
    ///
    /// # Errors
    /// [`Unreadable`] where either can't be read.
    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        let mut bytes = [[0; 8]; 2];
        self.read(address, bytes.as_flattened_mut())?;
        Ok((u64::from_le_bytes(bytes[0]), u64::from_le_bytes(bytes[1])))
    }

    /// Fills `into` with the [`BLOCK`] bytes at `address`: most entries of an unwind section cost one read.
    ///
    /// # Errors
    /// [`Unreadable`] where any of the bytes can't be read; `into` may then be partly written.
    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        self.read(address, into)
    }

    /// Drops what was read ahead, if the reader does that: the next reads see memory as it is then.
    #[inline]
    fn forget(&mut self) {}
}

/// [`Memory::read`], never inlined, so that no loop around it keeps the address of the memory's own routine in a register: a
/// proof of what crash time can reach has to see where calls go.
#[inline(never)]
pub(crate) fn read_out_of_line<M: Memory>(memory: &mut M, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
    memory.read(address, into)
}

/// A little below the stack pointer, it, or the start of the first page above it that can be read: a stack that overflowed, or whose pointer is
/// broken, begins there. `None` if there is none near.
pub fn first_readable<M: Memory>(memory: &mut M, sp: u64, below: u64) -> Option<u64> {
    /// How far above a stack pointer that can't be read the first readable page is looked for: beyond a guard page and the frame that
    /// did not fit.
    const SEARCHED: u64 = 64;
    const PAGE: u64 = 4096;
    let mut can_be_read = |address: &u64| memory.read_u64(*address).is_ok();
    let near = Some(sp.saturating_sub(below)).filter(&mut can_be_read).or_else(|| Some(sp).filter(&mut can_be_read));
    let mut above = (1..=SEARCHED).map(|number| (sp & !(PAGE - 1)).saturating_add(number.wrapping_mul(PAGE)));
    near.or_else(|| above.find(can_be_read))
}

/// The text before the first NUL at an address, as far as it fits and can be read; nothing at address 0.
pub fn read_text<'b, M: Memory>(memory: &mut M, address: u64, into: &'b mut [u8]) -> &'b [u8] {
    let mut length = 0;
    // In steps that do not cross a page, since the string may end at the end of the last one.
    'steps: while address != 0 && length < into.len() {
        let at = address.saturating_add(length as u64);
        let step = (64 - (at % 64) as usize).min(into.len().saturating_sub(length));
        let Some(piece) = into.get_mut(length..).and_then(|rest| rest.get_mut(..step)) else { break };
        if read_out_of_line(memory, at, piece).is_err() {
            break;
        }
        for byte in piece.iter() {
            if *byte == 0 {
                break 'steps;
            }
            length = length.saturating_add(1);
        }
    }
    into.get(..length).unwrap_or_default()
}

impl<M: Memory + ?Sized> Memory for &mut M {
    #[inline]
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        (**self).read(address, into)
    }

    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        (**self).read_u64(address)
    }

    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        (**self).read_pair(address)
    }

    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        (**self).read_block(address, into)
    }

    #[inline]
    fn forget(&mut self) {
        (**self).forget();
    }
}

#[cfg(supported)]
pub use crate::{
    loads::{LoadGuarded, recover_guarded_load},
    os::memory::{KernelCopy, PresentPages},
};

#[cfg(all(supported, any(target_os = "linux", target_os = "android")))]
pub use crate::os::memory::{CheckedMemory, is_accessible};

/// The size of a [`Windowed`] window, and its alignment in the address space that is read: the smallest page of every
/// supported system, so that a window is readable as a whole or not at all.
pub const WINDOW: usize = 4096;

/// `N` cached windows over a reader whose calls are dear.
///
/// What a window holds is what the memory held when it was first read: make a new one (or [`Memory::forget`]) for
/// each walk of a thread that runs. It is large (`N` × 4 KiB): keep it in preallocated memory on the crash path.
#[derive(Debug)]
pub struct Windowed<M, const N: usize> {
    inner: M,
    /// The base address of each window; `u64::MAX` is "empty" (no page starts there).
    bases: [u64; N],
    next: usize,
    bytes: [[u8; WINDOW]; N],
}

impl<M: Memory, const N: usize> Windowed<M, N> {
    /// Empty windows over `inner`.
    pub const fn new(inner: M) -> Self {
        Windowed { inner, bases: [u64::MAX; N], next: 0, bytes: [[0; WINDOW]; N] }
    }

    /// The window that starts at `base`, read if it is not there yet.
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

/// Memory that was saved before: ranges of bytes with the address that each had.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The ranges; where two overlap, the first that holds all the bytes asked for wins.
    pub ranges: &'a [SnapshotRange<'a>],
}

/// One range of a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct SnapshotRange<'a> {
    /// The address of the first byte in the process that was saved.
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Memory for Snapshot<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        for range in self.ranges {
            let Some(offset) = address.checked_sub(range.address) else { continue };
            let Ok(offset) = usize::try_from(offset) else { continue };
            if let Some(source) = range.bytes.get(offset..).and_then(|tail| tail.get(..into.len())) {
                into.copy_from_slice(source);
                return Ok(());
            }
        }
        Err(Unreadable { address })
    }
}
