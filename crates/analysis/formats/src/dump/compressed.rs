//! Core dumps in a compressed file, as stored by systemd-coredump, apport and abrt.

use std::io::{BufReader, Read};

use bzip2::read::MultiBzDecoder;
use coroner_report::Report;
use coroner_symbols::Symbolizer;
use flate2::read::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

use super::core_stream;
use super::error::{DumpError, damaged};

/// Maximum size of an `.xz` file's dictionary, which `xz -9` makes 64 MiB, in KiB.
const MAX_XZ_KIB: u32 = 256 << 10;

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstandard,
    /// The `.xz` format.
    Xz,
    /// The LZ4 frame format.
    Lz4,
    /// The format of bzip2.
    Bzip2,
}

impl Compression {
    /// Detects the compression from a file's first bytes.
    pub(crate) fn detect(bytes: &[u8]) -> Option<Compression> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstandard),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Xz),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Compression::Lz4),
            // Level, and the start of a block.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..] => Some(Compression::Bzip2),
            _ => None,
        }
    }
}

/// Reads the core dump in a compressed stream.
pub(crate) fn read(
    stream: impl Read,
    compression: Compression,
    symbolizer: &mut Symbolizer,
) -> Result<Report, DumpError> {
    let stream = BufReader::with_capacity(64 << 10, stream);
    match compression {
        Compression::Gzip => core_stream::read(MultiGzDecoder::new(stream), None, symbolizer),
        Compression::Zstandard => {
            let decoder =
                StreamingDecoder::new(stream).map_err(|error| damaged(format!("invalid Zstandard frame: {error}")))?;
            core_stream::read(decoder, None, symbolizer)
        }
        Compression::Xz => core_stream::read(XzReader::new_mem_limit(stream, true, MAX_XZ_KIB), None, symbolizer),
        Compression::Lz4 => core_stream::read(FrameDecoder::new(stream), None, symbolizer),
        Compression::Bzip2 => core_stream::read(MultiBzDecoder::new(stream), None, symbolizer),
    }
}
