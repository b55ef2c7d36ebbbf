//! Debug sections by name, decompressed within limits.

use object::{Object, ObjectSection};

use crate::{error::Malformed, mapped_file::Bytes};

/// Maximum ratio of a decompressed section to its compressed size. Debug information compresses 3
/// to 10 times.
const UNPACK_RATIO: u64 = 200;
/// Maximum size of a decompressed section, in bytes.
const UNPACK_LIMIT: u64 = 4 << 30;

/// Returns a debug section's decompressed bytes; empty if the section doesn't exist.
pub(crate) fn section(file: &object::File<'_>, bytes: &Bytes, name: &str) -> Result<Bytes, Malformed> {
    let Some(section) = file.section_by_name(name) else { return Ok(Bytes::owned(Vec::new())) };
    section_bytes(&section, bytes, name)
}

/// Like [`section`], for one of several sections with this name.
pub(crate) fn section_bytes(section: &object::Section<'_, '_>, bytes: &Bytes, name: &str) -> Result<Bytes, Malformed> {
    let none = || Bytes::owned(Vec::new());
    let at = section.file_range().map_or(0, |(offset, _)| offset);
    let malformed = |what: String| Malformed::new(at, format!("{name}: {what}"));
    let data = section.compressed_data().map_err(|error| malformed(error.to_string()))?;
    if data.format == object::CompressionFormat::None {
        let offset = (data.data.as_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize) as u64;
        // A section without bytes in the file (in a debug file whose sections were stripped) has no
        // valid range.
        return Ok(bytes.slice(offset, data.data.len() as u64).unwrap_or_else(none));
    }
    let limit = (data.data.len() as u64).saturating_mul(UNPACK_RATIO).min(UNPACK_LIMIT);
    if data.uncompressed_size > limit {
        return Err(malformed(format!(
            "{} compressed bytes would decompress to {}; the limit is {limit}",
            data.data.len(),
            data.uncompressed_size
        )));
    }
    let unpacked = data.decompress().map_err(|error| malformed(error.to_string()))?;
    Ok(Bytes::owned(unpacked.into_owned()))
}
