//! Detects new reports in a store or a folder.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use coroner_symbols::Symbolizer;

use crate::failure::Failure;
use crate::report_files::{self, Stamp};
use crate::report_reader::{Texts, open_run};
use crate::store_contents::{Contents, contents, summarize, summarize_with, symbolicate_stack};
use crate::summary::{State, Summary};

/// A store or a folder of reports that is checked repeatedly.
pub(crate) struct Watch {
    path: PathBuf,
    texts: Texts,
    /// Whether symbols were named, with which all reports are read.
    is_named: bool,
    /// Files that were read, with their stamps.
    files: HashSet<(PathBuf, Option<Stamp>)>,
    /// Event ids that were shown.
    shown: HashSet<String>,
}

impl Watch {
    pub(crate) fn new(path: &Path, texts: Texts, is_named: bool) -> Watch {
        Watch { path: path.to_owned(), texts, is_named, files: HashSet::new(), shown: HashSet::new() }
    }

    /// Returns the new reports since the last call, oldest first.
    ///
    /// A file that was incomplete is read again after it has changed.
    pub(crate) fn poll(&mut self, names: &mut Symbolizer) -> Result<Vec<Summary>, Failure> {
        let Contents { runs, folder } = contents(&self.path)?;
        let mut new = Vec::new();
        for stored in folder.as_deref().map_or_else(|| Ok(Vec::new()), report_files::in_folder)? {
            let stamp = stored.stamp();
            if !self.files.insert((stored.listed(), stamp)) {
                continue;
            }
            let summary = match self.is_named {
                true => summarize_with(&stored, self.texts, names),
                false => summarize(&stored, self.texts, Some(names)).1,
            };
            match summary {
                Ok(summary) => new.push(summary),
                Err(_) if stamp.is_none() => {}
                Err(failure) => failure.print(),
            }
        }
        for run in runs.iter().filter(|run| run.broken.is_none()) {
            for report in open_run(&run.path, self.texts, None).unwrap_or_default() {
                if !self.shown.contains(&report.header.event_id.to_string()) {
                    new.push(Summary::new(&symbolicate_stack(report, Some(names)), &run.path, State::Pending));
                }
            }
        }
        new.retain(|summary| self.shown.insert(summary.event_id.clone()));
        new.sort_by_key(|summary| summary.time.0);
        Ok(new)
    }
}
