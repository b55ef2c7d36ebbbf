//! A call at an address as recorded in a symbol file: DWARF, breakpad text or the symbol table.

/// A symbol's name as in the file, and its start (svma).
pub(crate) type Symbol = (String, u64);

/// One call at an address. Calls are listed innermost first; all but the last were inlined into the
/// next.
#[derive(Clone, Debug)]
pub(crate) struct DwarfFrame {
    /// The linker name if the compiler recorded one, else the source name.
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
}

/// A call as recorded in the file, with mangled names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The linker name from the compiler, else the name in DWARF or the symbol table.
    pub name: Option<String>,
    /// The symbol's start (svma); `None` for inlined calls.
    pub symbol_address: Option<u64>,
    /// Source file.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
    /// Column, from 1.
    pub column: Option<u32>,
    /// Whether the call was inlined into the next one in the list.
    pub inlined: bool,
}

impl Call {
    /// Creates a call from a DWARF frame, marked as inlined: [`Self::with_symbol`] corrects the
    /// outermost one.
    pub(crate) fn from_dwarf(call: DwarfFrame) -> Self {
        let DwarfFrame { function: name, file, line, column } = call;
        Self { name, symbol_address: None, file, line, column, inlined: true }
    }

    /// Merges the calls of debug information with the symbol. `is_same` returns whether a linker
    /// name belongs to a source name's function
    /// ([`names_same_function`](crate::demangle::names_same_function)).
    pub(crate) fn with_symbol(
        mut frames: Vec<Call>,
        symbol: Option<Symbol>,
        is_same: impl Fn(&str, &str) -> bool,
    ) -> Vec<Call> {
        let symbol_address = symbol.as_ref().map(|&(_, start)| start);
        match (frames.last_mut(), symbol) {
            (Some(outermost), symbol) => {
                outermost.inlined = false;
                outermost.symbol_address = symbol_address;
                let is_better =
                    |name: &str| outermost.name.as_ref().is_none_or(|dwarf| dwarf != name && is_same(name, dwarf));
                if let Some((name, _)) = symbol.filter(|(name, _)| is_better(name)) {
                    outermost.name = Some(name);
                }
            }
            (None, Some((name, start))) => frames.push(Call {
                name: Some(name),
                symbol_address: Some(start),
                file: None,
                line: None,
                column: None,
                inlined: false,
            }),
            (None, None) => {}
        }
        frames
    }
}
