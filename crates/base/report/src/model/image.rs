//! Loaded images, stack memory and names.

use super::address::{Address, Bytes};
use super::value::Extra;
use crate::wire::{ImageKind, UnwindKind};
use coroner_process::heap_sort;
use serde::{Deserialize, Serialize};

/// A loaded image.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Image {
    /// Format of the image.
    pub kind: ImageKind,
    /// Path that the image was loaded from.
    pub path: String,
    /// Address of the first segment.
    pub load_address: Address,
    /// Difference between the addresses in memory and in the file.
    pub slide: Address,
    /// Bytes from the start of the first segment to the end of the last.
    pub size: u64,
    /// Range of the image's code.
    pub text: TextRange,
    /// GNU build id or `LC_UUID`, or the equivalent of a PE image; empty if the image has none.
    ///
    /// For PE see `coroner_report::wire::Image::build_id`.
    pub build_id: Bytes,
    /// Substitute for the build id of an ELF image that has none: 16 bytes derived from its code.
    ///
    /// Computed by `coroner_symbols::identify_images` if the image's file is found. No report file
    /// contains it.
    #[serde(skip_serializing_if = "<[u8]>::is_empty")]
    pub text_id: Bytes,
    /// Loaded segments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// Sources of unwind rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unwind: Vec<UnwindSection>,
    /// Whether the image is the program itself.
    pub is_main: bool,
    /// Whether the image's file was replaced or deleted while the process ran.
    ///
    /// If so, the file at its path is not the one that ran.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// Version of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// CPU type and subtype (Mach-O).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<(i32, i32)>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Image {
    /// Whether `address` is in one of the image's segments.
    ///
    /// If the segments are not known, whether it is between the image's start and end.
    pub fn contains(&self, address: Address) -> bool {
        if self.segments.is_empty() {
            return address.0.wrapping_sub(self.load_address.0) < self.size;
        }
        self.segments.iter().any(|segment| address.0.wrapping_sub(segment.address.0) < segment.size)
    }

    /// The address in the image's file that `address` was loaded from (avma − slide).
    pub fn to_svma(&self, address: Address) -> u64 {
        address.0.wrapping_sub(self.slide.0)
    }

    /// The last component of the image's path.
    pub fn name(&self) -> &str {
        let is_separator = |letter| letter == '/' || (letter == '\\' && self.kind == ImageKind::PE);
        self.path.rsplit(is_separator).next().unwrap_or(&self.path)
    }

    /// Key for finding debug information: the build id, else its substitute, else empty.
    pub fn identity(&self) -> &Bytes {
        if self.build_id.is_empty() { &self.text_id } else { &self.build_id }
    }

    /// The debug id: a UUID with hyphens that identifies debug information for Breakpad and Sentry.
    ///
    /// For Mach-O this is the `LC_UUID`. For ELF it is the first 16 bytes of the build id or its
    /// substitute (zero-filled if shorter), read as a little-endian GUID like Breakpad's
    /// `ConvertIdentifierToUUIDString` does. `None` without [`identity`](Self::identity).
    ///
    /// For PE it is the GUID of the CodeView data followed by their age in hexadecimal; `None`
    /// without such data.
    pub fn debug_id(&self) -> Option<String> {
        let is_pe = self.kind == ImageKind::PE;
        let code_view = if is_pe { self.code_view() } else { None };
        let identity = if is_pe { code_view.map(|(guid, _)| guid)? } else { &self.identity()[..] };
        if identity.is_empty() {
            return None;
        }
        let mut id = [0; 16];
        for (to, from) in id.iter_mut().zip(identity.iter()) {
            *to = *from;
        }
        if self.kind == ImageKind::ELF || is_pe {
            id[..4].reverse();
            id[4..6].reverse();
            id[6..8].reverse();
        }
        let digits = super::Id(id).to_string();
        let age = code_view.map_or_else(String::new, |(_, age)| format!("-{age:x}"));
        Some(format!(
            "{}-{}-{}-{}-{}{age}",
            &digits[..8],
            &digits[8..12],
            &digits[12..16],
            &digits[16..20],
            &digits[20..]
        ))
    }

    /// GUID and age of a PE image's CodeView data.
    fn code_view(&self) -> Option<(&[u8], u32)> {
        let (_, rest) = self.build_id.split_first_chunk::<8>()?;
        let (guid, age) = rest.split_first_chunk::<16>()?;
        Some((guid, u32::from_le_bytes(*age.first_chunk()?)))
    }

    /// The code id: the whole build id or UUID as hexadecimal digits, or `None`.
    ///
    /// For PE it is the time stamp and the size, as used by symbol servers.
    pub fn code_id(&self) -> Option<String> {
        if self.kind == ImageKind::PE {
            let words = self.build_id.first_chunk::<8>()?;
            let [t0, t1, t2, t3, s0, s1, s2, s3] = *words;
            let (time, size) = (u32::from_le_bytes([t0, t1, t2, t3]), u32::from_le_bytes([s0, s1, s2, s3]));
            return Some(format!("{time:08X}{size:x}"));
        }
        (!self.build_id.is_empty()).then(|| self.build_id.to_string())
    }
}

/// Finds the image that contains an address, in logarithmic time.
///
/// Images can lie inside one another (a prelinked map, a shared cache): an address then belongs to
/// the range that starts last.
#[derive(Clone, Debug)]
pub struct ImageIndex {
    /// Start addresses, each with the image that owns the memory up to the next start.
    owners: Vec<(u64, Option<usize>)>,
}

impl ImageIndex {
    /// Builds the index of `images`.
    pub fn new(images: &[Image]) -> Self {
        let mut ranges: Vec<(u64, u64, usize)> = Vec::new();
        for (image, what) in images.iter().enumerate() {
            let mut add = |start: Address, size: u64| ranges.push((start.0, start.0.saturating_add(size), image));
            if what.segments.is_empty() {
                add(what.load_address, what.size);
            }
            what.segments.iter().for_each(|segment| add(segment.address, segment.size));
        }
        ranges.retain(|(start, end, _)| start < end);
        heap_sort(&mut ranges, |first, second| first < second);
        let mut index = ImageIndex { owners: Vec::new() };
        // Ranges that contain the current address, the one that began last on top.
        let mut open: Vec<(u64, usize)> = Vec::new();
        for (start, end, image) in ranges {
            index.close(&mut open, start);
            index.owners.push((start, Some(image)));
            open.push((end, image));
        }
        index.close(&mut open, u64::MAX);
        index
    }

    /// Records the owner of the memory after each range that ends at or before `until`.
    fn close(&mut self, open: &mut Vec<(u64, usize)>, until: u64) {
        while let Some((end, _)) = open.pop_if(|(end, _)| *end <= until) {
            while open.pop_if(|(other, _)| *other <= end).is_some() {}
            self.owners.push((end, open.last().map(|(_, image)| *image)));
        }
    }

    /// Returns the index of the image that contains `address`.
    pub fn find(&self, address: Address) -> Option<usize> {
        let after = self.owners.partition_point(|(start, _)| *start <= address.0);
        self.owners.get(after.checked_sub(1)?)?.1
    }
}

/// A range of code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct TextRange {
    /// Start address.
    pub address: Address,
    /// Size in bytes.
    pub size: u64,
}

/// A loaded segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Segment {
    /// Start address.
    pub address: Address,
    /// Size in memory, in bytes.
    pub size: u64,
    /// File offset of the first byte.
    pub file_offset: u64,
    /// Access rights: 1 execute, 2 write, 4 read.
    pub protection: u8,
}

/// A source of unwind rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnwindSection {
    /// Kind of the source.
    pub kind: UnwindKind,
    /// Start address.
    pub address: Address,
    /// Size in bytes.
    pub size: u64,
}

/// A piece of a thread's memory.
///
/// From its stack, its shadow stack, or the memory that the crashed thread's registers point to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StackMemory {
    /// The thread that the memory belongs to.
    pub tid: u64,
    /// Address of the first byte.
    pub address: Address,
    /// The bytes.
    pub bytes: Bytes,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A piece of the code that the crashed thread ran, as it was in memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Code {
    /// Address of the first byte.
    pub address: Address,
    /// The bytes.
    pub bytes: Bytes,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// Memory that the app registered, as it was at the crash, or output of the app's crash callback.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AppMemory {
    /// The app's name for the memory.
    pub name: String,
    /// The bytes, as far as they could be read.
    pub bytes: Bytes,
    /// Address of the first byte; `None` for the crash callback's output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Number of registered bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// A deallocated Objective-C object whose address a register of the crashed thread holds.
///
/// Also the `NSException` that was deallocated last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Zombie {
    /// Address of the object.
    pub address: Address,
    /// Class of the object.
    pub class: String,
    /// The register that holds the object's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<String>,
    /// The message that was being sent to the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The class of the object now at the address, empty if its name is not known.
    ///
    /// `None` if the memory no longer holds an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_now: Option<String>,
    /// Name of the `NSException`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Reason of the `NSException`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Zombie {
    /// Whether another object now occupies the address.
    pub fn is_replaced(&self) -> bool {
        self.class_now.as_ref().is_some_and(|now| *now != self.class)
    }
}

/// A memory mapping of the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: Address,
    /// Size in bytes.
    pub size: u64,
    /// Flags: 1 execute, 2 write, 4 read, 8 shared with other processes.
    pub protection: u8,
    /// The path of the mapped file, or the system's name for the mapping, such as `[heap]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Offset in the mapped file, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_offset: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Mapping {
    /// Whether the mapping contains `address`.
    pub fn contains(&self, address: Address) -> bool {
        address.0.wrapping_sub(self.start.0) < self.size
    }
}

/// The name of the function that contains an address, as found by the process itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SymbolName {
    /// The address that was looked up.
    pub address: Address,
    /// The symbol, mangled.
    pub name: String,
    /// Start address of the symbol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_address: Option<Address>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}
