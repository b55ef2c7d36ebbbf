//! The id that links an image in a process to its symbol file.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::file_kind::FileKind;

/// The id of an image: a GNU build id (ELF, usually 20 bytes) or an `LC_UUID` (Mach-O, 16 bytes).
///
/// The bytes are in file order; for PE they are those of `coroner_report::wire::Image::build_id`.
///
/// Displayed as lower-case hexadecimal; parsed from hexadecimal of either case, with or without a
/// UUID's hyphens.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DebugId(Vec<u8>);

impl DebugId {
    /// Creates an id from its bytes; `None` for no bytes, more than 64, or only zeros, which
    /// linkers write for "no id".
    pub fn new(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > 64 || bytes.iter().all(|&byte| byte == 0) {
            return None;
        }
        Some(Self(bytes.to_vec()))
    }

    /// Returns the bytes in file order.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the id in breakpad's `MODULE` line for an ELF file with this build id.
    ///
    /// It has the first 16 bytes as a GUID whose first three fields are little-endian, in
    /// upper-case hexadecimal, followed by the age 0.
    ///
    /// Source: breakpad `src/common/linux/file_id.cc`, `ConvertIdentifierToUUIDString` and
    /// `dump_symbols.cc`.
    pub fn to_breakpad_elf(&self) -> String {
        let mut guid = [0; 16];
        for (to, from) in guid.iter_mut().zip(&self.0) {
            *to = *from;
        }
        guid[0..4].reverse();
        guid[4..6].reverse();
        guid[6..8].reverse();
        upper_hex(&guid) + "0"
    }

    /// Returns the id in breakpad's `MODULE` line for an image in this format.
    pub fn to_breakpad(&self, kind: FileKind) -> String {
        match kind {
            FileKind::MachO => self.to_breakpad_macho(),
            FileKind::Pe => self.to_breakpad_pe(),
            _ => self.to_breakpad_elf(),
        }
    }

    /// Returns the id in breakpad's `MODULE` line for a PE file with these bytes.
    ///
    /// The bytes are those of `coroner_report::wire::Image::build_id`. The result has GUID and age
    /// of its CodeView data; without such data zeros, as breakpad's tools write.
    fn to_breakpad_pe(&self) -> String {
        let code_view = self.0.get(8..28).and_then(|bytes| bytes.split_first_chunk::<16>());
        let Some((guid, age)) = code_view else { return "0".repeat(33) };
        let mut guid = *guid;
        guid[0..4].reverse();
        guid[4..6].reverse();
        guid[6..8].reverse();
        let age = age.first_chunk().map_or(0, |age| u32::from_le_bytes(*age));
        upper_hex(&guid) + &format!("{age:X}")
    }

    /// Returns the id in breakpad's `MODULE` line for a Mach-O file with this UUID.
    ///
    /// It has the bytes in order, then the age 0.
    pub fn to_breakpad_macho(&self) -> String {
        upper_hex(&self.0) + "0"
    }
}

fn upper_hex(bytes: &[u8]) -> String {
    use fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2 + 1);
    for byte in bytes {
        let _ = write!(text, "{byte:02X}");
    }
    text
}

impl fmt::Display for DebugId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<DebugId> for String {
    fn from(id: DebugId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for DebugId {
    type Error = NotAnId;

    fn try_from(text: String) -> Result<Self, NotAnId> {
        text.parse()
    }
}

impl fmt::Debug for DebugId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a hexadecimal id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid debug id: expected 1 to 64 bytes in hexadecimal, not all zero")]
pub struct NotAnId;

impl FromStr for DebugId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        let digits: Vec<u8> = text.bytes().filter(|&byte| byte != b'-').collect();
        if !digits.len().is_multiple_of(2) {
            return Err(NotAnId);
        }
        let digit = |byte: u8| (byte as char).to_digit(16).ok_or(NotAnId);
        let bytes = digits
            .as_chunks::<2>()
            .0
            .iter()
            .map(|pair| Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
            .collect::<Result<Vec<u8>, NotAnId>>()?;
        Self::new(&bytes).ok_or(NotAnId)
    }
}
