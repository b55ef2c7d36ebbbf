//! The text for a symbolicated frame.

use std::fmt::Write as _;

use coroner_symbols::SymbolFrame;

/// Returns the name to show for a call.
pub(crate) fn function(call: &SymbolFrame) -> &str {
    call.function.as_deref().or(call.raw_name.as_deref()).unwrap_or("???")
}

/// Returns `function + offset (file:line)`, as written by Apple's tools.
///
/// For an inlined call, which has no start address, returns `function [inlined]`.
pub(crate) fn describe(call: &SymbolFrame, offset: u64) -> String {
    let mut text = function(call).to_owned();
    if call.inlined {
        text.push_str(" [inlined]");
    } else if let Some(start) = call.symbol_address {
        let _ = write!(text, " + {}", offset.wrapping_sub(start));
    }
    if let Some(file) = &call.file {
        let name = file.rsplit('/').next().unwrap_or(file);
        let _ = match call.line {
            Some(line) => write!(text, " ({name}:{line})"),
            None => write!(text, " ({name})"),
        };
    }
    text
}
