//! Reads apport's reports (`/var/crash/*.crash` on Ubuntu).
//!
//! They have fields as in Debian's control files, one of which is the core dump.
//!
//! Source: apport's `problem_report.py`. A binary field is `Key: base64`, and each line below it is
//! the next piece of a gzip or Zstandard stream, encoded separately.

use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use coroner_report::Report;
use coroner_report::model::Timestamp;
use coroner_symbols::Symbolizer;

use super::compressed::{self, Compression};
use super::error::{DumpError, damaged};
use super::noted::Noted;

/// The start of a report.
pub(crate) const START: &[u8] = b"ProblemType: Crash\n";
/// Maximum difference between a file's time and the local time in it, in nanoseconds.
const MAX_UTC_OFFSET: u64 = 15 * 3600 * 1_000_000_000;

/// Reads a report; `time` is the file's.
pub(crate) fn read(bytes: &[u8], time: Option<Timestamp>, symbolizer: &mut Symbolizer) -> Result<Report, DumpError> {
    let (fields, core) = fields(bytes);
    let Some(core) = core else {
        return Err(damaged("the apport report has no core dump (`CoreDump`): none was written, or apport removed it"));
    };
    let mut start = [0; 8];
    let read = Base64Lines::new(core)
        .read(&mut start)
        .map_err(|error| damaged(format!("can't decode the core dump in the apport report: {error}")))?;
    let compression = Compression::detect(&start[..read]);
    let compression =
        compression.ok_or_else(|| damaged("the core dump in the apport report is neither gzip nor Zstandard"))?;
    let mut report = compressed::read(Base64Lines::new(core), compression, symbolizer)?;
    fields.noted(time).apply(&mut report);
    Ok(report)
}

/// The fields that are used, each one line.
#[derive(Default)]
struct Fields<'b> {
    executable: Option<&'b str>,
    package: Option<&'b str>,
    release: Option<&'b str>,
    kernel: Option<&'b str>,
    date: Option<&'b str>,
}

/// Returns the fields, and the lines of the core dump.
fn fields(bytes: &[u8]) -> (Fields<'_>, Option<&[u8]>) {
    let mut fields = Fields::default();
    let mut core = None;
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
        let (line, after) = rest.split_at(end);
        rest = after;
        if line.starts_with(b" ") {
            continue;
        }
        let Some((key, value)) = str::from_utf8(line).ok().and_then(|line| line.trim_end().split_once(": ")) else {
            continue;
        };
        match key {
            "ExecutablePath" => fields.executable = Some(value),
            "Package" => fields.package = Some(value),
            "DistroRelease" => fields.release = Some(value),
            "Uname" => fields.kernel = Some(value),
            "Date" => fields.date = Some(value),
            "CoreDump" if value == "base64" => core = Some(rest),
            _ => {}
        }
    }
    (fields, core)
}

impl Fields<'_> {
    fn noted(&self, time: Option<Timestamp>) -> Noted {
        let words = |text: Option<&str>| {
            let (first, second) = text?.split_once(' ')?;
            Some((first.to_owned(), second.split(' ').next()?.to_owned()))
        };
        let (package, release) = (words(self.package), words(self.release));
        // The date is in an unknown time zone. If the file was not copied, its own time is more
        // accurate.
        let said = self.date.and_then(parse_ctime);
        let near = |said: Timestamp, of_file: &Timestamp| said.0.abs_diff(of_file.0) <= MAX_UTC_OFFSET;
        Noted {
            executable: self.executable.map(ToOwned::to_owned),
            time: time.filter(|time| said.is_none_or(|said| near(said, time))).or(said),
            package: package.as_ref().map(|package| package.0.clone()),
            package_version: package.map(|package| package.1),
            distribution: release.as_ref().map(|release| release.0.to_lowercase()),
            distribution_version: release.map(|release| release.1),
            // `Linux 6.8.0-41-generic x86_64`.
            kernel: words(self.kernel).map(|kernel| kernel.1),
            ..Noted::default()
        }
    }
}

/// Parses `Mon Sep  2 10:11:12 2024` as UTC.
fn parse_ctime(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = text.split_whitespace().collect();
    let [_, month, day, time, year] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    format!("{year}-{month:02}-{day:0>2}T{time}Z").parse().ok()
}

/// A reader of a binary field's decoded lines.
struct Base64Lines<'b> {
    rest: &'b [u8],
    /// The decoded bytes of the current line.
    decoded: Vec<u8>,
    read: usize,
}

impl<'b> Base64Lines<'b> {
    fn new(lines: &'b [u8]) -> Self {
        Base64Lines { rest: lines, decoded: Vec::new(), read: 0 }
    }
}

impl Read for Base64Lines<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.read == self.decoded.len() {
            let Some(line) = self.rest.strip_prefix(b" ") else { return Ok(0) };
            let end = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
            self.rest = line.get(end + 1..).unwrap_or_default();
            self.decoded.clear();
            self.read = 0;
            let line = line[..end].trim_ascii();
            STANDARD
                .decode_vec(line, &mut self.decoded)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("invalid base64: {error}")))?;
        }
        let count = into.len().min(self.decoded.len() - self.read);
        into[..count].copy_from_slice(&self.decoded[self.read..self.read + count]);
        self.read += count;
        Ok(count)
    }
}
