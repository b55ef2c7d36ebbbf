//! Reads Android's own crash files as Coroner [`Report`]s.
//!
//! * **Tombstones**, which debuggerd writes for a native crash: as protobuf (Android 12 and later;
//!   an app gets its own from `ApplicationExitInfo`) and as text, from a file or from logcat with
//!   its prefixes (Android 5 to 16).
//! * **ANR traces**, which ART writes about all threads when the main thread does not respond:
//!   native and Java frames.
//! * **Java stack traces**, as written by `Throwable.printStackTrace`.
//!
//! ```no_run
//! let bytes = std::fs::read("tombstone_00")?;
//! let report = coroner_formats::tombstone::read(&bytes)?;
//! println!("{}", report.to_json());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources of the formats: AOSP, `system/core/debuggerd` (`proto/tombstone.proto`,
//! `libdebuggerd/tombstone_proto_to_text.cpp`, and `tombstone.cpp` of older versions),
//! `art/runtime` (`thread.cc`, `signal_catcher.cc`), `java.lang.Throwable`.

mod anr;
mod java;
mod proto;
mod report;
mod text;
mod time;

use coroner_report::model::Report;

pub use java::{exceptions_of_stack_trace, is_managed};

/// Maximum size of a file, in bytes. Tombstones have some hundred kilobytes, traces of large apps
/// some megabytes.
pub const MAX_BYTES: usize = 64 << 20;
/// Maximum number of frames of a stack; debuggerd writes 256.
const MAX_FRAMES: usize = 10_000;
/// Maximum number of threads.
const MAX_THREADS: usize = 100_000;

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A protobuf tombstone.
    Protobuf,
    /// A text tombstone, with or without logcat's prefixes.
    Text,
    /// An ANR trace.
    Anr,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Form::Protobuf => "an Android tombstone (protobuf)",
            Form::Text => "an Android tombstone (text)",
            Form::Anr => "an Android ANR trace",
        })
    }
}

/// The reason why a file can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TombstoneError {
    /// The file has none of the supported formats.
    #[error("neither an Android tombstone nor an ANR trace")]
    NotATombstone,
    /// The file is too large.
    #[error("the tombstone is {size} bytes; the limit is {} MiB", MAX_BYTES >> 20)]
    TooLarge {
        /// Its size, in bytes.
        size: usize,
    },
    /// The file starts like a supported format, but essential parts are missing or damaged.
    #[error("damaged file ({form}): at byte {offset}: {what}")]
    Damaged {
        /// The file's format.
        form: Form,
        /// The file offset of the damage, in bytes.
        offset: usize,
        /// The missing or damaged part.
        what: String,
    },
}

/// Detects the format from a file's content; `None` for other files.
pub fn detect_form(bytes: &[u8]) -> Option<Form> {
    if text::begins(bytes).is_some() {
        Some(Form::Text)
    } else if anr::begins(bytes).is_some() {
        Some(Form::Anr)
    } else {
        proto::looks_like(bytes).then_some(Form::Protobuf)
    }
}

/// Reads a tombstone or an ANR trace. If a log contains several, the first is read.
///
/// If non-essential parts are truncated or damaged, they are listed in the report's
/// [`problems`](Report::problems). The event id is derived from the content, so that the same file
/// results in the same event each time.
///
/// # Errors
/// [`TombstoneError`] if the bytes have another format, or contain neither a process nor a thread.
pub fn read(bytes: &[u8]) -> Result<Report, TombstoneError> {
    if bytes.len() > MAX_BYTES {
        return Err(TombstoneError::TooLarge { size: bytes.len() });
    }
    let form = detect_form(bytes).ok_or(TombstoneError::NotATombstone)?;
    let (mut report, damage) = match form {
        Form::Protobuf => {
            let (tombstone, damage) = proto::decode(bytes);
            (report::from_tombstone(tombstone, report::TextFacts::default()), damage)
        }
        Form::Text => {
            let (tombstone, text_facts, damage) = text::parse(bytes);
            (report::from_tombstone(tombstone, text_facts), damage)
        }
        Form::Anr => (anr::report(bytes), None),
    };
    if report.header.pid == 0 || report.threads.is_empty() {
        let (offset, what) = match damage {
            Some(damage) => (damage.offset, damage.what),
            None => (bytes.len(), "the file ends before the process and its threads".to_owned()),
        };
        return Err(TombstoneError::Damaged { form, offset, what });
    }
    if let Some(proto::Damage { offset, what }) = damage {
        report.complete = false;
        report.problems.push(coroner_report::model::Problem { section: None, offset: offset as u64, what });
    }
    report.header.event_id = crate::content_id([bytes]);
    report.header.run_id = report.header.event_id;
    if let Some(run) = &mut report.run {
        run.run_id = report.header.run_id;
    }
    Ok(report)
}
