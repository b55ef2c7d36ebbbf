//! A crash report as a minidump: the format of Breakpad, Crashpad and Windows, which servers and debuggers read.
//!
//! It is made at the next launch, of what the report has: what happened, the threads with their names and general registers, the
//! pieces of stack memory, the images with their identities, and in a comment why it crashed, if the report is explained. `minidump-writer` makes one of a process that still lives, and needs
//! another process to do so; nothing of that is here.
//!
//! Who reads the minidump unwinds the stacks once more, with its own symbols, out of the stack memory that is in it. That is of the
//! crashed thread alone, and as much as the app asked for (`coroner::Crashes::stack_memory`), so that of the other threads only the
//! innermost frame can be known from it; or of all threads (`coroner::Crashes::stack_memory_all`). The report's own frames, of all threads, have no place in the format.
//!
//! ```
//! use coroner_report::Report;
//!
//! // A report of nothing has no architecture, without which there are no registers.
//! assert!(coroner_formats::minidump_writer::from_report(&Report::default()).is_err());
//! ```

mod comment;
mod context;
mod exception;
mod file;
mod modules;
mod system;
mod threads;

use coroner_report::model::Report;
use minidump_common::format::{MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_STREAM_TYPE as Stream};

use file::File;

/// A report can't be written as a minidump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MinidumpError {
    /// The report's architecture or its system is none that this version knows.
    #[error("the report does not say an architecture and a system that a minidump can be of")]
    Platform,
    /// It would be larger than 4 GiB, beyond which the format has no offsets.
    #[error("the minidump would be larger than 4 GiB")]
    TooLarge,
}

/// Writes one part into the file, and says where it is; `None` where the report has nothing for it.
type Part = fn(&mut File, &Report) -> Result<Option<Location>, MinidumpError>;

/// The streams, in the order in which they stand in the file.
const STREAMS: [(Stream, Part); 8] = [
    (Stream::SystemInfoStream, system::info),
    (Stream::MiscInfoStream, system::process),
    (Stream::ExceptionStream, exception::stream),
    (Stream::ThreadListStream, threads::list),
    (Stream::ThreadNamesStream, threads::names),
    (Stream::ModuleListStream, modules::list),
    (Stream::MemoryListStream, threads::memory),
    (Stream::CommentStreamW, comment::stream),
];

/// The minidump of a report.
///
/// # Errors
/// See [`MinidumpError`].
pub fn from_report(report: &Report) -> Result<Vec<u8>, MinidumpError> {
    let mut file = File::new(STREAMS.len());
    let mut streams = Vec::new();
    for (stream, write) in STREAMS {
        streams.extend(write(&mut file, report)?.map(|location| (stream, location)));
    }
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    file.finish(&streams, time)
}
