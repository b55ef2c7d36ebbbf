//! Paths built on the crash path: a fixed buffer, no allocation.

use core::ffi::CStr;

/// The longest path that is built, with its NUL: a run's directory, its id and a file name.
const CAPACITY: usize = 128;

/// A path under construction, always NUL-terminated. What does not fit is left out (nothing that is built here is
/// longer than [`CAPACITY`]; a directory's own path is never part of it, since files are opened relative to it).
#[derive(Clone, Copy)]
pub(crate) struct Path {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl Path {
    pub(crate) const fn new() -> Self {
        Path { bytes: [0; CAPACITY], length: 0 }
    }

    pub(crate) fn push(mut self, bytes: &[u8]) -> Self {
        for byte in bytes {
            // The last byte stays the NUL.
            if self.length + 1 < CAPACITY
                && let Some(place) = self.bytes.get_mut(self.length)
            {
                *place = *byte;
                self.length += 1;
            }
        }
        self
    }

    /// Lower-case hexadecimal digits of an id.
    pub(crate) fn push_hex(mut self, id: &[u8; 16]) -> Self {
        for byte in id {
            self = self.push(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
        }
        self
    }

    /// A decimal number.
    pub(crate) fn push_decimal(self, number: u32) -> Self {
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

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

const fn hex_digit(nibble: u8) -> u8 {
    if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) }
}

/// The bytes of a C string with its NUL, as system calls want them.
pub(crate) fn c_path(path: &CStr) -> *const u8 {
    path.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> &[u8] {
        CStr::from_bytes_until_nul(&path.bytes).unwrap().to_bytes()
    }

    #[test]
    fn paths_are_built_and_stay_terminated() {
        let path = Path::new().push(b"runs/").push_hex(&[0xab; 16]).push(b"/report-").push_decimal(2);
        assert_eq!(text(&path), b"runs/abababababababababababababababab/report-2");
        assert_eq!(text(&Path::new().push_decimal(0)), b"0");
        assert_eq!(text(&Path::new().push_decimal(u32::MAX)), b"4294967295");
        assert_eq!(text(&Path::new().push(&[b'a'; 500])).len(), CAPACITY - 1);
    }
}
