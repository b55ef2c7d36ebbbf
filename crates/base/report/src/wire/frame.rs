//! Section frames, which distinguish a torn or damaged section from a whole one.
//!
//! A file is the three bytes of CBOR's self-description tag ([`FILE_PREFIX`]) and then one frame
//! per section:
//!
//! ```text
//! 85                      array of 5
//!    44 9C 43 52 4E       magic, a byte string of 4
//!    19 kk kk             section kind, u16
//!    19 vv vv             version of the section's layout, u16
//!    1A cc cc cc cc       CRC-32C of the 8 bytes (kind, version, length) as they stand here, then of the payload
//!    5A ll ll ll ll       the payload, a byte string that holds one CBOR item
//! ```
//!
//! Every number has a fixed width (big-endian, as in all of CBOR). The header therefore has a fixed
//! length and can be put in front of a payload that was written in place.

use super::crc32c::crc32c;
use super::numbers::SectionKind;

/// Version of the whole format, in [`Header::format_version`](super::Header::format_version).
///
/// A reader rejects greater versions; additions that old readers may ignore don't change the
/// version.
pub const FORMAT_VERSION: u32 = 1;

/// The first bytes of a report file, which belong to the first frame.
///
/// Tag 55799, "self-described CBOR" (RFC 8949 §3.4.6).
pub const FILE_PREFIX: [u8; 3] = [0xD9, 0xD9, 0xF7];

/// Length of a frame's header in bytes.
pub const FRAME_HEADER_LEN: usize = 22;

/// The first bytes of every frame, which a reader searches for after damage.
pub const FRAME_MAGIC: [u8; 6] = [0x85, 0x44, 0x9C, b'C', b'R', b'N'];

/// Maximum payload of a section in bytes; a header with a greater length is damaged.
pub const MAX_PAYLOAD: usize = 16 << 20;

/// Layout version of every section that this crate writes.
const VERSION: u16 = 0;

/// A decoded frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the section.
    pub kind: SectionKind,
    /// Version of the section's layout.
    pub version: u16,
    /// The checksum in the header, to be compared with [`checksum`].
    pub checksum: u32,
    /// Number of payload bytes after the header.
    pub payload_len: usize,
}

/// Why bytes are not a frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// There are fewer bytes than a header has.
    Short,
    /// The bytes don't start with [`FRAME_MAGIC`], or a later fixed byte differs.
    NotAFrame,
    /// The payload length exceeds [`MAX_PAYLOAD`].
    TooLong,
}

impl core::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            HeaderError::Short => "fewer bytes than a section's header has",
            HeaderError::NotAFrame => "no header of a section",
            HeaderError::TooLong => "a section that is longer than any may be",
        })
    }
}

impl core::error::Error for HeaderError {}

/// Computes the checksum of a section.
pub fn checksum(kind: SectionKind, version: u16, payload: &[u8]) -> u32 {
    let [k1, k0] = kind.0.to_be_bytes();
    let [v1, v0] = version.to_be_bytes();
    let [l3, l2, l1, l0] = (payload.len() as u32).to_be_bytes();
    crc32c(crc32c(0, &[k1, k0, v1, v0, l3, l2, l1, l0]), payload)
}

fn header_bytes(kind: SectionKind, checksum: u32, payload_len: u32) -> [u8; FRAME_HEADER_LEN] {
    let [m0, m1, m2, m3, m4, m5] = FRAME_MAGIC;
    let [k1, k0] = kind.0.to_be_bytes();
    let [v1, v0] = VERSION.to_be_bytes();
    let [c3, c2, c1, c0] = checksum.to_be_bytes();
    let [l3, l2, l1, l0] = payload_len.to_be_bytes();
    [m0, m1, m2, m3, m4, m5, 0x19, k1, k0, 0x19, v1, v0, 0x1A, c3, c2, c1, c0, 0x5A, l3, l2, l1, l0]
}

/// Seals a section whose payload of `payload_len` bytes is at `FRAME_HEADER_LEN` in `buffer`.
///
/// Writes the header in front of the payload and returns the length of the whole frame. Returns
/// `None` and writes nothing if the buffer is shorter than that or the payload is longer than
/// [`MAX_PAYLOAD`].
///
/// In a mapped file the header's first byte is written after all others, so that a process killed
/// in between leaves a zero there, which ends the file for a reader.
pub fn seal(buffer: &mut [u8], kind: SectionKind, payload_len: usize) -> Option<usize> {
    if payload_len > MAX_PAYLOAD {
        return None;
    }
    let (header, rest) = buffer.split_first_chunk_mut::<FRAME_HEADER_LEN>()?;
    let payload = rest.get(..payload_len)?;
    let bytes = header_bytes(kind, checksum(kind, VERSION, payload), payload_len as u32);
    let [first, others @ ..] = header;
    let [first_byte, other_bytes @ ..] = bytes;
    *others = other_bytes;
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::Release);
    // SAFETY: a plain exclusive reference. Volatile so that the store stays after the others.
    // Async-signal-safe: a store.
    unsafe { core::ptr::write_volatile(first, first_byte) };
    Some(FRAME_HEADER_LEN.saturating_add(payload_len))
}

/// Returns the header for a payload stored elsewhere, for a gathering write (`pwritev`).
///
/// `None` if the payload is longer than [`MAX_PAYLOAD`].
pub fn seal_header(kind: SectionKind, payload: &[u8]) -> Option<[u8; FRAME_HEADER_LEN]> {
    if payload.len() > MAX_PAYLOAD {
        return None;
    }
    Some(header_bytes(kind, checksum(kind, VERSION, payload), payload.len() as u32))
}

/// Decodes the header at the start of `bytes`.
///
/// # Errors
/// [`HeaderError`] if `bytes` doesn't start with a header.
pub fn parse_header(bytes: &[u8]) -> Result<FrameHeader, HeaderError> {
    let header = bytes.first_chunk::<FRAME_HEADER_LEN>().ok_or(HeaderError::Short)?;
    let [magic @ .., 0x19, k1, k0, 0x19, v1, v0, 0x1A, c3, c2, c1, c0, 0x5A, l3, l2, l1, l0] = header else {
        return Err(HeaderError::NotAFrame);
    };
    if *magic != FRAME_MAGIC {
        return Err(HeaderError::NotAFrame);
    }
    let payload_len = u32::from_be_bytes([*l3, *l2, *l1, *l0]) as usize;
    if payload_len > MAX_PAYLOAD {
        return Err(HeaderError::TooLong);
    }
    Ok(FrameHeader {
        kind: SectionKind(u16::from_be_bytes([*k1, *k0])),
        version: u16::from_be_bytes([*v1, *v0]),
        checksum: u32::from_be_bytes([*c3, *c2, *c1, *c0]),
        payload_len,
    })
}
