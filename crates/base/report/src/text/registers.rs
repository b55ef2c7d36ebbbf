//! Formats registers in columns.

use super::{Sink, Style};
use crate::model::{Address, Registers};
use std::fmt;

/// Maximum number of registers in a row.
const COLUMNS: usize = 4;

/// Writes the registers in lines of at most `line` characters, if given.
pub(super) fn write(sink: &mut dyn Sink, registers: &Registers, line: Option<usize>) -> fmt::Result {
    let unnamed = if registers.arch.is_none() { registers.general.as_slice() } else { &[] };
    let unnamed = unnamed.iter().enumerate().map(|(index, value)| (format!("r{index}"), *value));
    let named = registers.named().map(|(name, value)| (name.to_owned(), value));
    let extra = registers.extra.iter().map(|(register, value)| (register.to_string(), *value));
    let all: Vec<(String, u64)> = unnamed.chain(named).chain(extra).collect();
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(6);
    let columns = line.map_or(COLUMNS, |line| (line / (2 + width + 1 + 18)).clamp(1, COLUMNS));
    for row in all.chunks(columns) {
        for (name, value) in row {
            sink.piece(Style::Label, &format!("  {name:>width$} "))?;
            sink.piece(Style::Address, &format!("{:#018x}", Address(*value).0))?;
        }
        sink.piece(Style::Plain, "\n")?;
    }
    Ok(())
}
