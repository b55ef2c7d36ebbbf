//! Reads crash data of other systems: dumps, reports of Android, Apple and Swift, and logs.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use coroner::Report;
use coroner_formats::apple_report::AppleReport;
use coroner_formats::dump::{Form, Noted};
use coroner_formats::tombstone::TombstoneError;
use coroner_report::model::{Problem, Timestamp};
use coroner_symbols::Symbolizer;

use crate::failure::{Context, Failure};
use crate::{bounded_read, progress};

/// Reads a crash report of Android, an Apple system or Swift's runtime, recognized by its content.
///
/// `None` if the format is unknown.
pub(crate) fn read(bytes: &[u8]) -> Option<Result<Report, String>> {
    if coroner::is_metric_kit(bytes) {
        return Some(read_metric_kit(bytes));
    }
    match coroner_formats::tombstone::read(bytes) {
        Err(TombstoneError::NotATombstone) if AppleReport::is_likely(bytes) => {
            Some(coroner_formats::apple_report::read_report(bytes).map_err(|error| error.to_string()))
        }
        Err(TombstoneError::NotATombstone) => match coroner_formats::swift_crash_log::read_swift_crash_log(bytes) {
            Some(read) => Some(read.map_err(|error| error.to_string())),
            None => read_log(bytes),
        },
        read => Some(read.map_err(|error| error.to_string())),
    }
}

/// Reads the first diagnostic of a MetricKit payload: crashes come first.
fn read_metric_kit(bytes: &[u8]) -> Result<Report, String> {
    let reports = coroner::read_metric_kit(bytes).map_err(|error| error.to_string())?;
    let count = reports.len();
    let mut report = reports.into_iter().next().ok_or("a MetricKit payload without diagnostics")?;
    if count > 1 {
        let what = format!("the payload has {count} diagnostics, of which this is the first");
        report.problems.push(Problem { section: None, offset: 0, what });
    }
    report.header.event_id = coroner_formats::content_id([bytes]);
    report.header.run_id = report.header.event_id;
    if let Some(run) = &mut report.run {
        run.run_id = report.header.run_id;
    }
    Ok(report)
}

/// Reads a text that contains one crash, such as a Java virtual machine's `hs_err_pid….log`.
fn read_log(bytes: &[u8]) -> Option<Result<Report, String>> {
    if bytes.contains(&0) {
        return None;
    }
    let mut reports = coroner_formats::log::read_log(bytes, None).ok()?;
    match reports.len() {
        0 => None,
        1 => reports.pop().map(Ok),
        crashes => Some(Err(format!("a log with {crashes} crashes: `coroner import --log FILE` imports them"))),
    }
}

/// Describes a file that isn't a report, by its first bytes, with what reads it.
pub(crate) fn describe(bytes: &[u8]) -> Option<&'static str> {
    const MAGICS: [(&[u8], &str); 7] = [
        (b"\x7fELF", "a program or a library (ELF): `coroner symbols` reads it"),
        (b"MZ", "a program or a library (PE): `coroner symbols` reads it"),
        (b"\xcf\xfa\xed\xfe", "a program or a library (Mach-O): `coroner symbols` reads it"),
        (b"\xca\xfe\xba\xbe", "a program or a library (Mach-O): `coroner symbols` reads it"),
        (b"MODULE ", "a symbol file (Breakpad): give it to `--symbols`"),
        (b"\x1f\x8b", "compressed (gzip): unpack it first"),
        (b"PK\x03\x04", "an archive (ZIP): unpack it first"),
    ];
    let by_magic = MAGICS.iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, what)| *what);
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    let is_microdump = start.contains("-----BEGIN BREAKPAD MICRODUMP-----");
    by_magic.or_else(|| is_microdump.then_some("a microdump: Breakpad's `microdump_stackwalk` reads it"))
}

/// Returns the format of the dump at `path`.
///
/// It is a core dump, compressed or not, a minidump, or an apport report.
pub(crate) fn dump_form(path: &Path) -> Option<Form> {
    // Opening a pipe would block until its other end is opened.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut start = Vec::new();
    bounded_read::open_regular(path).ok()?.take(32).read_to_end(&mut start).ok()?;
    Form::detect(&start)
}

/// Reads a dump, which may be larger than memory.
pub(crate) fn read_dump(path: &Path, symbols: Option<&mut Symbolizer>) -> Result<Report, Failure> {
    match symbols {
        Some(symbols) => read_dump_without_memory(path, symbols),
        None => read_dump_without_memory(path, &mut Symbolizer::new(coroner_symbols::Options::default())),
    }
}

/// Reads a dump. Of a core dump's memory, the report contains as much as a report by the process
/// itself does by default: explanations need it.
pub(crate) fn read_dump_without_memory(path: &Path, symbolizer: &mut Symbolizer) -> Result<Report, Failure> {
    /// Bytes of the crashed thread's stack, and around each address in its registers.
    const MAX_BYTES: usize = 2048;
    let mut report = read_dump_with(path, symbolizer)?;
    if dump_form(path) != Some(Form::Minidump) {
        let crashed = report.crash.as_ref().map(|crash| crash.tid);
        report.stack_memory.retain(|piece| Some(piece.tid) == crashed);
        report.stack_memory.iter_mut().for_each(|piece| piece.bytes.0.truncate(MAX_BYTES));
    }
    Ok(report)
}

/// Reads a dump with the symbols of `symbolizer`; the report contains stack memory.
pub(crate) fn read_dump_with(path: &Path, symbolizer: &mut Symbolizer) -> Result<Report, Failure> {
    let doing = || format!("can't read `{}`", path.display());
    let file = File::open(path).context(doing())?;
    let modified = file.metadata().and_then(|metadata| metadata.modified()).ok().map(Timestamp::from);
    let noted = service_notes(path);
    // SAFETY: the mapping is only read. If the file is truncated meanwhile, SIGBUS ends this
    // command, as it does any debugger.
    let bytes = unsafe { memmap2::Mmap::map(&file) }.context(doing())?;
    let progress = progress::spinner("walking the stacks");
    let time = noted.as_ref().and_then(|noted| noted.time).or(modified);
    let read = coroner_formats::dump::read(&bytes, time, symbolizer);
    progress.finish_and_clear();
    let mut report = read.context(doing())?;
    if let Some(noted) = noted {
        noted.apply(&mut report);
    }
    Ok(report)
}

/// Returns the notes that the machine's crash service stored with a core dump.
#[cfg(target_os = "linux")]
fn service_notes(path: &Path) -> Option<Noted> {
    coroner_formats::dump::noted_by_systemd(path)
}

#[cfg(not(target_os = "linux"))]
fn service_notes(_: &Path) -> Option<Noted> {
    None
}
