//! The memory reader trait, and reads that work with every reader.

/// The error of a guarded read: no readable memory at that address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The first requested address (in the memory's own address space).
    pub address: u64,
}

impl core::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "no readable memory at {:#x}", self.address)
    }
}

impl core::error::Error for Unreadable {}

/// Returns the little-endian 16-bit number at `at`; 0 if it is not entirely in `bytes`.
#[inline]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u16::from_le_bytes(*field))
}

/// Returns the little-endian 32-bit number at `at`; 0 if it is not entirely in `bytes`.
#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u32::from_le_bytes(*field))
}

/// Returns the little-endian 64-bit number at `at`; 0 if it is not entirely in `bytes`.
#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |field| u64::from_le_bytes(*field))
}

/// Number of bytes read by [`Memory::read_block`].
pub const BLOCK: usize = 64;

/// A reader of a live or saved process's memory. All addresses are absolute in that process (avma).
pub trait Memory {
    /// Fills `into` with the bytes at `address`.
    ///
    /// # Errors
    /// [`Unreadable`] if any of the bytes can't be read; `into` may then be partly written.
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable>;

    /// Reads the little-endian 64-bit word at `address`, aligned or not.
    ///
    /// # Errors
    /// [`Unreadable`] if the word can't be read.
    #[inline]
    fn read_u64(&mut self, address: u64) -> Result<u64, Unreadable> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads the two 64-bit words at `address` and `address + 8`: a frame record costs one read.
    ///
    /// # Errors
    /// [`Unreadable`] if either can't be read.
    #[inline]
    fn read_pair(&mut self, address: u64) -> Result<(u64, u64), Unreadable> {
        let mut bytes = [[0; 8]; 2];
        self.read(address, bytes.as_flattened_mut())?;
        Ok((u64::from_le_bytes(bytes[0]), u64::from_le_bytes(bytes[1])))
    }

    /// Fills `into` with the [`BLOCK`] bytes at `address`.
    ///
    /// Most entries of an unwind section then cost one read.
    ///
    /// # Errors
    /// [`Unreadable`] if any of the bytes can't be read; `into` may then be partly written.
    #[inline]
    fn read_block(&mut self, address: u64, into: &mut [u8; BLOCK]) -> Result<(), Unreadable> {
        self.read(address, into)
    }

    /// Drops cached data, if the reader has any, so that later reads see current memory.
    #[inline]
    fn forget(&mut self) {}
}

/// [`Memory::read`], never inlined.
///
/// No loop around it then keeps the address of the memory's own routine in a register: a proof of
/// what crash time can reach has to see where calls go.
#[inline(never)]
pub(crate) fn read_out_of_line<M: Memory>(memory: &mut M, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
    memory.read(address, into)
}

/// Returns the lowest readable address near the stack pointer `sp`.
///
/// This is `sp - below`, `sp`, or the start of the first readable page above it: a stack that
/// overflowed, or whose pointer is broken, begins there. `None` if there is none nearby.
pub fn first_readable<M: Memory>(memory: &mut M, sp: u64, below: u64) -> Option<u64> {
    /// Number of pages searched above an unreadable stack pointer.
    ///
    /// This reaches beyond a guard page and the frame that did not fit.
    const SEARCHED: u64 = 64;
    const PAGE: u64 = 4096;
    let mut can_be_read = |address: &u64| memory.read_u64(*address).is_ok();
    let near = Some(sp.saturating_sub(below)).filter(&mut can_be_read).or_else(|| Some(sp).filter(&mut can_be_read));
    let mut above = (1..=SEARCHED).map(|number| (sp & !(PAGE - 1)).saturating_add(number.wrapping_mul(PAGE)));
    near.or_else(|| above.find(can_be_read))
}

/// Reads the text before the first NUL at an address.
///
/// Returns as much as fits and can be read; empty at address 0.
pub fn read_text<'b, M: Memory>(memory: &mut M, address: u64, into: &'b mut [u8]) -> &'b [u8] {
    let mut length = 0;
    // In steps that don't cross a page, since the string may end at the end of the last one.
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
