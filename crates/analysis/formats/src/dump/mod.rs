//! Reads core dumps (ELF) and minidumps (Breakpad, Crashpad, Windows) as reports.
//!
//! Both hold registers and memory, and no stacks. The stacks are walked here, by [`coroner_unwind`], with the unwind data of the images'
//! own files, which a [`Symbolizer`] finds by build id ([`SnapshotImages`](coroner_symbols::SnapshotImages)), and named by their symbols. An image
//! whose file is not found is walked through by frame pointers and what looks like a return address; each frame says how it was found.
//!
//! Core dumps come compressed, too, as systemd-coredump keeps them, and within apport's reports; of those, and of what the kernel writes to a pipe
//! ([`read_core_stream`]), only as much is kept as a walk needs.
//!
//! ```no_run
//! use coroner_symbols::{Options, Symbolizer};
//!
//! let bytes = std::fs::read("core.4711")?;
//! let mut symbolizer = Symbolizer::new(Options::default());
//! let report = coroner_formats::dump::read(&bytes, None, &mut symbolizer)?;
//! println!("{}", report.to_text(&Default::default()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apport;
mod compressed;
mod core_file;
mod core_notes;
mod core_stream;
mod error;
mod minidump_file;
mod noted;
#[cfg(target_os = "linux")]
mod systemd_coredump;

pub use error::DumpError;
pub use noted::Noted;
#[cfg(target_os = "linux")]
pub use systemd_coredump::noted_by_systemd;

use compressed::Compression;
use coroner_report::Report;
use coroner_report::model::Timestamp;
use coroner_symbols::Symbolizer;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// An ELF core dump.
    Core,
    /// A minidump.
    Minidump,
    /// A compressed file, in which a core dump may be.
    Compressed,
    /// A report of Ubuntu's apport, with a core dump in it.
    Apport,
}

impl Form {
    /// What a file is by its first bytes, of which 32 suffice; `None` if it is none of them.
    pub fn of(bytes: &[u8]) -> Option<Form> {
        // `e_type` is ET_CORE (4), in the file's byte order.
        let is_core = bytes.starts_with(b"\x7fELF") && matches!(bytes.get(16..18), Some([4, 0] | [0, 4]));
        if is_core {
            return Some(Form::Core);
        }
        match bytes {
            _ if bytes.starts_with(b"MDMP") => Some(Form::Minidump),
            _ if bytes.starts_with(apport::START) => Some(Form::Apport),
            _ => Compression::of(bytes).map(|_| Form::Compressed),
        }
    }
}

/// Reads a core dump, compressed or not, a minidump or a report of apport: its threads are walked and named with the files that `symbolizer` finds. `time` is when the process
/// died, for files that don't say it: that of the file, say.
///
/// The event id is the same each time that the same file is read. [`stack_memory`](Report::stack_memory) of a core dump has up to 64 KiB of each
/// stack, for a minidump: it may hold what users typed.
///
/// # Errors
/// It is none of them, of another processor, or damaged beyond use. What is missing of one that can be used is among
/// [`Report::problems`].
pub fn read(bytes: &[u8], time: Option<Timestamp>, symbolizer: &mut Symbolizer) -> Result<Report, DumpError> {
    let mut report = match Form::of(bytes).ok_or(DumpError::NotADump)? {
        Form::Core => core_file::read(bytes, symbolizer)?,
        Form::Minidump => minidump_file::read(bytes, symbolizer)?,
        Form::Compressed => {
            let compression = Compression::of(bytes).ok_or(DumpError::NotADump)?;
            compressed::read(bytes, compression, symbolizer)?
        }
        Form::Apport => apport::read(bytes, time, symbolizer)?,
    };
    finish(&mut report, time, symbolizer);
    Ok(report)
}

/// Reads a core dump as the kernel writes it to a pipe or a socket, up to where it says no more that is needed. `memory` is that of the
/// process, `/proc/PID/mem`, which is there for as long as the stream is not read to its end: with it, only the beginning of the
/// stream is read. [`stack_memory`](Report::stack_memory) has up to 64 KiB of each stack.
///
/// # Errors
/// It is no core dump, of another processor, or ends in its headers.
pub fn read_core_stream(
    stream: impl std::io::Read,
    memory: Option<&std::fs::File>,
    time: Option<Timestamp>,
    symbolizer: &mut Symbolizer,
) -> Result<Report, DumpError> {
    let mut report = core_stream::read(stream, memory, symbolizer)?;
    finish(&mut report, time, symbolizer);
    Ok(report)
}

fn finish(report: &mut Report, time: Option<Timestamp>, symbolizer: &mut Symbolizer) {
    if let (Some(crash), Some(time)) = (&mut report.crash, time)
        && crash.time.0 == 0
    {
        crash.time = time;
    }
    symbolizer.symbolicate_report(report);
}
