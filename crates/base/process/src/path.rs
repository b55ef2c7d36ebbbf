//! Paths built on the crash path: a fixed buffer, no allocation.

use core::ffi::CStr;

/// A path within the store, with its NUL: a run's directory, its id and a file name.
///
/// On the crash path, files are opened relative to the store.
pub type Path = PathOf<128>;

/// A path that includes the store's own path (`PATH_MAX`).
pub type LongPath = PathOf<{ 4096 + 128 }>;

/// A path under construction, always NUL-terminated. Bytes that don't fit are left out.
#[derive(Clone, Copy, Debug)]
pub struct PathOf<const CAPACITY: usize> {
    bytes: [u8; CAPACITY],
    length: usize,
}

#[allow(clippy::new_without_default)]
impl<const CAPACITY: usize> PathOf<CAPACITY> {
    /// Returns the empty path.
    pub const fn new() -> Self {
        PathOf { bytes: [0; CAPACITY], length: 0 }
    }

    /// Appends bytes, none of which may be a NUL.
    #[must_use]
    pub fn push(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            // The last byte remains NUL.
            if self.length + 1 < CAPACITY
                && let Some(place) = self.bytes.get_mut(self.length)
            {
                *place = *byte;
                self.length += 1;
            }
        }
        self
    }

    /// Appends an id as lower-case hexadecimal digits.
    #[must_use]
    pub fn push_hex(mut self, id: &[u8; 16]) -> Self {
        for byte in id {
            self = self.push(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
        self
    }

    /// Appends a decimal number.
    #[must_use]
    pub fn push_decimal(self, number: u32) -> Self {
        let mut digits = [0_u8; 10];
        let mut rest = number;
        let mut used = 0_usize;
        for place in digits.iter_mut().rev() {
            *place = b'0' + (rest % 10) as u8;
            rest /= 10;
            used += 1;
            if rest == 0 {
                break;
            }
        }
        self.push(digits.get(10_usize.saturating_sub(used)..).unwrap_or(&[]))
    }

    /// Returns the path built so far.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

const fn hex_digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) }
}
