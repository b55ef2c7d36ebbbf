//! Symbolicates crash reports from Apple's systems in place, without changing any other byte.
//!
//! There are three forms ([`Form`]): `.ips`, a line of JSON and a JSON document (iOS 15, macOS 12
//! and later); the text of `.crash`, which older systems wrote and Xcode still shows (an `.ips`
//! from an older iOS is a line of JSON followed by that text); and the text of sampled stacks:
//! hangs, processor time, wakeups, disk writes.
//!
//! A report without its list of images can be read, too: the frames contain names and load
//! addresses. Such images have no id, so that no symbol file can be matched to them.
//!
//! ```no_run
//! use coroner_formats::apple_report::AppleReport;
//! use coroner_symbols::{Options, Symbolizer};
//!
//! let bytes = std::fs::read("App-2026-11-21-101112.ips")?;
//! let report = AppleReport::read(&bytes)?;
//! let mut symbolizer = Symbolizer::new(Options { search: vec!["App.dSYM".into()], ..Options::default() });
//! let named = report.symbolicate(&mut symbolizer, &mut |_, _| {});
//! std::fs::write("named.ips", named.bytes)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`read_report`] converts one to a Coroner report, which can be shown, grouped and sent. For
//! symbolication alone, a report isn't parsed into a model and written again: missing names are
//! inserted into the original, so that nothing unknown to this crate is lost. A frame that the
//! system has named keeps its name, unless a symbol file has a source line for it.
//!
//! Sources of the formats: Apple's "Examining the fields in a crash report" and "Interpreting the
//! JSON format of a crash report".

mod byte_edits;
mod images;
mod ips;
mod model;
mod named_frame;
mod sampled_stacks;
mod termination_codes;
mod text;
mod unsupported_kind;

use std::{collections::BTreeMap, fmt};

use coroner_symbols::{Arch, DebugId, FileKind, ImageKey, ImageSymbols, LookupAddress, Symbolizer};

use byte_edits::Edits;

pub use model::read_report;

/// The format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON: `.ips` of iOS 15, macOS 12 and later.
    Ips,
    /// Text: `.crash`, and `.ips` of older systems.
    Text,
    /// Text with trees of sampled stacks: `.diag`, `.hang`, `.spin`, and the output of `spindump`
    /// and `sample`.
    Samples,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Ips => "Apple's JSON crash report (.ips)",
            Form::Text => "Apple's text crash report (.crash)",
            Form::Samples => "Apple's text report of sampled stacks (.diag, .hang, .spin)",
        })
    }
}

/// The reason why a file can't be read as an Apple crash report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppleReportError {
    /// The file is not an Apple crash report.
    #[error("not an Apple crash report (neither .ips nor .crash)")]
    NotAppleReport,
    /// The JSON is malformed, or doesn't have a crash report's structure.
    #[error("at byte {offset}: {what}")]
    Json {
        /// The file offset of the error, in bytes.
        offset: usize,
        /// Description of the error.
        what: String,
    },
    /// The report is of a kind that contains no stacks of a process.
    #[error("an Apple report about {kind}, without stacks to symbolicate")]
    OtherKind {
        /// The kind of report.
        kind: &'static str,
    },
    /// The file is an Apple report without stacks or images.
    #[error("an Apple report without {lacks}{}", bug_type.as_ref().map_or(String::new(), |kind| format!(" (bug_type {kind}; crash reports have 309)")))]
    NoFrames {
        /// The missing part.
        lacks: &'static str,
        /// Apple's number for the kind of report, if present: 309 is a crash.
        bug_type: Option<String>,
    },
}

/// An image in a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppleImage {
    /// The image's name, usually the last component of its path.
    pub name: String,
    /// The image's path on the device; empty if the report doesn't contain it.
    pub path: String,
    /// Load address: the address of the image's first byte in the process.
    pub load_address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The image's `LC_UUID`.
    pub debug_id: Option<DebugId>,
    /// Architecture.
    pub arch: Arch,
}

impl AppleImage {
    /// Returns the key for finding the image's symbol files.
    pub fn key(&self) -> ImageKey {
        ImageKey {
            path: if self.path.is_empty() { self.name.clone().into() } else { self.path.clone().into() },
            debug_id: self.debug_id.clone(),
            kind: FileKind::MachO,
            arch: self.arch,
            // Unknown; addresses are looked up relative to the image.
            base_svma: 0,
            replaced: false,
        }
    }
}

/// A line or JSON object that contains an address.
#[derive(Clone, Debug)]
struct Frame {
    /// Index of the image in the report.
    image: usize,
    /// The address relative to the image's load address.
    offset: u64,
    /// For a return address, the preceding call is looked up.
    is_return_address: bool,
    has_name: bool,
    site: Site,
}

/// The location at which names are inserted.
#[derive(Clone, Debug)]
enum Site {
    Line(text::FrameLine),
    Sample(sampled_stacks::SampleLine),
    Object(ips::FrameObject),
}

/// An Apple crash report.
#[derive(Clone, Debug)]
pub struct AppleReport<'a> {
    bytes: &'a [u8],
    form: Form,
    images: Vec<AppleImage>,
    frames: Vec<Frame>,
}

/// A symbolicated report.
#[derive(Clone, Debug)]
pub struct Named {
    /// The report in its original form.
    pub bytes: Vec<u8>,
    /// The results for each image that contains frames, in the order of the report's images.
    pub images: Vec<ImageSymbols>,
}

impl<'a> AppleReport<'a> {
    /// Finds the frames and images in a report.
    ///
    /// # Errors
    /// [`AppleReportError`] if the bytes are not an Apple crash report, or its JSON is malformed.
    /// Lines of text that can't be parsed are kept unchanged.
    pub fn read(bytes: &'a [u8]) -> Result<Self, AppleReportError> {
        if let Some(report) = ips::read(bytes)? {
            return Ok(report);
        }
        text::read(bytes)
    }

    /// Whether the bytes look like the start of such a report; [`Self::read`] then decides.
    pub fn is_likely(bytes: &[u8]) -> bool {
        ips::is_likely(bytes) || text::is_likely(bytes)
    }

    /// Returns the report's form.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Returns the report's images.
    pub fn images(&self) -> &[AppleImage] {
        &self.images
    }

    /// Returns the number of frames that are in one of the images.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Symbolicates the frames. `about_to` is called before each image is opened, which may take a
    /// while, with the number of frames done so far.
    pub fn symbolicate(&self, symbolizer: &mut Symbolizer, about_to: &mut dyn FnMut(&ImageKey, usize)) -> Named {
        let mut symbols: BTreeMap<usize, ImageSymbols> = BTreeMap::new();
        let mut edits = Edits::default();
        for (done, frame) in self.frames.iter().enumerate() {
            let Some(image) = self.images.get(frame.image) else { continue };
            let entry = symbols.entry(frame.image).or_insert_with(|| {
                let key = image.key();
                about_to(&key, done);
                ImageSymbols { key, frames: 0, named: 0, lines: 0 }
            });
            let address = if frame.is_return_address {
                LookupAddress::of_return_address(frame.offset)
            } else {
                LookupAddress::of_instruction(frame.offset)
            };
            let calls = symbolizer.symbolicate_relative(&entry.key, address);
            let has_line = calls.iter().any(|call| call.line.is_some());
            entry.frames += 1;
            entry.named += usize::from(frame.has_name || !calls.is_empty());
            entry.lines += usize::from(has_line);
            if !calls.is_empty() && (has_line || !frame.has_name) {
                match &frame.site {
                    Site::Line(line) => line.name(self.bytes, frame.offset, &calls, &mut edits),
                    Site::Sample(line) => line.name(self.bytes, frame.offset, &calls, &mut edits),
                    Site::Object(object) => object.name(self.bytes, frame.offset, &calls, &mut edits),
                }
            }
        }
        Named { bytes: edits.apply(self.bytes), images: symbols.into_values().collect() }
    }
}

/// Returns the architecture for Apple's name.
fn arch(name: &str) -> Arch {
    match name {
        "arm64" | "arm64e" | "arm64_32" => Arch::Aarch64,
        "x86_64" | "x86_64h" => Arch::X86_64,
        "i386" => Arch::X86,
        "armv7" | "armv7s" | "armv7k" | "armv6" => Arch::Arm,
        _ => Arch::Other,
    }
}
