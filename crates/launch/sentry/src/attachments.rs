//! Files sent with an event: memory and files that the run registered, and their total size limit.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use coroner_outbox::files::open_waiting_for_nothing;
use coroner_report::model::{self, Report};
use coroner_report::wire::Monitor;
use sentry_types::protocol::v7::{Context, Map as Sorted};
use serde_json::{Map, Value};

use crate::envelope::{Attachment, AttachmentType};
use crate::event::Event;

/// Name of the minidump that the system wrote.
const MINIDUMP: &str = "minidump.dmp";

/// Returns the attachments that the report's run registered, and the names of those left out.
///
/// Attachments are memory and files; files are left out for their size. The minidump that the
/// system wrote of the crash, which contains the stacks of all threads, is one only if `minidump`.
///
/// The files have at most `most` bytes in total, by their current sizes; the largest are left out
/// without being read. The event records which files are missing and why: they may have been
/// removed since.
pub fn from_run(report: &Report, event: &mut Event, most: usize, minidump: bool) -> (Vec<Attachment>, Vec<String>) {
    let is_of_system = report.crash.as_ref().is_some_and(|crash| crash.monitor == Monitor::SEH);
    let is_minidump =
        |declared: &model::Attachment| declared.content_type.as_deref() == Some(model::Attachment::MINIDUMP);
    let is_wanted = |declared: &&model::Attachment| {
        minidump || !(is_of_system && is_minidump(declared) && declared.name == MINIDUMP)
    };
    let memory = report.app_memory.iter().map(|memory| Attachment {
        filename: memory.name.clone(),
        buffer: memory.bytes.0.clone(),
        ..Attachment::default()
    });
    let mut attachments: Vec<Attachment> = memory.collect();
    let mut missing = Map::new();
    let mut files = Vec::new();
    for declared in report.run.iter().flat_map(|run| &run.attachments).filter(is_wanted) {
        match size_of(Path::new(&declared.path)) {
            Ok(size) if size > most as u64 => {
                drop(missing.insert(declared.name.clone(), "too large".into()));
            }
            Ok(size) => files.push((size, declared)),
            Err(error) => drop(missing.insert(declared.name.clone(), error.to_string().into())),
        }
    }
    let mut left_out = Vec::new();
    while files.iter().map(|(size, _)| *size).fold(0, u64::saturating_add) > most as u64 {
        let Some(largest) = (0..files.len()).max_by_key(|place| files[*place].0) else { break };
        left_out.push(files.remove(largest).1.name.clone());
    }
    for (_, declared) in files {
        match read_file(Path::new(&declared.path), most) {
            Ok(Some(bytes)) => attachments.push(Attachment {
                filename: declared.name.clone(),
                content_type: declared.content_type.clone(),
                // A minidump that the app attached is an ordinary file, and so is one truncated
                // before its header.
                ty: (is_of_system && is_minidump(declared) && bytes.starts_with(b"MDMP"))
                    .then_some(AttachmentType::Minidump),
                buffer: bytes,
            }),
            Ok(None) => drop(missing.insert(declared.name.clone(), "too large".into())),
            Err(error) => drop(missing.insert(declared.name.clone(), error.to_string().into())),
        }
    }
    if !missing.is_empty() {
        note(event, "missing_attachments", missing.into());
    }
    (attachments, left_out)
}

/// Removes the largest attachments until the rest has at most `most` bytes.
///
/// Returns the removed names together with `left_out`. The event records them.
pub fn limit(
    attachments: &mut Vec<Attachment>,
    most: usize,
    mut left_out: Vec<String>,
    event: &mut Event,
) -> Vec<String> {
    while attachments.iter().map(|attachment| attachment.buffer.len()).sum::<usize>() > most {
        let largest = attachments.iter().enumerate().max_by_key(|(_, attachment)| attachment.buffer.len());
        let Some(largest) = largest.map(|(place, _)| place) else { break };
        left_out.push(attachments.remove(largest).filename);
    }
    if !left_out.is_empty() {
        log::warn!("coroner: attachments are too large and not sent: {}", left_out.join(", "));
        note(event, "attachments_left_out", left_out.clone().into());
    }
    left_out
}

fn note(event: &mut Event, key: &str, value: Value) {
    let context = event.contexts.entry("coroner".to_owned()).or_insert_with(|| Context::Other(Sorted::new()));
    if let Context::Other(context) = context {
        context.insert(key.to_owned(), value);
    }
}

/// Returns the size of a regular file. A pipe or a device may block or never end, and opening it
/// may have side effects.
fn size_of(path: &Path) -> io::Result<u64> {
    let metadata = fs::metadata(path)?;
    if metadata.is_file() { Ok(metadata.len()) } else { Err(not_a_file()) }
}

fn not_a_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Reads a file; `None` if it is larger than `most` bytes.
pub(crate) fn read_file(path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
    let limit = most as u64;
    if size_of(path)? > limit {
        return Ok(None);
    }
    // The file may have been replaced since: opening a pipe must not block.
    let file = open_waiting_for_nothing(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    let mut bytes = Vec::new();
    // Data appended in the meantime counts too.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}
