//! What Android itself writes of a death, as a Coroner [`Report`]: so it is shown, symbolicated and sent as one.
//!
//! * **Tombstones**, which debuggerd writes of a native crash: as protobuf (Android 12 and later; an app gets its own from
//!   `ApplicationExitInfo`) and as text, from a file or out of logcat with its prefixes (Android 5 to 16).
//! * **Traces of ANRs**, which ART writes of all threads when the main thread does not answer: native and Java frames.
//! * **Java stack traces**, as `Throwable.printStackTrace` writes them.
//!
//! ```no_run
//! let bytes = std::fs::read("tombstone_00")?;
//! let report = coroner_formats::tombstone::read(&bytes)?;
//! println!("{}", report.to_json());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources of the formats: AOSP, `system/core/debuggerd` (`proto/tombstone.proto`, `libdebuggerd/tombstone_proto_to_text.cpp`, and
//! `tombstone.cpp` of older versions), `art/runtime` (`thread.cc`, `signal_catcher.cc`), `java.lang.Throwable`.

mod anr;
mod java;
mod proto;
mod report;
mod text;
mod time;

use coroner_report::model::Report;

pub use java::{exceptions_of_stack_trace, is_managed};

/// Longest file that is read, bytes. Tombstones have some hundred kilobytes, traces of large apps some megabytes.
pub const MAX_BYTES: usize = 64 << 20;
/// Most frames of a stack; debuggerd writes 256.
const MAX_FRAMES: usize = 10_000;
/// Most threads.
const MAX_THREADS: usize = 100_000;

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A protobuf tombstone.
    Protobuf,
    /// A text tombstone, with or without logcat's prefixes.
    Text,
    /// A trace of an ANR.
    Anr,
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Form::Protobuf => "an Android tombstone (protobuf)",
            Form::Text => "an Android tombstone (text)",
            Form::Anr => "a trace of an Android app that did not respond",
        })
    }
}

/// Why a file is not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TombstoneError {
    /// It is none.
    #[error("neither a tombstone nor a trace of an ANR of Android")]
    NotATombstone,
    /// It is too large to be one.
    #[error("{size} bytes are more than a tombstone may have ({} MiB)", MAX_BYTES >> 20)]
    TooLarge {
        /// Its size, bytes.
        size: usize,
    },
    /// It begins as one, and what a report needs is not there or damaged.
    #[error("{form}, but {what} (byte {offset})")]
    Damaged {
        /// How it is written.
        form: Form,
        /// The byte of the file where that shows.
        offset: usize,
        /// What is missing or damaged.
        what: String,
    },
}

/// Which of Android's files the bytes are, by their content; `None` if they are none.
pub fn form_of(bytes: &[u8]) -> Option<Form> {
    if text::begins(bytes).is_some() {
        Some(Form::Text)
    } else if anr::begins(bytes).is_some() {
        Some(Form::Anr)
    } else {
        proto::looks_like(bytes).then_some(Form::Protobuf)
    }
}

/// Reads a tombstone or the trace of an ANR. Where a log holds several, the first.
///
/// What is cut off or damaged behind the essentials is one of the report's [`problems`](Report::problems). The event's id is made of the
/// content, so that the same file is the same event each time.
///
/// # Errors
/// [`TombstoneError`]: the bytes are none, or say neither which process it was nor any thread.
pub fn read(bytes: &[u8]) -> Result<Report, TombstoneError> {
    if bytes.len() > MAX_BYTES {
        return Err(TombstoneError::TooLarge { size: bytes.len() });
    }
    let form = form_of(bytes).ok_or(TombstoneError::NotATombstone)?;
    let (mut report, damage) = match form {
        Form::Protobuf => {
            let (tombstone, damage) = proto::decode(bytes);
            (report::of_tombstone(tombstone, report::Beyond::default()), damage)
        }
        Form::Text => {
            let (tombstone, beyond, damage) = text::parse(bytes);
            (report::of_tombstone(tombstone, beyond), damage)
        }
        Form::Anr => (anr::report(bytes), None),
    };
    if report.header.pid == 0 || report.threads.is_empty() {
        let (offset, what) = match damage {
            Some(damage) => (damage.offset, damage.what),
            None => (bytes.len(), "it ends before it says which process and threads it is of".to_owned()),
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
