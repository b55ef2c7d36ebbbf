//! Breakpad's text symbols: `MODULE`, `INFO CODE_ID`, `FILE`, `FUNC` with its lines and `INLINE`s,
//! `PUBLIC`.
//!
//! Source of the format: breakpad `docs/symbol_files.md`. Addresses are relative to the image's
//! first byte. Function names have been demangled by the dumper. `STACK` records are not needed and
//! skipped.

use std::collections::HashMap;

use crate::{
    call::Call,
    debug_id::DebugId,
    error::Malformed,
    file_kind::{Arch, FileKind},
    symbol_table::{BindingRank, SymbolSource, TableBuilder},
};

/// The image's identity, from the first lines.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) arch: Arch,
    /// The whole build id or UUID, if the file contains it.
    pub(crate) debug_id: Option<DebugId>,
    /// Breakpad's own id, upper-case, with the age at its end.
    pub(crate) breakpad_id: String,
    /// The image's format, derived from the operating system.
    pub(crate) image_kind: FileKind,
}

/// Parses the `MODULE` line and, if it is next, the `INFO CODE_ID` line.
pub(crate) fn module(bytes: &[u8]) -> Result<Module, Malformed> {
    let mut lines = Lines { rest: bytes, offset: 0 };
    let malformed = |what: &str| Malformed::new(0, what);
    let (_, first) = lines.next().ok_or_else(|| malformed("the file is empty"))?;
    let first = std::str::from_utf8(first).map_err(|_| malformed("the MODULE line is not UTF-8"))?;
    let mut words = first.splitn(5, ' ').skip(1);
    let (Some(system), Some(arch), Some(id), Some(_name)) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(malformed("the MODULE line lacks an operating system, processor, id or name"));
    };
    if id.len() < 33 || id.len() > 40 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed("the id in the MODULE line is not 33 to 40 hexadecimal digits"));
    }
    // Mozilla's dump_syms writes `Mac`, Breakpad's `mac`.
    let image_kind = match system.to_ascii_lowercase().as_str() {
        "mac" | "ios" => FileKind::MachO,
        "windows" => FileKind::Pe,
        _ => FileKind::Elf,
    };
    let mut debug_id = None;
    if let Some((_, line)) = lines.next()
        && let Some(code) = line.strip_prefix(b"INFO CODE_ID ")
    {
        let code = code.split(|&byte| byte == b' ').next().unwrap_or_default();
        debug_id = std::str::from_utf8(code).ok().and_then(|code| code.parse().ok());
    }
    if image_kind == FileKind::Pe {
        // A PE file's code id is only part of the id used here.
        debug_id = None;
    }
    if debug_id.is_none() && image_kind == FileKind::MachO {
        // The digits before the age are the UUID's bytes in order.
        debug_id = id[..32].parse().ok();
    }
    let arch = match arch {
        "x86" => Arch::X86,
        "x86_64" | "x86_64h" => Arch::X86_64,
        "arm" | "armv7" | "armv7s" => Arch::Arm,
        "arm64" | "arm64e" => Arch::Aarch64,
        _ => Arch::Other,
    };
    Ok(Module { arch, debug_id, breakpad_id: id.to_ascii_uppercase(), image_kind })
}

/// A range of the file's text.
type Text = std::ops::Range<usize>;

#[derive(Debug)]
struct Function {
    start: u64,
    size: u64,
    name: Text,
    lines: std::ops::Range<usize>,
    inlines: std::ops::Range<usize>,
}

#[derive(Debug)]
struct Line {
    start: u64,
    size: u64,
    number: u32,
    file: u32,
}

/// One range of an inlined call.
#[derive(Debug)]
struct Inline {
    depth: u32,
    start: u64,
    size: u64,
    call_line: u32,
    call_file: u32,
    origin: u32,
}

/// A parsed file; names are references to its text.
#[derive(Debug, Default)]
pub(crate) struct Breakpad {
    files: HashMap<u32, Text>,
    origins: HashMap<u32, Text>,
    /// Sorted by address.
    functions: Vec<Function>,
    lines: Vec<Line>,
    inlines: Vec<Inline>,
    publics: Vec<(u64, Text)>,
    /// The first malformed lines; all malformed lines are skipped.
    pub(crate) problems: Vec<Malformed>,
}

/// Maximum number of malformed lines that are reported.
const MAX_PROBLEMS: usize = 8;

impl Breakpad {
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let mut parsed = Self::default();
        for (offset, line) in (Lines { rest: bytes, offset: 0 }) {
            if parsed.record(offset, line).is_none() && parsed.problems.len() < MAX_PROBLEMS {
                let shown = String::from_utf8_lossy(&line[..line.len().min(60)]).into_owned();
                parsed.problems.push(Malformed::new(offset as u64, format!("not a breakpad record: {shown:?}")));
            }
        }
        for function in &parsed.functions {
            parsed.lines[function.lines.clone()].sort_by_key(|line| line.start);
        }
        parsed.functions.sort_by_key(|function| function.start);
        parsed
    }

    /// Parses one line; `None` if it is malformed.
    fn record(&mut self, offset: usize, line: &[u8]) -> Option<()> {
        let mut words = Words { line, at: 0 };
        let first = words.next_word()?;
        match first {
            b"FUNC" => {
                let (start, size, _parameters) = (words.address()?, words.hex()?, words.hex()?);
                let name = words.remainder(offset);
                let (lines, inlines) = (self.lines.len(), self.inlines.len());
                self.functions.push(Function { start, size, name, lines: lines..lines, inlines: inlines..inlines });
            }
            b"PUBLIC" => {
                let (start, _parameters) = (words.address()?, words.hex()?);
                self.publics.push((start, words.remainder(offset)));
            }
            b"FILE" => {
                let number = words.decimal()?;
                self.files.insert(number, words.remainder(offset));
            }
            b"INLINE_ORIGIN" => {
                let number = words.decimal()?;
                self.origins.insert(number, words.remainder(offset));
            }
            b"INLINE" => {
                let (depth, call_line, call_file, origin) =
                    (words.decimal()?, words.decimal()?, words.decimal()?, words.decimal()?);
                let function = self.functions.last_mut()?;
                while words.more() {
                    let (start, size) = (words.hex()?, words.hex()?);
                    self.inlines.push(Inline { depth, start, size, call_line, call_file, origin });
                    function.inlines.end = self.inlines.len();
                }
            }
            b"MODULE" | b"INFO" | b"STACK" => {}
            // `address size line file`, which belongs to the preceding function.
            address => {
                let start = parse_hex(address)?;
                let (size, number, file) = (words.hex()?, words.decimal()?, words.decimal()?);
                let function = self.functions.last_mut()?;
                self.lines.push(Line { start, size, number, file });
                function.lines.end = self.lines.len();
            }
        }
        Some(())
    }

    pub(crate) fn has_lines(&self) -> bool {
        !self.lines.is_empty()
    }

    pub(crate) fn collect(&self, builder: &mut TableBuilder, text: &[u8]) {
        let mut add = |start, size, name: &Text, rank| {
            if let Some(name) = builder.make_name(text.get(name.clone()).unwrap_or_default()) {
                builder.add(start, size, SymbolSource::Breakpad, rank, name);
            }
        };
        for function in &self.functions {
            add(function.start, function.size, &function.name, BindingRank::Global);
        }
        for (start, name) in &self.publics {
            add(*start, 0, name, BindingRank::Label);
        }
        builder.count(SymbolSource::Breakpad, self.functions.len() + self.publics.len());
    }

    /// Returns the calls at an address, innermost first; empty if no function contains it.
    pub(crate) fn frames(&self, text: &[u8], address: u64) -> Vec<Call> {
        let within = |start: u64, size: u64| address >= start && address - start < size;
        let string = |part: Option<&Text>| {
            part.and_then(|part| text.get(part.clone())).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        let behind = self.functions.partition_point(|function| function.start <= address);
        let Some(function) = behind.checked_sub(1).map(|index| &self.functions[index]) else { return Vec::new() };
        if !within(function.start, function.size) {
            return Vec::new();
        }
        let lines = &self.lines[function.lines.clone()];
        let behind = lines.partition_point(|line| line.start <= address);
        let at = behind.checked_sub(1).map(|index| &lines[index]).filter(|line| within(line.start, line.size));
        // The location of the next frame: first the line itself, then the call site of each inlined
        // function.
        let mut file = at.map(|line| line.file);
        let mut line = at.map(|line| line.number);
        let mut calls: Vec<&Inline> =
            self.inlines[function.inlines.clone()].iter().filter(|inline| within(inline.start, inline.size)).collect();
        calls.sort_by_key(|inline| std::cmp::Reverse(inline.depth));
        calls.dedup_by_key(|inline| inline.depth);
        let mut frames = Vec::with_capacity(calls.len() + 1);
        let frame = |name: Option<&Text>, file: Option<u32>, line: Option<u32>| Call {
            name: string(name),
            symbol_address: None,
            file: string(file.and_then(|number| self.files.get(&number))),
            line: line.filter(|&line| line != 0),
            column: None,
            inlined: true,
        };
        for call in calls {
            frames.push(frame(self.origins.get(&call.origin), file, line));
            (file, line) = (Some(call.call_file), Some(call.call_line));
        }
        frames.push(frame(Some(&function.name), file, line));
        frames
    }
}

/// Iterates over the lines of a text with their offsets, without line ends and empty lines.
struct Lines<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (usize, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let end = self.rest.iter().position(|&byte| byte == b'\n').unwrap_or(self.rest.len());
            let (line, offset) = (&self.rest[..end], self.offset);
            let next = (end + 1).min(self.rest.len());
            self.rest = &self.rest[next..];
            self.offset += next;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty() {
                return Some((offset, line));
            }
        }
        None
    }
}

struct Words<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Words<'a> {
    fn next_word(&mut self) -> Option<&'a [u8]> {
        let rest = self.line.get(self.at..)?;
        let skip = rest.iter().take_while(|&&byte| byte == b' ').count();
        let rest = &rest[skip..];
        let length = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        self.at += skip + length;
        (length > 0).then(|| &rest[..length])
    }

    fn more(&self) -> bool {
        self.line[self.at.min(self.line.len())..].iter().any(|&byte| byte != b' ')
    }

    /// Parses a hexadecimal address, after the `m` that marks a function whose code several symbols
    /// share.
    fn address(&mut self) -> Option<u64> {
        match self.next_word()? {
            b"m" => self.hex(),
            word => parse_hex(word),
        }
    }

    fn hex(&mut self) -> Option<u64> {
        self.next_word().and_then(parse_hex)
    }

    fn decimal(&mut self) -> Option<u32> {
        std::str::from_utf8(self.next_word()?).ok()?.parse().ok()
    }

    /// Returns the rest of the line, including spaces, as a range of the file.
    ///
    /// The line starts at the byte `offset`.
    fn remainder(&self, offset: usize) -> Text {
        let start = (self.at + 1).min(self.line.len());
        offset + start..offset + self.line.len()
    }
}

fn parse_hex(word: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(word).ok()?;
    // `from_str_radix` would accept a sign.
    word.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(word, 16).ok()).flatten()
}
