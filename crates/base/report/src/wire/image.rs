//! Loaded images and the names of addresses in them.

use super::encoder::{Encoder, optional_text, optional_uint};
use super::keys::{image, replaced_images, symbol_names};
use super::numbers::{ImageKind, UnwindKind};

/// A loaded segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Start address (avma).
    pub address: u64,
    /// Size in memory, in bytes.
    pub size: u64,
    /// File offset of the first byte.
    pub file_offset: u64,
    /// Access rights: 1 execute, 2 write, 4 read.
    ///
    /// From ELF `p_flags`; a Mach-O's `initprot` is converted to this.
    pub protection: u8,
}

/// A source of unwind rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnwindSection {
    /// Kind of the source.
    pub kind: UnwindKind,
    /// Start address (avma).
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

/// A loaded image: the executable or a shared library.
#[derive(Clone, Copy, Debug, Default)]
pub struct Image<'a> {
    /// Format of the image.
    pub kind: ImageKind,
    /// Path that the image was loaded from.
    pub path: &'a [u8],
    /// Start of the first segment (avma): the ELF header or the Mach-O header.
    pub load_address: u64,
    /// Difference between the addresses in memory and in the file: avma - svma.
    pub slide: u64,
    /// Bytes from the start of the first segment to the end of the last.
    pub size: u64,
    /// Range of the image's code (avma): start and size.
    pub text: (u64, u64),
    /// The build id in its file's form, or empty if there is none.
    ///
    /// ELF: the GNU build id. Mach-O: the 16 bytes of `LC_UUID`. PE: `TimeDateStamp` and
    /// `SizeOfImage` of its headers and, if it has CodeView data, their GUID and age, all as in the
    /// file (8 or 28 bytes).
    pub build_id: &'a [u8],
    /// Loaded segments of the image.
    pub segments: &'a [Segment],
    /// Sources of the image's unwind rules.
    pub unwind: &'a [UnwindSection],
    /// Whether the image is the program itself.
    pub is_main: bool,
    /// Version of the image, if its format has one (Mach-O `LC_ID_DYLIB`, `LC_SOURCE_VERSION`).
    pub version: Option<&'a [u8]>,
    /// CPU type and subtype (Mach-O).
    pub cpu: Option<(i32, i32)>,
}

impl Image<'_> {
    /// Encodes one element of an images section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.begin_map();
            encoder.uint_pair(image::KIND, self.kind.0.into());
            encoder.text_pair(image::PATH, self.path);
            encoder.uint_pair(image::LOAD_ADDRESS, self.load_address);
            encoder.uint_pair(image::SLIDE, self.slide);
            encoder.uint_pair(image::SIZE, self.size);
            encoder.uint(image::TEXT);
            encoder.array(2);
            encoder.uint(self.text.0);
            encoder.uint(self.text.1);
            if !self.build_id.is_empty() {
                encoder.uint(image::BUILD_ID);
                encoder.bytes(self.build_id);
            }
            if !self.segments.is_empty() {
                encoder.uint(image::SEGMENTS);
                encoder.array(self.segments.len());
                for segment in self.segments {
                    encoder.array(4);
                    encoder.uint(segment.address);
                    encoder.uint(segment.size);
                    encoder.uint(segment.file_offset);
                    encoder.uint(segment.protection.into());
                }
            }
            if !self.unwind.is_empty() {
                encoder.uint(image::UNWIND);
                encoder.array(self.unwind.len());
                for section in self.unwind {
                    encoder.array(3);
                    encoder.uint(section.kind.0.into());
                    encoder.uint(section.address);
                    encoder.uint(section.size);
                }
            }
            if self.is_main {
                encoder.uint(image::IS_MAIN);
                encoder.bool(true);
            }
            optional_text(encoder, image::VERSION, self.version);
            if let Some((kind, subtype)) = self.cpu {
                encoder.uint(image::CPU);
                encoder.array(2);
                encoder.int(kind.into());
                encoder.int(subtype.into());
            }
            encoder.end();
        })
    }
}

/// An image whose file was replaced or deleted while the process ran.
///
/// The file at its path is no longer the one that is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacedImage {
    /// Start of the image's first segment (avma).
    pub load_address: u64,
}

impl ReplacedImage {
    /// Encodes one element of a replaced images section; `false` (and nothing written) if it does
    /// not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.map(replaced_images::REQUIRED);
            encoder.uint_pair(replaced_images::LOAD_ADDRESS, self.load_address);
        })
    }
}

/// The name of the function that contains an address, as found by the process itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct SymbolName<'a> {
    /// The address that was looked up (avma).
    ///
    /// For a return address this is the address itself, not the byte before it.
    pub address: u64,
    /// The symbol as it is in the symbol table (mangled).
    pub name: &'a [u8],
    /// Start address of the symbol (avma).
    pub symbol_address: Option<u64>,
}

impl SymbolName<'_> {
    /// Encodes one element of a symbol names section; `false` (and nothing written) if it does not
    /// fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.begin_map();
            encoder.uint_pair(symbol_names::ADDRESS, self.address);
            encoder.text_pair(symbol_names::NAME, self.name);
            optional_uint(encoder, symbol_names::SYMBOL_ADDRESS, self.symbol_address);
            encoder.end();
        })
    }
}
