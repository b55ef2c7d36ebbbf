//! Classifies how two answers differ.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    ops::Range,
    path::Path,
};

use object::{Object, ObjectSection, ObjectSymbol, SectionIndex};

use super::answers::{Answer, Call};

/// How an answer of ours compares with one of llvm-symbolizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// llvm-symbolizer says nothing.
    Unanswered,
    /// The same calls with the same names, files and lines.
    Equal,
    /// The same but for the outermost name, which llvm-symbolizer takes from the symbol table: `f.cold`, another one of several functions
    /// that were folded into one. Ours says that symbol, too, and names the function by its debug information.
    SymbolTableName,
    /// The same but for the outermost name, where the symbol table has two of them at one address (`mmap64` and `__mmap64`).
    Alias,
    /// The same but for the outermost name: llvm-symbolizer names a symbol without a size, a label within the function that ours names.
    Label,
    /// llvm-symbolizer names a symbol of another section, by which it means the one that begins before: `_init`, which has no size, for all
    /// stubs of the PLT. Ours names the stub, or says nothing.
    OtherSection,
    /// llvm-symbolizer has the calls, and ours says nothing at all.
    NothingFound,
    /// Ours has no line for a call that llvm-symbolizer has a line for.
    LineMissing,
    /// Ours has a line for a call for which llvm-symbolizer has none, all else is the same.
    LineMore,
    /// Ours has fewer calls.
    ChainShorter,
    /// Ours has more calls.
    ChainLonger,
    /// The name of a function.
    Name,
    /// The name of an inlined call.
    InlinedName,
    /// The file.
    File,
    /// The line.
    Line,
}

impl Class {
    /// The printed name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Class::Unanswered => "no answer from llvm",
            Class::Equal => "equal",
            Class::SymbolTableName => "symbol table's name",
            Class::Alias => "another name of the same symbol",
            Class::Label => "label within the function",
            Class::OtherSection => "llvm names a symbol of another section",
            Class::NothingFound => "nothing found",
            Class::LineMissing => "line missing",
            Class::LineMore => "line that llvm lacks",
            Class::ChainShorter => "fewer inlined calls",
            Class::ChainLonger => "more inlined calls",
            Class::Name => "name",
            Class::InlinedName => "name of an inlined call",
            Class::File => "file",
            Class::Line => "line",
        }
    }

    /// Whether ours and llvm-symbolizer say the same.
    pub(super) fn is_equal(self) -> bool {
        matches!(
            self,
            Class::Equal | Class::SymbolTableName | Class::Alias | Class::Label | Class::LineMore | Class::OtherSection
        )
    }
}

/// In which sections addresses and symbols are.
pub(super) struct Places {
    sections: Vec<(Range<u64>, SectionIndex)>,
    /// Addresses and sections of each symbol name.
    symbols: HashMap<String, Vec<(u64, SectionIndex)>>,
    /// Names of symbols without a size.
    labels: HashSet<String>,
}

impl Places {
    /// Reads the sections and symbols of a file.
    pub(super) fn of(file: &Path) -> anyhow::Result<Places> {
        let bytes = fs::read(file)?;
        let parsed = object::File::parse(&*bytes)?;
        let range = |section: &object::Section<'_, '_>| section.address()..section.address() + section.size();
        let mut symbols: HashMap<String, Vec<(u64, SectionIndex)>> = HashMap::new();
        let mut labels = HashSet::new();
        for symbol in parsed.symbols().chain(parsed.dynamic_symbols()) {
            if let (Ok(name), Some(section)) = (symbol.name(), symbol.section_index()) {
                if symbol.size() == 0 && parsed.format() == object::BinaryFormat::Elf {
                    labels.insert(name.to_owned());
                }
                symbols.entry(name.into()).or_default().push((symbol.address(), section));
            }
        }
        Ok(Places {
            sections: parsed.sections().map(|section| (range(&section), section.index())).collect(),
            symbols,
            labels,
        })
    }

    /// Whether a name is only that of symbols in other sections than the address is in.
    fn is_elsewhere(&self, address: u64, name: &str) -> bool {
        let (Some((_, section)), Some(symbols)) =
            (self.sections.iter().find(|(range, _)| range.contains(&address)), self.symbols.get(name))
        else {
            return false;
        };
        symbols.iter().all(|(_, other)| other != section)
    }

    /// Whether two names are of symbols at one address.
    fn are_aliases(&self, name: &str, other: &str) -> bool {
        let at = |name| self.symbols.get(name).map_or(&[][..], Vec::as_slice);
        at(name).iter().any(|place| at(other).contains(place))
    }
}

/// Compares one answer.
pub(super) fn class(places: &Places, address: u64, ours: &Answer, llvm: &Answer) -> Class {
    if !llvm.says_something() {
        return Class::Unanswered;
    }
    if let [Call { name: Some(name), line: 0, .. }] = &llvm.calls[..]
        && ours.calls.len() <= 1
        && places.is_elsewhere(address, name)
    {
        return Class::OtherSection;
    }
    if !ours.says_something() {
        return Class::NothingFound;
    }
    match ours.calls.len().cmp(&llvm.calls.len()) {
        std::cmp::Ordering::Less => return Class::ChainShorter,
        std::cmp::Ordering::Greater => return Class::ChainLonger,
        std::cmp::Ordering::Equal => {}
    }
    let outermost = ours.calls.len() - 1;
    let mut class = Class::Equal;
    for (index, (our, their)) in ours.calls.iter().zip(&llvm.calls).enumerate() {
        match line_class(our, their) {
            Some(Class::LineMore) => class = Class::LineMore,
            Some(different) => return different,
            None => {}
        }
        if their.name.is_none() || our.name == their.name {
            continue;
        }
        if index != outermost {
            return Class::InlinedName;
        }
        let symbol = ours.symbol.as_deref().zip(their.name.as_deref());
        class = match symbol {
            Some((ours, theirs)) if ours == theirs => Class::SymbolTableName,
            Some((ours, theirs)) if places.are_aliases(ours, theirs) => Class::Alias,
            Some((_, theirs)) if places.labels.contains(theirs) => Class::Label,
            _ => return Class::Name,
        };
    }
    class
}

fn line_class(our: &Call, their: &Call) -> Option<Class> {
    match (our.line, their.line) {
        (0, 0) => None,
        (0, _) => Some(Class::LineMissing),
        (_, 0) => Some(Class::LineMore),
        (ours, theirs) if ours != theirs => Some(Class::Line),
        _ if normal(our) != normal(their) => Some(Class::File),
        _ => None,
    }
}

/// The path without `.` and what `..` takes back: one says `a/./b`, the other `a/b`.
fn normal(call: &Call) -> Option<Vec<&str>> {
    let mut parts: Vec<&str> = Vec::new();
    for part in call.file.as_deref()?.split('/') {
        match part {
            "." | "" => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    Some(parts)
}

/// The number of answers in each class, with examples of disagreements.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counts: BTreeMap<Class, usize>,
    pub(super) examples: BTreeMap<Class, Vec<String>>,
    /// Disagreements in which another version of llvm-symbolizer says what ours says.
    pub(super) settled: usize,
}

impl Tally {
    /// Compares all answers. `others` are those of the other versions.
    pub(super) fn of(
        places: &Places,
        addresses: &[u64],
        ours: &[Answer],
        llvm: &[Answer],
        others: &[&[Answer]],
        examples: usize,
    ) -> Tally {
        let mut tally = Tally::default();
        for (index, ((address, our), their)) in addresses.iter().zip(ours).zip(llvm).enumerate() {
            let class = class(places, *address, our, their);
            *tally.counts.entry(class).or_default() += 1;
            if class.is_equal() || class == Class::Unanswered {
                continue;
            }
            let is_settled = |other: &&[Answer]| {
                other.get(index).is_some_and(|other| self::class(places, *address, our, other).is_equal())
            };
            if others.iter().any(is_settled) {
                tally.settled += 1;
                continue;
            }
            let shown = tally.examples.entry(class).or_default();
            if shown.len() < examples {
                shown.push(format!("{address:#x}\n      ours {}\n      llvm {}", text(our), text(their)));
            }
        }
        tally
    }

    pub(super) fn count(&self, class: Class) -> usize {
        self.counts.get(&class).copied().unwrap_or(0)
    }

    /// The number of answers in each class that is a disagreement.
    pub(super) fn disagreements(&self) -> impl Iterator<Item = (Class, usize)> {
        let all = self.counts.iter().map(|(class, count)| (*class, *count));
        all.filter(|(class, _)| !class.is_equal() && *class != Class::Unanswered)
    }

    /// The number of addresses that llvm-symbolizer answers.
    pub(super) fn answered(&self) -> usize {
        self.counts.values().sum::<usize>() - self.count(Class::Unanswered)
    }

    /// The number of those that ours answers.
    pub(super) fn answered_by_ours(&self) -> usize {
        self.answered() - self.count(Class::NothingFound)
    }

    /// The number of answers equal to this or the other version's.
    pub(super) fn equal(&self) -> usize {
        let equal: usize = self.counts.iter().filter(|(class, _)| class.is_equal()).map(|(_, count)| count).sum();
        equal + self.settled
    }
}

fn text(answer: &Answer) -> String {
    let call = |call: &Call| {
        let (name, file) = (call.name.as_deref().unwrap_or("?"), call.file.as_deref().unwrap_or("?"));
        format!("{name} {file}:{}", call.line)
    };
    let calls: Vec<String> = answer.calls.iter().map(call).collect();
    let symbol = answer.symbol.as_ref().map(|symbol| format!("  (symbol {symbol})"));
    format!("{}{}", calls.join(" < "), symbol.unwrap_or_default())
}
