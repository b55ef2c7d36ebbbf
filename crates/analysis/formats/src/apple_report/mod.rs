//! Crash reports that Apple's systems write: names for their frames, and every other byte as it was.
//!
//! Three forms ([`Form`]): `.ips`, a line of JSON and a JSON document (iOS 15 and macOS 12 on); the text of `.crash`, which
//! older systems wrote and Xcode still shows (an `.ips` of an older iOS is a line of JSON with that text behind it); and the text of
//! sampled stacks: hangs, processor time, wakeups, disk writes.
//!
//! A report of which somebody has cut off the list of images is read, too: its frames say names and load addresses. Such images have no
//! id, so that no symbol file can be known to be theirs.
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
//! [`read_report`] makes a report of Coroner's of one, to be shown, grouped and sent as such. For names alone the reports aren't parsed into a
//! model and written again: what a frame lacks is put in its place in the original, so that
//! nothing gets lost that this crate doesn't know. A frame that the system has named keeps its name, unless a symbol file has
//! a source line for it.
//!
//! Sources of the formats: Apple's "Examining the fields in a crash report" and "Interpreting the JSON format of a crash report".

mod byte_edits;
mod images;
mod ips;
mod model;
mod named_frame;
mod sampled_stacks;
mod text;
mod unsupported_kind;

use std::{collections::BTreeMap, fmt};

use coroner_symbols::{Arch, DebugId, FileKind, ImageKey, ImageSymbols, LookupAddress, Symbolizer};

use byte_edits::Edits;

pub use model::read_report;

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON: `.ips` of iOS 15, macOS 12 and later.
    Ips,
    /// Text: `.crash`, and `.ips` of older systems.
    Text,
    /// Text with trees of sampled stacks: `.diag`, `.hang`, `.spin`, and what `spindump` and `sample` write.
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

/// Why a file can't be read as one of Apple's crash reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppleReportError {
    /// It is none.
    #[error("not one of Apple's crash reports (neither .ips nor .crash)")]
    NotAppleReport,
    /// Its JSON is broken, or of another shape than a crash report's.
    #[error("at byte {offset}: {what}")]
    Json {
        /// The byte in the file where that shows.
        offset: usize,
        /// What is wrong there.
        what: String,
    },
    /// It is a report of something that has no stacks of a process.
    #[error("a report by Apple's system of {kind}; it has no stacks of an app that could be named")]
    OtherKind {
        /// What it is of.
        kind: &'static str,
    },
    /// It is an Apple report, but has no stacks or no images.
    #[error("a report by Apple's system that has no {lacks}{}", bug_type.as_ref().map_or(String::new(), |kind| format!(" (its bug_type is {kind}; that of crashes is 309)")))]
    NoFrames {
        /// What it lacks.
        lacks: &'static str,
        /// Apple's number of the kind of report, where it says one: 309 is a crash.
        bug_type: Option<String>,
    },
}

/// An image of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppleImage {
    /// Its name: the last component of its path, as a rule.
    pub name: String,
    /// Its path on the device; empty where the report leaves it out.
    pub path: String,
    /// Where its first byte was in the process.
    pub load_address: u64,
    /// In bytes.
    pub size: u64,
    /// `LC_UUID`.
    pub debug_id: Option<DebugId>,
    /// The processor.
    pub arch: Arch,
}

impl AppleImage {
    /// What its symbol files are looked for by.
    pub fn key(&self) -> ImageKey {
        ImageKey {
            path: if self.path.is_empty() { self.name.clone().into() } else { self.path.clone().into() },
            debug_id: self.debug_id.clone(),
            kind: FileKind::MachO,
            arch: self.arch,
            // Not said by the report; addresses are asked for relative to the image.
            base_svma: 0,
            replaced: false,
        }
    }
}

/// One line or JSON object that stands for an address.
#[derive(Clone, Debug)]
struct Frame {
    /// The image's place in the report's list.
    image: usize,
    /// The address less the image's load address.
    offset: u64,
    /// Of a return address, the call before it is what is named.
    is_return_address: bool,
    has_name: bool,
    site: Site,
}

/// Where the names go.
#[derive(Clone, Debug)]
enum Site {
    Line(text::FrameLine),
    Sample(sampled_stacks::SampleLine),
    Object(ips::FrameObject),
}

/// One of Apple's crash reports.
#[derive(Clone, Debug)]
pub struct AppleReport<'a> {
    bytes: &'a [u8],
    form: Form,
    images: Vec<AppleImage>,
    frames: Vec<Frame>,
}

/// A report with names.
#[derive(Clone, Debug)]
pub struct Named {
    /// The report in the form that it had.
    pub bytes: Vec<u8>,
    /// What became of the frames, for each image that has some, in the order of the report's images.
    pub images: Vec<ImageSymbols>,
}

impl<'a> AppleReport<'a> {
    /// Finds the frames and images of a report.
    ///
    /// # Errors
    /// [`AppleReportError`] where it is none, or its JSON is broken. Lines of text that aren't understood are no error: they are
    /// kept as they are.
    pub fn read(bytes: &'a [u8]) -> Result<Self, AppleReportError> {
        if let Some(report) = ips::read(bytes)? {
            return Ok(report);
        }
        text::read(bytes)
    }

    /// Whether bytes look like the beginning of one of these reports, so that [`Self::read`] is what can say more.
    pub fn is_likely(bytes: &[u8]) -> bool {
        ips::is_likely(bytes) || text::is_likely(bytes)
    }

    /// How it is written.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Its images.
    pub fn images(&self) -> &[AppleImage] {
        &self.images
    }

    /// How many frames it has that lie in one of its images.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// Names the frames. `about_to` is given each image that is about to be opened, which for large ones takes a while, and how
    /// many frames are done by then.
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

/// The processor by Apple's name of it.
fn arch(name: &str) -> Arch {
    match name {
        "arm64" | "arm64e" | "arm64_32" => Arch::Aarch64,
        "x86_64" | "x86_64h" => Arch::X86_64,
        "i386" => Arch::X86,
        "armv7" | "armv7s" | "armv7k" | "armv6" => Arch::Arm,
        _ => Arch::Other,
    }
}
