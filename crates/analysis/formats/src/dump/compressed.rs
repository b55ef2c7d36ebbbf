//! Core dumps in a compressed file, as stored by systemd-coredump and apport.

use std::io::{BufReader, Read};

use coroner_report::Report;
use coroner_symbols::Symbolizer;
use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::core_stream;
use super::error::{DumpError, damaged};

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstandard,
    /// An unsupported compression.
    Other(&'static str),
}

impl Compression {
    /// Detects the compression from a file's first bytes.
    pub(crate) fn detect(bytes: &[u8]) -> Option<Compression> {
        match bytes {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Compression::Zstandard),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Compression::Other("xz")),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Compression::Other("lz4")),
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
        Compression::Other(by) => Err(DumpError::Compressed { by }),
    }
}
