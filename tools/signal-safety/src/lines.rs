//! Source lines of instructions, if the program has line tables.

use std::path::Path;

/// A program's line tables.
pub(super) struct Lines(Option<addr2line::Loader>);

impl Lines {
    pub(super) fn open(program: &Path) -> Lines {
        Lines(addr2line::Loader::new(program).ok())
    }

    /// Returns an instruction's source lines, as `file:line function`.
    ///
    /// Its own line is followed by those that it was inlined into.
    pub(super) fn at(&self, address: u64) -> Vec<String> {
        let mut lines = Vec::new();
        let Some(mut frames) = self.0.as_ref().and_then(|loader| loader.find_frames(address).ok()) else {
            return lines;
        };
        while let Ok(Some(frame)) = frames.next() {
            let Some(location) = frame.location else { continue };
            let function = frame.function.and_then(|name| Some(name.demangle().ok()?.into_owned())).unwrap_or_default();
            let file = location.file.unwrap_or_default();
            let file = file.split_once("/library/").map_or_else(
                || shortened(file).to_owned(),
                // The standard library's sources, regardless of where they were built.
                |(_, rest)| format!("library/{rest}"),
            );
            let function = format!("{:#}", rustc_demangle::demangle(&function));
            lines.push(format!("{file}:{} {function}", location.line.unwrap_or_default()));
        }
        lines
    }
}

/// Returns a path in the workspace relative to its root.
fn shortened(file: &str) -> &str {
    let root = toolbox::tools::workspace_root();
    Path::new(file).strip_prefix(root).ok().and_then(Path::to_str).unwrap_or(file)
}
