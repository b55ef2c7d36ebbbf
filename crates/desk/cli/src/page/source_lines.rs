//! Source lines around a frame's line, if the source file is available.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_report::model::{Function, Timestamp};
use maud::{Markup, html};

/// Number of lines before and after.
const CONTEXT_LINES: usize = 3;
/// Maximum number of files read for a page.
const MAX_FILES: usize = 24;
/// Maximum size of a source file in bytes.
const MAX_SIZE: u64 = 4 << 20;
/// Extensions of source files; other files are not read, because a report can name any file.
const EXTENSIONS: [&str; 21] = [
    "rs", "c", "cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx", "m", "mm", "swift", "java", "kt", "go", "zig", "d",
    "s", "S", "inc",
];

/// A file's lines, and whether it is newer than the crash.
type FileLines = (Vec<String>, bool);

/// The files that were read for a page.
pub(super) struct SourceLines {
    crash: SystemTime,
    files: RefCell<HashMap<String, Option<FileLines>>>,
    shown: Cell<bool>,
}

impl SourceLines {
    /// Creates the cache for a crash at this time.
    ///
    /// A newer file may differ from the one that was compiled.
    pub(super) fn new(crash: Timestamp) -> SourceLines {
        SourceLines {
            crash: UNIX_EPOCH + Duration::from_nanos(crash.0),
            files: RefCell::default(),
            shown: Cell::new(false),
        }
    }

    /// Renders the lines around a function's line; `None` if they are not available.
    pub(super) fn render(&self, function: &Function<'_>) -> Option<Markup> {
        let (file, line) = (function.file?, function.line.filter(|line| *line > 0)? as usize);
        let mut files = self.files.borrow_mut();
        if !files.contains_key(file) {
            let read = if files.len() < MAX_FILES { self.read(file) } else { None };
            files.insert(file.to_owned(), read);
        }
        let (lines, is_newer) = files.get(file)?.as_ref()?;
        let from = line.saturating_sub(CONTEXT_LINES + 1);
        let shown = lines.get(from..(line + CONTEXT_LINES).min(lines.len())).filter(|_| line <= lines.len())?;
        let label = format!("Source around line {line}");
        let block = html! {
            pre tabindex="0" role="group" aria-label=(label) {
                @for (place, text) in shown.iter().enumerate() {
                    @let number = from + place + 1;
                    span class=(if number == line { "here" } else { "" }) {
                        span.number { (format!("{number:5} ")) } @if number == line { "▸ " } @else { "  " } (text)
                    } "\n"
                }
                @if *is_newer { span.warning { "The file was changed after the crash.\n" } }
            }
        };
        // Only the first block, of the frame to look at first, is open.
        let is_first = !self.shown.replace(true);
        Some(html! { details.lines open[is_first] { summary { "source" } (block) } })
    }

    fn read(&self, file: &str) -> Option<FileLines> {
        let path = Path::new(file);
        let extension = path.extension()?.to_str()?;
        let metadata = EXTENSIONS.contains(&extension).then(|| std::fs::metadata(path).ok())??;
        if !metadata.is_file() || metadata.len() > MAX_SIZE {
            return None;
        }
        let text = std::fs::read_to_string(path).ok()?;
        let is_newer = metadata.modified().is_ok_and(|modified| modified > self.crash);
        Some((text.lines().map(ToOwned::to_owned).collect(), is_newer))
    }
}
