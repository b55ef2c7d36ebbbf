//! Keeps names that were found for a report in its JSON, for when the program's file is gone.

use std::io::{self, Write};
use std::path::Path;

use coroner::Report;
use coroner_report::model::Frame;

/// The number of named frames in a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameCount {
    lines: usize,
    functions: usize,
}

impl NameCount {
    pub(crate) fn new(report: &Report) -> NameCount {
        let threads = report.threads.iter().flat_map(|thread| &thread.frames);
        let frames = || threads.clone().chain(report.exceptions.iter().flat_map(|exception| &exception.frames));
        let is_named = |frame: &&Frame| frame.function.is_some() && !frame.named_in_process;
        NameCount {
            lines: frames().filter(|frame| frame.line.is_some()).count(),
            functions: frames().filter(is_named).count(),
        }
    }
}

/// Adds the names in `named` to the report at `json`, and changes nothing else.
///
/// A file with content unknown to this version is left unchanged.
pub(crate) fn keep(json: &Path, named: &Report) -> io::Result<()> {
    let text = std::fs::read_to_string(json)?;
    let mut report = Report::from_json(&text)?;
    let as_it_is: serde_json::Value = serde_json::from_str(&text)?;
    if serde_json::to_value(&report)? != as_it_is || report.take_names(named) == 0 {
        return Ok(());
    }
    let folder = json.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".").suffix(".names").tempfile_in(folder)?;
    file.write_all(report.to_json().as_bytes())?;
    file.as_file().set_permissions(std::fs::metadata(json)?.permissions())?;
    file.persist(json)?;
    Ok(())
}
