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
    /// Format.
    pub kind: ImageKind,
    /// Where it was loaded from.
    pub path: String,
    /// Where its first segment starts.
    pub load_address: Address,
    /// What was added to the addresses in the file.
    pub slide: Address,
    /// Bytes from its first segment's start to its last one's end.
    pub size: u64,
    /// Its code.
    pub text: TextRange,
    /// GNU build id or `LC_UUID`, or what stands for one of a PE image (`coroner_report::wire::Image::build_id`); empty where it has none.
    pub build_id: Bytes,
    /// What stands for the build id of an ELF image that has none, where its file was found: 16 bytes, derived from its code
    /// (`coroner_symbols::identify_images`). No report file has it.
    #[serde(skip_serializing_if = "<[u8]>::is_empty")]
    pub text_id: Bytes,
    /// Loaded segments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<Segment>,
    /// Sources of unwind rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unwind: Vec<UnwindSection>,
    /// Whether it is the program itself.
    pub is_main: bool,
    /// Whether its file was replaced or deleted while the process ran: a file at its path is not the one that ran.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
    /// Its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Mach-O: CPU type and subtype.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<(i32, i32)>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Image {
    /// Whether `address` is in the image's memory: in one of its segments, or, where those are not known, between its
    /// start and its end.
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

    /// The last component of its path.
    pub fn name(&self) -> &str {
        let is_separator = |letter| letter == '/' || (letter == '\\' && self.kind == ImageKind::PE);
        self.path.rsplit(is_separator).next().unwrap_or(&self.path)
    }

    /// What its debug information is found by: the build id, else what stands for one; empty without either.
    pub fn identity(&self) -> &Bytes {
        if self.build_id.is_empty() { &self.text_id } else { &self.build_id }
    }

    /// The debug id: the identity of the image's debug information as Breakpad and Sentry write it, a UUID with
    /// hyphens.
    ///
    /// For Mach-O the `LC_UUID`; for ELF the first 16 bytes of the build id (zero-filled if shorter) read as a
    /// little-endian GUID, as Breakpad's `ConvertIdentifierToUUIDString` does, or of what stands for it. `None` without
    /// [`identity`](Self::identity).
    ///
    /// For PE the GUID of its CodeView data, and behind it their age in hexadecimal; `None` without such data.
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

    /// Of a PE image: GUID and age of its CodeView data.
    fn code_view(&self) -> Option<(&[u8], u32)> {
        let (_, rest) = self.build_id.split_first_chunk::<8>()?;
        let (guid, age) = rest.split_first_chunk::<16>()?;
        Some((guid, u32::from_le_bytes(*age.first_chunk()?)))
    }

    /// The code id: the whole build id or UUID as hexadecimal digits; of PE its time stamp and its size, as symbol servers have it. `None` without
    /// one.
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

/// Finds the image of an address among many, in logarithmic time.
///
/// Images can lie inside one another (a prelinked map, a shared cache): an address then belongs to the range that
/// starts last.
#[derive(Clone, Debug)]
pub struct ImageIndex {
    /// From this address on, up to the next, memory belongs to that image.
    owners: Vec<(u64, Option<usize>)>,
}

impl ImageIndex {
    /// The index of `images`.
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
        // Ranges that have begun and not been seen to end, the one that began last on top.
        let mut open: Vec<(u64, usize)> = Vec::new();
        for (start, end, image) in ranges {
            index.close(&mut open, start);
            index.owners.push((start, Some(image)));
            open.push((end, image));
        }
        index.close(&mut open, u64::MAX);
        index
    }

    /// Notes what owns the memory behind each range that ends up to `until`.
    fn close(&mut self, open: &mut Vec<(u64, usize)>, until: u64) {
        while let Some((end, _)) = open.pop_if(|(end, _)| *end <= until) {
            while open.pop_if(|(other, _)| *other <= end).is_some() {}
            self.owners.push((end, open.last().map(|(_, image)| *image)));
        }
    }

    /// Which of the images holds `address`.
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
    /// Where it starts.
    pub address: Address,
    /// Bytes.
    pub size: u64,
}

/// A loaded segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Segment {
    /// Where it starts.
    pub address: Address,
    /// Bytes in memory.
    pub size: u64,
    /// Offset of its first byte in the file.
    pub file_offset: u64,
    /// Access: 1 execute, 2 write, 4 read.
    pub protection: u8,
}

/// A source of unwind rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnwindSection {
    /// Which one.
    pub kind: UnwindKind,
    /// Where it starts.
    pub address: Address,
    /// Bytes.
    pub size: u64,
}

/// A piece of a thread's memory: of its stack, of its shadow stack, or of what the crashed thread's registers pointed to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct StackMemory {
    /// The thread.
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

/// Memory that the app registered, as it was when it crashed, or what its crash callback wrote.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AppMemory {
    /// The app's name for it.
    pub name: String,
    /// The bytes, as far as they could be read.
    pub bytes: Bytes,
    /// Address of the first byte; `None` of the crash callback's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// How many bytes were registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

/// An Objective-C object that was deallocated before the crash, and whose address a register of the crashed thread holds; or the
/// `NSException` that was deallocated last.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Zombie {
    /// Where it was.
    pub address: Address,
    /// Its class.
    pub class: String,
    /// The register that holds its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub register: Option<String>,
    /// The message that was being sent to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The class of the object that is there now, empty where its name is not known. `None`: its memory is no object any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_now: Option<String>,
    /// Of an `NSException`: its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Of an `NSException`: its reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Zombie {
    /// Whether another object is at its address since.
    pub fn is_replaced(&self) -> bool {
        self.class_now.as_ref().is_some_and(|now| *now != self.class)
    }
}

/// A mapping of the process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mapping {
    /// Address of its first byte.
    pub start: Address,
    /// Bytes.
    pub size: u64,
    /// What is allowed: 1 execute, 2 write, 4 read; 8 it is shared with other processes.
    pub protection: u8,
    /// The path of its file, or what the system calls it, such as `[heap]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Where in its file it starts, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_offset: Option<u64>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}

impl Mapping {
    /// Whether an address is in it.
    pub fn contains(&self, address: Address) -> bool {
        address.0.wrapping_sub(self.start.0) < self.size
    }
}

/// The name of the function that holds an address, as found in the process itself.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SymbolName {
    /// The address that was looked up.
    pub address: Address,
    /// The symbol, mangled.
    pub name: String,
    /// Where the symbol starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbol_address: Option<Address>,
    /// Keys of a later version.
    #[serde(skip_serializing_if = "Extra::is_empty")]
    pub extra: Extra,
}
