//! Reads a report file: every whole section of it, and a list of what is missing.
//!
//! A report may be truncated anywhere (the process was killed, the disk failed), damaged anywhere,
//! or not a report at all. Everything readable is read; everything else is a [`Problem`] with its
//! offset. A [`ReadError`] is returned only if nothing can be read.
//!
//! Reading never panics, and takes time proportional to the file size and bounded memory: see
//! [limits].

mod fields;
mod frames;
mod item;
mod profile;
mod sections;

pub(crate) use fields::Fields;
pub use frames::{FrameEvent, Frames, Section};
pub(crate) use item::{Limit, MAX_DEPTH, decode_item};

use crate::model::{Problem, Report};
use crate::wire::{FILE_PREFIX, FORMAT_VERSION, SectionKind};
use sections::Builder;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Limits for reading.
///
/// A larger file is rejected; excess elements are left out, with a problem.
pub mod limits {
    /// Maximum size of a report file in bytes.
    pub const FILE: u64 = 128 << 20;
    /// Maximum nesting of arrays and maps.
    pub const DEPTH: usize = super::MAX_DEPTH;
    /// Maximum number of CBOR items in all sections together.
    pub const ITEMS: usize = 4 << 20;
    /// Maximum number of threads.
    pub const THREADS: usize = 100_000;
    /// Maximum number of frames in all stacks together.
    pub const FRAMES: usize = 500_000;
    /// Maximum number of elements of any other section kind.
    pub const ELEMENTS: usize = 200_000;
    /// Maximum number of listed problems.
    pub const PROBLEMS: usize = 1_000;
}

/// Why a file can't be read at all.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The file can't be opened or read.
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// The path is a directory, a device or a pipe: not a regular file.
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file is empty.
    Empty,
    /// The file is larger than a report can be.
    TooLarge {
        /// File size in bytes.
        size: u64,
    },
    /// The file was reserved at install but never written: its run left no report.
    Unwritten {
        /// File size in bytes.
        size: u64,
    },
    /// The file has another format.
    NotAReport {
        /// The apparent format, if it is recognized.
        looks_like: Option<&'static str>,
        /// Offset of the first byte that can't be part of a report.
        offset: u64,
    },
    /// The report has a later format version.
    Newer {
        /// The report's format version.
        version: u32,
        /// Offset of the section that contains the version.
        offset: u64,
    },
    /// The file begins like a report, but has no whole section.
    NothingWhole {
        /// Offset of the first section.
        offset: u64,
        /// The kind of damage.
        what: String,
    },
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io { path, error } => write!(f, "{}: {error}", path.display()),
            ReadError::NotAFile { path } => write!(f, "{} is not a regular file", path.display()),
            ReadError::Empty => f.write_str("the file is empty"),
            ReadError::TooLarge { size } => {
                write!(f, "the file has {size} bytes; the limit for reports is {} MiB", limits::FILE >> 20)
            }
            ReadError::Unwritten { size } => {
                write!(f, "the run left no report: {size} bytes were reserved for one but never written")
            }
            ReadError::NotAReport { looks_like: Some(what), offset: 0 } => {
                write!(f, "not a Coroner report: it looks like {what}")
            }
            ReadError::NotAReport { looks_like: None, offset: 0 } => {
                f.write_str("not a Coroner report: unknown format")
            }
            ReadError::NotAReport { looks_like: Some(what), offset } => {
                write!(f, "not a Coroner report: at byte {offset} it looks like {what}")
            }
            ReadError::NotAReport { looks_like: None, offset } => {
                write!(f, "not a Coroner report: unexpected data at byte {offset}")
            }
            ReadError::Newer { version, offset } => write!(
                f,
                "unsupported report format version {version} (section at byte {offset}); this program reads up to version {FORMAT_VERSION}"
            ),
            ReadError::NothingWhole { offset, what } => {
                write!(f, "the report has no complete section; the first, at byte {offset}: {what}")
            }
        }
    }
}

impl Report {
    /// Reads the report in `bytes`, which may be followed by zeros (the unused rest of the file).
    ///
    /// Frames are attributed to images, and named if the process itself found names; no debug
    /// information is read.
    ///
    /// # Errors
    /// [`ReadError`] if `bytes` contains no report. A torn or damaged report is not an error: it
    /// has [`problems`](Report::problems).
    pub fn read(bytes: &[u8]) -> Result<Report, ReadError> {
        let size = bytes.len() as u64;
        if size > limits::FILE {
            return Err(ReadError::TooLarge { size });
        }
        check_start(bytes)?;
        let mut builder = Builder::default();
        let mut whole = 0;
        let mut end = bytes.len() as u64;
        for event in Frames::new(bytes) {
            match event {
                FrameEvent::Section(section) => {
                    whole += 1;
                    builder.section(&section)?;
                }
                FrameEvent::Damage { section, offset, what } => builder.problem(section, offset, what),
                FrameEvent::End { offset } => end = offset,
            }
        }
        if whole == 0 && bytes.first() == Some(&0) {
            return Err(ReadError::NotAReport { looks_like: None, offset: 0 });
        }
        if whole == 0 {
            let offset = FILE_PREFIX.len() as u64;
            let what =
                builder.report.problems.first().map_or_else(|| "not there".to_owned(), |first| first.what.clone());
            return Err(ReadError::NothingWhole { offset, what });
        }
        Ok(builder.finish(end))
    }

    /// Reads the report in the file at `path`.
    ///
    /// # Errors
    /// [`ReadError`] if the file contains no report, or can't be read.
    pub fn read_file(path: impl AsRef<Path>) -> Result<Report, ReadError> {
        Report::read(&read_bounded(path.as_ref(), limits::FILE)?)
    }
}

/// Returns the bytes of the regular file at `path`, which may have at most `limit` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let io = |error| ReadError::Io { path: path.to_owned(), error };
    // Checked before opening, because opening a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    if size > limit {
        return Err(ReadError::TooLarge { size });
    }
    let mut bytes = Vec::new();
    Read::take(&mut file, limit).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// Checks by the first bytes whether a file is a report.
fn check_start(bytes: &[u8]) -> Result<(), ReadError> {
    const KNOWN: &[(&[u8], &str)] = &[
        (b"MDMP", "a minidump"),
        (b"\x7FELF", "an ELF file"),
        (b"\xCF\xFA\xED\xFE", "a Mach-O file"),
        (b"\xCA\xFE\xBA\xBE", "a universal Mach-O file"),
        (b"\x1F\x8B", "a gzip file"),
        (b"PK\x03\x04", "a zip file"),
        (b"{", "JSON"),
        (crate::run_state::MAGIC, "a Coroner run state (it lies beside the report)"),
        (b"Incident Identifier", "an Apple crash report"),
        (b"Process:", "an Apple crash report"),
    ];
    let Some(first) = bytes.first() else { return Err(ReadError::Empty) };
    if *first == 0 {
        // Zeros followed by data: the first page may be lost, and the sections after it intact.
        let unwritten = bytes.iter().all(|byte| *byte == 0);
        return if unwritten { Err(ReadError::Unwritten { size: bytes.len() as u64 }) } else { Ok(()) };
    }
    let common = bytes.iter().zip(FILE_PREFIX).take_while(|(byte, expected)| **byte == *expected).count();
    if common < FILE_PREFIX.len().min(bytes.len()) {
        // Damage to the prefix alone does not make a report unreadable.
        if bytes.get(FILE_PREFIX.len()..).is_some_and(|rest| rest.starts_with(&crate::wire::FRAME_MAGIC)) {
            return Ok(());
        }
        let looks_like = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, name)| *name);
        return Err(ReadError::NotAReport { looks_like, offset: if looks_like.is_some() { 0 } else { common as u64 } });
    }
    Ok(())
}

/// Returns the problem for a missing section.
fn missing(kind: SectionKind, offset: u64) -> Problem {
    Problem { section: Some(kind), offset, what: "missing".to_owned() }
}
