//! Reads core dumps (ELF) and minidumps (Breakpad, Crashpad, Windows) as reports.
//!
//! Both contain registers and memory, but no frames. The stacks of core dumps are walked by
//! [`coroner_unwind`] with the unwind data in the images' own files, which a [`Symbolizer`] finds
//! by build id ([`SnapshotImages`](coroner_symbols::SnapshotImages)). Those of minidumps are walked
//! by `minidump-unwind`, with Breakpad's symbol files and the same files. The frames are named from
//! their symbols. In an image without its file, a walk uses frame pointers and likely return
//! addresses; each frame records how it was found.
//!
//! Core dumps may also be compressed, as stored by systemd-coredump, or inside apport's reports.
//! From these, and from what the kernel writes to a pipe ([`read_core_stream`]), only as much is
//! kept as a walk needs.
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
mod evidence;
mod minidump;
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

/// The format of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Form {
    /// An ELF core dump.
    Core,
    /// A minidump.
    Minidump,
    /// A compressed file, which may contain a core dump.
    Compressed,
    /// A report of Ubuntu's apport that contains a core dump.
    Apport,
}

impl Form {
    /// Detects the format from a file's first bytes (32 suffice); `None` for other files.
    pub fn detect(bytes: &[u8]) -> Option<Form> {
        // `e_type` is ET_CORE (4), in the file's byte order.
        let is_core = bytes.starts_with(b"\x7fELF") && matches!(bytes.get(16..18), Some([4, 0] | [0, 4]));
        if is_core {
            return Some(Form::Core);
        }
        match bytes {
            _ if bytes.starts_with(b"MDMP") => Some(Form::Minidump),
            _ if bytes.starts_with(apport::START) => Some(Form::Apport),
            _ => Compression::detect(bytes).map(|_| Form::Compressed),
        }
    }
}

/// Reads a core dump, compressed or not, a minidump or an apport report. Its threads are walked and
/// named with the files that `symbolizer` finds. `time` is the time of death for files that don't
/// contain it, for example the file's time.
///
/// The event id is the same each time the same file is read. For a core dump,
/// [`stack_memory`](Report::stack_memory) contains up to 64 KiB of each stack, for use in a
/// minidump; it may contain text that users typed.
///
/// # Errors
/// [`DumpError`] if the file has another format, is for an unsupported processor, or is damaged
/// beyond use. Missing parts are listed in [`Report::problems`].
pub fn read(bytes: &[u8], time: Option<Timestamp>, symbolizer: &mut Symbolizer) -> Result<Report, DumpError> {
    let mut report = match Form::detect(bytes).ok_or(DumpError::NotADump)? {
        Form::Core => core_file::read(bytes, symbolizer)?,
        Form::Minidump => minidump::read(bytes, symbolizer)?,
        Form::Compressed => {
            let compression = Compression::detect(bytes).ok_or(DumpError::NotADump)?;
            compressed::read(bytes, compression, symbolizer)?
        }
        Form::Apport => apport::read(bytes, time, symbolizer)?,
    };
    finish(&mut report, time, symbolizer);
    Ok(report)
}

/// Reads a core dump as the kernel writes it to a pipe or a socket, as far as it is needed.
///
/// `memory` is the process's `/proc/PID/mem`, which exists until the stream has been read to its
/// end: with it, only the beginning of the stream is read. [`stack_memory`](Report::stack_memory)
/// contains up to 64 KiB of each stack.
///
/// # Errors
/// [`DumpError`] if the stream is not a core dump, is for an unsupported processor, or ends inside
/// its headers.
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
