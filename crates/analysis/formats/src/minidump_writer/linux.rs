//! The streams with files of `/proc`, as far as the report has their contents (Linux and Android).

use std::fmt::Write as _;

use coroner_report::model::Report;
use coroner_report::wire::Os;
use minidump_common::format::MINIDUMP_LOCATION_DESCRIPTOR as Location;

use crate::minidump_writer::MinidumpError;
use crate::minidump_writer::file::File;

/// `/proc/PID/maps`: the mappings of the report, with unknown devices and inodes as 0.
pub(crate) fn maps(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let mut text = String::new();
    for mapping in &report.mappings {
        let letter = |flag, letter, other| if mapping.protection & flag == 0 { other } else { letter };
        let (read, write, execute) = (letter(4, 'r', '-'), letter(2, 'w', '-'), letter(1, 'x', '-'));
        let (start, end) = (mapping.start.0, mapping.start.0.saturating_add(mapping.size));
        let (shared, offset) = (letter(8, 's', 'p'), mapping.file_offset.unwrap_or(0));
        let name = mapping.name.as_deref().unwrap_or_default();
        let _ = writeln!(text, "{start:x}-{end:x} {read}{write}{execute}{shared} {offset:08x} 00:00 0 {name}");
    }
    Ok(append(file, report, &text))
}

/// `/proc/PID/status`.
pub(crate) fn status(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let header = &report.header;
    let mut text = format!("Name:\t{}\nTgid:\t{}\nPid:\t{}\n", header.process_name, header.pid, header.pid);
    if header.ppid != 0 {
        let _ = writeln!(text, "PPid:\t{}", header.ppid);
    }
    let _ = writeln!(text, "Threads:\t{}", report.threads.len());
    Ok(append(file, report, &text))
}

fn append(file: &mut File, report: &Report, text: &str) -> Option<Location> {
    let has_proc = matches!(report.header.os, Os::LINUX | Os::ANDROID) && !text.is_empty();
    has_proc.then(|| file.append_bytes(text.as_bytes()))
}
