//! Classifies the differences between two answers.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    ops::Range,
    path::Path,
};

use object::{Object, ObjectSection, ObjectSymbol, SectionIndex};

use super::answers::{Answer, Call};

/// The result of comparing our answer with llvm-symbolizer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    /// llvm-symbolizer has no answer.
    Unanswered,
    /// The same calls with the same names, files and lines.
    Equal,
    /// Equal except for the outermost name, which llvm-symbolizer takes from the symbol table.
    ///
    /// It is `f.cold`, or another one of several folded functions. Ours also returns that symbol,
    /// and names the function by its debug information.
    SymbolTableName,
    /// Equal except for the outermost name, of which the symbol table has two at one address.
    ///
    /// An example is `mmap64` and `__mmap64`.
    Alias,
    /// Equal except for the outermost name, for which llvm-symbolizer returns a label.
    ///
    /// The label is a symbol without a size, in our function.
    Label,
    /// llvm-symbolizer names the preceding symbol, which is in another section.
    ///
    /// It names `_init`, which has no size, for all stubs of the PLT. Ours names the stub, or has
    /// no answer.
    OtherSection,
    /// llvm-symbolizer has the calls, and ours has no answer.
    NothingFound,
    /// Ours lacks a line for a call for which llvm-symbolizer has one.
    LineMissing,
    /// Ours has a line for a call for which llvm-symbolizer has none; everything else is equal.
    LineMore,
    /// Ours has fewer calls.
    ChainShorter,
    /// Ours has more calls.
    ChainLonger,
    /// The function's name differs.
    Name,
    /// An inlined call's name differs.
    InlinedName,
    /// The file differs.
    File,
    /// The line differs.
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

    /// Whether our answer counts as equal to llvm-symbolizer's.
    pub(super) fn is_equal(self) -> bool {
        matches!(
            self,
            Class::Equal | Class::SymbolTableName | Class::Alias | Class::Label | Class::LineMore | Class::OtherSection
        )
    }
}

/// The sections of addresses and symbols.
pub(super) struct Places {
    sections: Vec<(Range<u64>, SectionIndex)>,
    /// Addresses and sections of each symbol name.
    symbols: HashMap<String, Vec<(u64, SectionIndex)>>,
    /// Names of symbols without a size.
    labels: HashSet<String>,
}

impl Places {
    /// Reads the sections and symbols of a file.
    pub(super) fn read(file: &Path) -> anyhow::Result<Places> {
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

    /// Whether all symbols with this name are in other sections than the address.
    fn is_elsewhere(&self, address: u64, name: &str) -> bool {
        let (Some((_, section)), Some(symbols)) =
            (self.sections.iter().find(|(range, _)| range.contains(&address)), self.symbols.get(name))
        else {
            return false;
        };
        symbols.iter().all(|(_, other)| other != section)
    }

    /// Whether two names are those of symbols at one address.
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

/// Normalizes a path with `.` and `..`: one namer returns `a/./b`, the other `a/b`.
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
    /// Disagreements in which another version of llvm-symbolizer agrees with ours.
    pub(super) settled: usize,
}

impl Tally {
    /// Compares all answers. `others` are those of the other versions.
    pub(super) fn compare(
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

    /// The number of those addresses that ours answers.
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
