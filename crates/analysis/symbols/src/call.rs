//! A call at an address as a symbol file records it: from DWARF, breakpad text and the symbol table.

/// A symbol's name as the file has it, and where it begins (svma).
pub(crate) type Symbol = (String, u64);

/// One call at an address, the innermost first; all but the last of an address were inlined into the next.
#[derive(Clone, Debug)]
pub(crate) struct DwarfFrame {
    /// The linker name where the compiler gave one, else the source name.
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
}

/// A call as the file has it, names still mangled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The name that the compiler gave the linker; else the one that DWARF or the symbol table has.
    pub name: Option<String>,
    /// Where the symbol begins (svma); `None` for inlined calls.
    pub symbol_address: Option<u64>,
    /// The source file.
    pub file: Option<String>,
    /// From 1.
    pub line: Option<u32>,
    /// From 1.
    pub column: Option<u32>,
    /// The compiler put this call into the next one of the list.
    pub inlined: bool,
}

impl Call {
    /// The call of a DWARF frame, marked as inlined: [`Self::with_symbol`] corrects the outermost one.
    pub(crate) fn from_dwarf(call: DwarfFrame) -> Self {
        let DwarfFrame { function: name, file, line, column } = call;
        Self { name, symbol_address: None, file, line, column, inlined: true }
    }

    /// Merges the calls of debug information with the symbol. `is_same` returns whether a linker name belongs to a source name's
    /// function ([`is_of_source_name`](crate::demangle::is_of_source_name)).
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
