//! Registers in columns.

use super::{Sink, Style};
use crate::model::{Address, Registers};
use std::fmt;

/// Registers in a row.
const COLUMNS: usize = 4;

pub(super) fn write(sink: &mut dyn Sink, registers: &Registers) -> fmt::Result {
    let unnamed = if registers.arch.is_none() { registers.general.as_slice() } else { &[] };
    let unnamed = unnamed.iter().enumerate().map(|(index, value)| (format!("r{index}"), *value));
    let named = registers.named().map(|(name, value)| (name.to_owned(), value));
    let extra = registers.extra.iter().map(|(register, value)| (register.to_string(), *value));
    let all: Vec<(String, u64)> = unnamed.chain(named).chain(extra).collect();
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(6);
    for row in all.chunks(COLUMNS) {
        for (name, value) in row {
            sink.piece(Style::Label, &format!("  {name:>width$} "))?;
            sink.piece(Style::Address, &format!("{:#018x}", Address(*value).0))?;
        }
        sink.piece(Style::Plain, "\n")?;
    }
    Ok(())
}
