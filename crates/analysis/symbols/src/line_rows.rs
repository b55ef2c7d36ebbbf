//! The rows of a unit's line program as stretches of code.
//!
//! GNU's linkers leave the rows of functions that they dropped (`COMDAT` sections of other units)
//! in the program, starting at address 0. If a dropped function and one that was kept share a
//! sequence, the row before the jump claims everything in between: three megabytes in Debian's
//! `ceph-mon`. The searches of `addr2line`, and of other tools that assume disjoint sequences, then
//! use the wrong one.

use std::ops::Range;

use gimli::{EndianSlice, RunTimeEndian, UnitRef};

type Slice<'a> = EndianSlice<'a, RunTimeEndian>;

/// A row of a line program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) address: u64,
    pub(crate) file: u64,
    /// 0 if there is none.
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// Maximum length of a row's code in a sequence that starts at address 0, in bytes.
///
/// Assembly without lines in between has less.
const MAX_ROW_LENGTH: u64 = 1 << 16;

/// Calls `take` with each stretch of code and its row, in program order. `step` is called before
/// each row; if it returns `None`, this function stops.
pub(crate) fn stretches(
    unit: UnitRef<'_, Slice<'_>>,
    mut step: impl FnMut() -> Option<()>,
    mut take: impl FnMut(Range<u64>, Row),
) -> Option<()> {
    let Some(program) = unit.line_program.clone() else { return Some(()) };
    let mut rows = program.rows();
    let mut last: Option<Row> = None;
    let mut begins_at_zero = false;
    while let Ok(Some((_, row))) = rows.next_row() {
        step()?;
        // If several rows have the same address, the last one applies.
        if let Some(last) = last.filter(|last| last.address != row.address() || row.end_sequence()) {
            let stretch = last.address..row.address();
            if stretch.start < stretch.end && !(begins_at_zero && stretch.end - stretch.start > MAX_ROW_LENGTH) {
                take(stretch, last);
            }
        }
        if last.is_none() {
            begins_at_zero = row.address() == 0;
        }
        last = (!row.end_sequence()).then(|| Row {
            address: row.address(),
            file: row.file_index(),
            line: row.line().map_or(0, std::num::NonZeroU64::get) as u32,
            column: match row.column() {
                gimli::ColumnType::LeftEdge => 0,
                gimli::ColumnType::Column(column) => column.get() as u32,
            },
        });
    }
    Some(())
}

/// The stretches of one unit, for repeated lookups.
#[derive(Debug, Default)]
pub(crate) struct LineRows(Vec<(Range<u64>, Row)>);

/// Maximum number of stretches skipped in search of one that contains an address.
const MAX_OVERLAP: usize = 256;

impl LineRows {
    pub(crate) fn read(unit: UnitRef<'_, Slice<'_>>) -> Self {
        let mut rows = Vec::new();
        stretches(unit, || Some(()), |stretch, row| rows.push((stretch, row)));
        rows.sort_by_key(|(stretch, _)| stretch.start);
        Self(rows)
    }

    /// Returns an address's row: the one of the stretch that starts last, if several contain it.
    pub(crate) fn find(&self, address: u64) -> Option<Row> {
        let before = self.0.partition_point(|(stretch, _)| stretch.start <= address);
        let nearest = self.0.get(..before)?.iter().rev().take(MAX_OVERLAP);
        nearest.into_iter().find(|(stretch, _)| stretch.contains(&address)).map(|(_, row)| *row)
    }
}

/// Returns the path of a file in a unit's line program.
///
/// It is the name, in its folder, in the compilation directory.
pub(crate) fn file_name(unit: UnitRef<'_, Slice<'_>>, index: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let Some(file) = header.file(index) else {
        // Before version 5 file numbers start at 1; 0 stands for no file.
        return (index == 0).then(String::new);
    };
    let mut path = unit.comp_dir.map(|folder| folder.to_string_lossy().into_owned()).unwrap_or_default();
    if file.directory_index() != 0
        && let Some(folder) = file.directory(header)
    {
        push(&mut path, &unit.attr_string(folder).ok()?.to_string_lossy());
    }
    push(&mut path, &unit.attr_string(file.path_name()).ok()?.to_string_lossy());
    Some(path)
}

/// Appends to a path, which may be a Unix or a Windows path.
fn push(path: &mut String, next: &str) {
    let begins_at_slash = |path: &str| path.starts_with('/') || path.get(1..3) == Some(":/");
    let begins_at_backslash = |path: &str| path.starts_with('\\') || path.get(1..3) == Some(":\\");
    if begins_at_slash(next) || begins_at_backslash(next) {
        next.clone_into(path);
        return;
    }
    let separator = if begins_at_backslash(path) { '\\' } else { '/' };
    if !path.is_empty() && !path.ends_with(separator) {
        path.push(separator);
    }
    path.push_str(next);
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests;
