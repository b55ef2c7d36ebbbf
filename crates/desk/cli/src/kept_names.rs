//! Names that were found for a report are kept with it: in its JSON, which has them when the program that they are from is gone.

use std::io::{self, Write};
use std::path::Path;

use coroner::Report;
use coroner_report::model::Frame;

/// How well the frames of a report are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    lines: usize,
    functions: usize,
}

impl Named {
    pub(crate) fn of(report: &Report) -> Named {
        let threads = report.threads.iter().flat_map(|thread| &thread.frames);
        let frames = || threads.clone().chain(report.exceptions.iter().flat_map(|exception| &exception.frames));
        let is_named = |frame: &&Frame| frame.function.is_some() && !frame.named_in_process;
        Named {
            lines: frames().filter(|frame| frame.line.is_some()).count(),
            functions: frames().filter(is_named).count(),
        }
    }
}

/// Writes the names that `named` has into the report at `json`. Nothing else of it changes, and a file of which this version does not know
/// everything stays as it is.
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
