//! What a reader of memory is, and reads that every reader can make.

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
