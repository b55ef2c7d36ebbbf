//! Writes a crash report as a minidump.
//!
//! Minidumps are the format of Breakpad, Crashpad and Windows, which servers and debuggers read.
//!
//! The minidump is created at the next launch from the report's contents: the exception, the
//! threads with their names and general registers, the saved stack memory, the images with their
//! ids, and, if the report has an explanation, a comment with it; on Linux also the mappings and
//! the process's status. (Reports have no auxiliary vector.) The crate `minidump-writer` dumps
//! a process that is still running, and requires another process to do so; this module shares
//! nothing with it.
//!
//! A reader of the minidump unwinds the stacks again with its own symbols, from the stack memory in
//! the file. By default that memory covers only the crashed thread, as much as the app requested
//! (`coroner::Crashes::stack_memory`), so that for other threads only the innermost frame is
//! available; `coroner::Crashes::stack_memory_all` covers all threads. The format has no place for
//! the report's own frames.
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
mod linux;
mod modules;
mod system;
mod threads;

use coroner_report::model::Report;
use minidump_common::format::{MINIDUMP_LOCATION_DESCRIPTOR as Location, MINIDUMP_STREAM_TYPE as Stream};

use file::File;

/// An error from writing a report as a minidump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MinidumpError {
    /// The report's architecture or system is not supported.
    #[error("the report's architecture or system is missing or has no minidump equivalent")]
    Platform,
    /// The file would exceed 4 GiB, the limit of the format's offsets.
    #[error("the minidump would be larger than 4 GiB")]
    TooLarge,
}

/// Writes a part to the file and returns its location; `None` if the report has no data for it.
type Part = fn(&mut File, &Report) -> Result<Option<Location>, MinidumpError>;

/// The streams, in file order.
const STREAMS: [(Stream, Part); 10] = [
    (Stream::SystemInfoStream, system::info),
    (Stream::MiscInfoStream, system::process),
    (Stream::ExceptionStream, exception::stream),
    (Stream::ThreadListStream, threads::list),
    (Stream::ThreadNamesStream, threads::names),
    (Stream::ModuleListStream, modules::list),
    (Stream::MemoryListStream, threads::memory),
    (Stream::CommentStreamW, comment::stream),
    (Stream::LinuxMaps, linux::maps),
    (Stream::LinuxProcStatus, linux::status),
];

/// Writes a report as a minidump.
///
/// # Errors
/// [`MinidumpError`] if the platform is not supported or the file would be too large.
pub fn from_report(report: &Report) -> Result<Vec<u8>, MinidumpError> {
    let mut file = File::new(STREAMS.len());
    let mut streams = Vec::new();
    for (stream, write) in STREAMS {
        streams.extend(write(&mut file, report)?.map(|location| (stream, location)));
    }
    let time = report.crash.as_ref().map_or(report.header.process_start, |crash| crash.time);
    file.finish(&streams, time)
}
