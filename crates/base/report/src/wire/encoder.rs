//! A CBOR encoder (RFC 8949) into a fixed buffer.

/// Major types of RFC 8949 §3.1, as the top three bits of an initial byte.
mod major {
    pub(super) const UNSIGNED: u8 = 0 << 5;
    pub(super) const NEGATIVE: u8 = 1 << 5;
    pub(super) const BYTES: u8 = 2 << 5;
    pub(super) const TEXT: u8 = 3 << 5;
    pub(super) const ARRAY: u8 = 4 << 5;
    pub(super) const MAP: u8 = 5 << 5;
    pub(super) const TAG: u8 = 6 << 5;
}

/// Additional information of an initial byte (RFC 8949 §3): the width of the argument that follows
/// it.
mod width {
    pub(super) const ONE: u8 = 0x18;
    pub(super) const TWO: u8 = 0x19;
    pub(super) const FOUR: u8 = 0x1A;
    pub(super) const EIGHT: u8 = 0x1B;
    pub(super) const INDEFINITE: u8 = 0x1F;
}

const FALSE: u8 = 0xF4;
const TRUE: u8 = 0xF5;
const NULL: u8 = 0xF6;
const BREAK: u8 = 0xFF;

/// U+FFFD REPLACEMENT CHARACTER in UTF-8.
const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();

/// Encodes CBOR items one after another into a fixed buffer.
///
/// **Overflow is sticky.** An item that doesn't fit is not written at all, and neither is any later
/// item, until [`rollback`](Self::rollback) removes the element that didn't fit as a whole.
/// [`element`](Self::element) does both, so a loop over elements can stop at the first that doesn't
/// fit and still close its container.
///
/// **A container can always be closed.** An indefinite container reserves its closing byte when it
/// is opened.
///
/// Definite containers promise a number of items, so they are for records whose items are written
/// together, inside an [`element`](Self::element).
#[derive(Debug)]
pub struct Encoder<'a> {
    buffer: &'a mut [u8],
    position: usize,
    /// Number of open indefinite containers; each has one byte reserved for its end.
    open: usize,
    overflowed: bool,
}

/// A position in an [`Encoder`] for a rollback.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    position: usize,
    open: usize,
}

impl<'a> Encoder<'a> {
    /// Creates an encoder at the start of `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Encoder { buffer, position: 0, open: 0, overflowed: false }
    }

    /// Number of bytes written.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Number of bytes that can still be written, without those reserved for open containers.
    pub fn remaining(&self) -> usize {
        self.buffer.len().saturating_sub(self.position).saturating_sub(self.open)
    }

    /// Whether an item did not fit since the last [`rollback`](Self::rollback).
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Returns the bytes written so far.
    pub fn written(&self) -> &[u8] {
        self.buffer.get(..self.position).unwrap_or_default()
    }

    /// Returns the current position.
    pub fn mark(&self) -> Mark {
        Mark { position: self.position, open: self.open }
    }

    /// Removes everything written since `mark` and clears the overflow.
    ///
    /// A mark after the current position only clears the overflow.
    pub fn rollback(&mut self, mark: Mark) {
        if mark.position <= self.position {
            self.position = mark.position;
            self.open = mark.open;
        }
        self.overflowed = false;
    }

    /// Writes an element of a container whole or not at all; returns whether it was written.
    ///
    /// If the element doesn't fit, the encoder is as before, without overflow, and accepts smaller
    /// elements. If the encoder has already overflowed, nothing is attempted.
    pub fn element(&mut self, write: impl FnOnce(&mut Self)) -> bool {
        if self.overflowed {
            return false;
        }
        let mark = self.mark();
        write(self);
        if self.overflowed {
            self.rollback(mark);
            return false;
        }
        true
    }

    /// Writes an unsigned integer, in its shortest form.
    pub fn uint(&mut self, value: u64) {
        self.head(major::UNSIGNED, value);
    }

    /// Writes a signed integer, in its shortest form.
    pub fn int(&mut self, value: i64) {
        if value < 0 {
            // RFC 8949 §3.1: major type 1 holds -1 - value, which is the complement.
            self.head(major::NEGATIVE, !value as u64);
        } else {
            self.head(major::UNSIGNED, value as u64);
        }
    }

    /// Writes a byte string.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let whole = head_len(bytes.len() as u64).saturating_add(bytes.len());
        if self.fits(whole) {
            self.head(major::BYTES, bytes.len() as u64);
            self.raw(bytes);
        }
    }

    /// Writes a text string of at most 65,535 bytes; the rest is cut off at a character boundary.
    ///
    /// Invalid UTF-8 becomes U+FFFD, one for each maximal invalid part as in the Unicode standard
    /// (§3.9, "substitution of maximal subparts") and `String::from_utf8_lossy`.
    pub fn text(&mut self, bytes: &[u8]) {
        // Memory of a broken process may change concurrently, so the length is that of the written
        // bytes and not an earlier count: the head is as wide as the longest possible result needs
        // and is filled in afterwards.
        let longest = bytes.len().saturating_mul(REPLACEMENT.len()).min(usize::from(u16::MAX));
        let head_width =
            if is_ascii(bytes) { head_len(bytes.len().min(longest) as u64) } else { head_len(longest as u64) };
        let limit = match head_width {
            1 => 23,
            2 => usize::from(u8::MAX),
            _ => usize::from(u16::MAX),
        };
        let start = self.mark();
        self.raw(&[0; 3][..head_width.min(3)]);
        let mut len = 0usize;
        let mut rest = bytes;
        while let Some(part) = Part::first(rest) {
            let mut written = if part.valid { rest.get(..part.len).unwrap_or_default() } else { REPLACEMENT };
            let room = limit.saturating_sub(len);
            if written.len() > room {
                // A run of ASCII can be cut anywhere, but a multi-byte character can't be cut.
                written = written.get(..room).filter(|start| is_ascii(start)).unwrap_or_default();
                rest = &[];
            }
            self.raw(written);
            len = len.saturating_add(written.len());
            rest = rest.get(part.len..).unwrap_or_default();
        }
        if self.overflowed {
            self.position = start.position;
            return;
        }
        let head = self.buffer.get_mut(start.position..).unwrap_or_default();
        match (head_width, head) {
            (1, [initial, ..]) => *initial = major::TEXT | (len as u8 & 0x1F),
            (2, [initial, low, ..]) => (*initial, *low) = (major::TEXT | width::ONE, len as u8),
            (_, [initial, high, low, ..]) => {
                (*initial, *high, *low) = (major::TEXT | width::TWO, (len >> 8) as u8, len as u8);
            }
            _ => self.overflowed = true,
        }
    }

    /// Writes a map entry with an unsigned integer as its value.
    pub fn uint_pair(&mut self, key: u64, value: u64) {
        self.uint(key);
        self.uint(value);
    }

    /// Writes a map entry with a text as its value.
    pub fn text_pair(&mut self, key: u64, text: &[u8]) {
        self.uint(key);
        self.text(text);
    }

    /// Writes a boolean.
    pub fn bool(&mut self, value: bool) {
        self.raw(&[if value { TRUE } else { FALSE }]);
    }

    /// Writes null.
    pub fn null(&mut self) {
        self.raw(&[NULL]);
    }

    /// Writes an unsigned integer, or null.
    pub fn optional_uint(&mut self, value: Option<u64>) {
        match value {
            Some(value) => self.uint(value),
            None => self.null(),
        }
    }

    /// Writes the head of an array of exactly `len` items.
    pub fn array(&mut self, len: usize) {
        self.head(major::ARRAY, len as u64);
    }

    /// Writes the head of a map of exactly `len` pairs.
    pub fn map(&mut self, len: usize) {
        self.head(major::MAP, len as u64);
    }

    /// Opens an array of unknown length, until [`end`](Self::end).
    pub fn begin_array(&mut self) {
        self.begin(major::ARRAY | width::INDEFINITE);
    }

    /// Opens a map of unknown length, until [`end`](Self::end).
    pub fn begin_map(&mut self) {
        self.begin(major::MAP | width::INDEFINITE);
    }

    /// Closes the innermost open array or map. Its byte is reserved, so this fits even after an
    /// overflow.
    pub fn end(&mut self) {
        if self.open == 0 {
            return;
        }
        self.open = self.open.saturating_sub(1);
        if let Some(byte) = self.buffer.get_mut(self.position) {
            *byte = BREAK;
            self.position = self.position.saturating_add(1);
        }
    }

    /// Writes a tag for the next item.
    pub fn tag(&mut self, number: u64) {
        self.head(major::TAG, number);
    }

    /// Writes bytes that are already CBOR.
    pub fn raw(&mut self, bytes: &[u8]) {
        if !self.fits(bytes.len()) {
            return;
        }
        let end = self.position.saturating_add(bytes.len());
        if let Some(into) = self.buffer.get_mut(self.position..end) {
            // Not `copy_from_slice`, which would panic on lengths that the compiler can't prove
            // equal.
            for (to, from) in into.iter_mut().zip(bytes) {
                *to = *from;
            }
            self.position = end;
        } else {
            self.overflowed = true;
        }
    }

    fn begin(&mut self, initial: u8) {
        if self.fits(2) {
            self.raw(&[initial]);
            self.open = self.open.saturating_add(1);
        }
    }

    /// Whether `len` more bytes may be written; if not, sets the overflow.
    fn fits(&mut self, len: usize) -> bool {
        if len > self.remaining() {
            self.overflowed = true;
        }
        !self.overflowed
    }

    /// Writes an initial byte and its argument, in the shortest form (RFC 8949 §3, §4.2.1).
    fn head(&mut self, major: u8, argument: u64) {
        let [a, b, c, d, e, f, g, h] = argument.to_be_bytes();
        match argument {
            0..=23 => self.raw(&[major | h]),
            24..=0xFF => self.raw(&[major | width::ONE, h]),
            0x100..=0xFFFF => self.raw(&[major | width::TWO, g, h]),
            0x1_0000..=0xFFFF_FFFF => self.raw(&[major | width::FOUR, e, f, g, h]),
            _ => self.raw(&[major | width::EIGHT, a, b, c, d, e, f, g, h]),
        }
    }
}

/// Length of an item's head with this argument, in bytes.
const fn head_len(argument: u64) -> usize {
    match argument {
        0..=23 => 1,
        24..=0xFF => 2,
        0x100..=0xFFFF => 3,
        0x1_0000..=0xFFFF_FFFF => 5,
        _ => 9,
    }
}

fn is_ascii(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte < 0x80)
}

/// A run of valid UTF-8, or one maximal invalid part.
struct Part {
    len: usize,
    valid: bool,
}

impl Part {
    /// Returns the first part of `bytes`; `None` if `bytes` is empty.
    fn first(bytes: &[u8]) -> Option<Part> {
        let ascii = bytes.iter().take(256).take_while(|byte| **byte < 0x80).count();
        if ascii > 0 {
            return Some(Part { len: ascii, valid: true });
        }
        let lead = *bytes.first()?;
        // Unicode standard, table 3-7: well-formed UTF-8 byte sequences. Only the second byte's
        // range depends on the lead.
        let (len, second) = match lead {
            0xC2..=0xDF => (2, 0x80..=0xBF),
            0xE0 => (3, 0xA0..=0xBF),
            0xED => (3, 0x80..=0x9F),
            0xE1..=0xEF => (3, 0x80..=0xBF),
            0xF0 => (4, 0x90..=0xBF),
            0xF1..=0xF3 => (4, 0x80..=0xBF),
            0xF4 => (4, 0x80..=0x8F),
            _ => return Some(Part { len: 1, valid: false }),
        };
        let mut good = 1;
        for byte in bytes.iter().skip(1).take(len - 1) {
            let range = if good == 1 { second.clone() } else { 0x80..=0xBF };
            if !range.contains(byte) {
                break;
            }
            good += 1;
        }
        Some(Part { len: good, valid: good == len })
    }
}

/// Writes an entry of an indefinite map, if there is a value and it fits.
pub(super) fn optional<T>(
    encoder: &mut Encoder<'_>,
    key: u64,
    value: Option<T>,
    write: impl FnOnce(&mut Encoder<'_>, T),
) {
    if let Some(value) = value {
        encoder.element(|encoder| {
            encoder.uint(key);
            write(encoder, value);
        });
    }
}

pub(super) fn optional_uint(encoder: &mut Encoder<'_>, key: u64, value: Option<u64>) {
    optional(encoder, key, value, |encoder, value| encoder.uint(value));
}

pub(super) fn optional_int(encoder: &mut Encoder<'_>, key: u64, value: Option<i64>) {
    optional(encoder, key, value, |encoder, value| encoder.int(value));
}

pub(super) fn optional_text(encoder: &mut Encoder<'_>, key: u64, text: Option<&[u8]>) {
    optional(encoder, key, text, |encoder, text| encoder.text(text));
}
