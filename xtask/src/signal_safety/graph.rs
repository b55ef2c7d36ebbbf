//! Everything that can be reached from an entry point, and the way there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::decode::{self, Reference, Target};
use super::program::{Function, Program, Slot};
use super::rules::{Offence, Rules};

/// One step of a way: a function, and the instruction in it that leads on.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) function: String,
    pub(super) at: u64,
}

/// Something that may not be reached, and one way that it is (a shortest one).
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) offence: Offence,
    /// What is wrong at the end of the way: a function's name, a system call, a call through a register.
    pub(super) what: String,
    pub(super) way: Vec<Step>,
}

/// What is reachable from one entry point.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) functions: BTreeSet<String>,
    pub(super) imports: BTreeSet<String>,
    pub(super) system_calls: BTreeSet<String>,
    /// Functions that call through a pointer, and why they may.
    pub(super) indirect: BTreeMap<String, String>,
    pub(super) thread_locals: BTreeSet<String>,
    pub(super) findings: Vec<Finding>,
}

/// The references of all functions of a program.
#[derive(Debug)]
pub(super) struct Graph<'a> {
    program: &'a Program,
    references: BTreeMap<u64, Vec<Reference>>,
    /// Every address of data that anything refers to: where one object begins, the one before it has ended.
    referenced: BTreeSet<u64>,
}

/// Where a search came from.
#[derive(Clone, Copy, Debug)]
struct Origin {
    function: u64,
    at: u64,
}

impl<'a> Graph<'a> {
    pub(super) fn new(program: &'a Program) -> Graph<'a> {
        let mut references = BTreeMap::new();
        let mut referenced = BTreeSet::new();
        for function in program.functions() {
            let found = decode::references(program, function);
            for reference in &found {
                if let Target::Address(address) | Target::Load(address) = reference.target
                    && !program.is_code(address)
                {
                    referenced.insert(address);
                }
            }
            references.insert(function.start, found);
        }
        for slot in program.slots() {
            if let Slot::Own(address) = slot
                && !program.is_code(*address)
            {
                referenced.insert(*address);
            }
        }
        Graph { program, references, referenced }
    }

    /// Searches everything reachable from a function, breadth first.
    pub(super) fn search(&self, entry: &Function, rules: &Rules) -> Reached {
        let mut search = Search {
            graph: self,
            rules,
            entry: entry.start,
            origins: BTreeMap::new(),
            names: BTreeMap::new(),
            objects: BTreeSet::new(),
            waiting: VecDeque::new(),
            offenders: BTreeSet::new(),
            reached: Reached::default(),
        };
        search.names.insert(entry.start, entry.clone());
        search.waiting.push_back(entry.start);
        search.reached.functions.insert(entry.name.clone());
        while let Some(start) = search.waiting.pop_front() {
            search.visit(start);
        }
        search.reached
    }
}

struct Search<'a> {
    graph: &'a Graph<'a>,
    rules: &'a Rules,
    entry: u64,
    origins: BTreeMap<u64, Origin>,
    names: BTreeMap<u64, Function>,
    objects: BTreeSet<u64>,
    waiting: VecDeque<u64>,
    offenders: BTreeSet<(Offence, String)>,
    reached: Reached,
}

impl Search<'_> {
    fn visit(&mut self, start: u64) {
        let Some(function) = self.names.get(&start).cloned() else { return };
        let references = match self.graph.references.get(&start) {
            Some(references) => references.clone(),
            None => decode::references(self.graph.program, &function),
        };
        if is_linkage_stub(&function) {
            self.stub(start, &references);
            return;
        }
        for reference in references {
            let origin = Origin { function: start, at: reference.at };
            match reference.target {
                Target::Code(to) => self.code(to, origin),
                Target::CodeThrough(slot) => match self.graph.program.slot(slot).cloned() {
                    Some(slot) => self.slot(&slot, origin),
                    None => self.unknown(&function, origin),
                },
                Target::Address(to) if self.graph.program.is_code(to) => self.code(to, origin),
                Target::Address(to) => self.data(to, origin),
                Target::Load(from) => match self.graph.program.slot(from).cloned() {
                    Some(slot) if self.graph.program.is_offset_table(from) => self.slot(&slot, origin),
                    _ => self.data(from, origin),
                },
                Target::Unknown => self.unknown(&function, origin),
                Target::SystemCall(number) => self.system_call(number, origin),
                Target::ThreadLocal => {
                    self.reached.thread_locals.insert(function.name.clone());
                }
            }
        }
    }

    /// A linkage stub jumps to where its slot of the offset table points: whichever way its machine writes that.
    fn stub(&mut self, start: u64, references: &[Reference]) {
        let origin = self.origins.get(&start).copied().unwrap_or(Origin { function: start, at: start });
        let slot = references.iter().find_map(|reference| match reference.target {
            Target::CodeThrough(slot) | Target::Load(slot) => self.graph.program.slot(slot).cloned(),
            _ => None,
        });
        match slot {
            Some(slot) => self.slot(&slot, origin),
            None => self.find(Offence::Nameless, format!("a linkage stub at {start:#x}"), origin),
        }
    }

    fn code(&mut self, address: u64, origin: Origin) {
        let program = self.graph.program;
        let Some(function) = program.function_at(address).cloned().or_else(|| program.nameless_code_at(address)) else {
            self.find(Offence::Nameless, format!("code at {address:#x}"), origin);
            return;
        };
        if self.names.contains_key(&function.start) {
            return;
        }
        let is_stub = is_linkage_stub(&function);
        if self.rules.is_landing(&function.name) {
            return;
        }
        if !is_stub && let Err(offence) = self.rules.function(&function.name) {
            self.find(offence, function.name, origin);
            return;
        }
        if !is_stub {
            self.reached.functions.insert(function.name.clone());
        }
        self.origins.insert(function.start, origin);
        self.waiting.push_back(function.start);
        self.names.insert(function.start, function);
    }

    fn slot(&mut self, slot: &Slot, origin: Origin) {
        match slot {
            Slot::Own(address) if self.graph.program.is_code(*address) => self.code(*address, origin),
            Slot::Own(address) => self.data(*address, origin),
            Slot::Import(name) if self.rules.is_landing(name) => {}
            Slot::Import(name) => {
                self.reached.imports.insert(name.clone());
                match self.rules.import(name) {
                    Err(offence) => self.find(offence, name.clone(), origin),
                    Ok(()) if !self.graph.program.binds_at_start => {
                        self.find(Offence::LazyBinding, name.clone(), origin);
                    }
                    Ok(()) => {}
                }
            }
            Slot::LazyThreadLocal => self.find(Offence::LazyThreadLocal, "a thread-local variable".to_owned(), origin),
        }
    }

    /// All that the pointers of a data object lead to, and those of objects that it points to.
    fn data(&mut self, address: u64, origin: Origin) {
        if !self.graph.program.is_data(address) || !self.objects.insert(address) {
            return;
        }
        if self.graph.program.is_offset_table(address) {
            if let Some(slot) = self.graph.program.slot(address).cloned() {
                self.slot(&slot, origin);
            }
            return;
        }
        for slot in self.graph.program.slots_of_object(address, &self.graph.referenced) {
            self.slot(&slot, origin);
        }
    }

    fn unknown(&mut self, function: &Function, origin: Origin) {
        match self.rules.indirect(&function.name) {
            Some(reason) => {
                self.reached.indirect.insert(function.name.clone(), reason.to_owned());
            }
            None => self.find(Offence::UnknownCall, format!("a call through a pointer in {}", function.name), origin),
        }
    }

    fn system_call(&mut self, number: Option<u32>, origin: Origin) {
        let name = number.and_then(|number| self.rules.system_call(self.graph.program.machine, number));
        match (name, number) {
            (Some(name), _) => {
                self.reached.system_calls.insert(name.to_owned());
            }
            (None, Some(number)) => self.find(Offence::SystemCall, format!("system call {number}"), origin),
            (None, None) => {
                let place = self.names.get(&origin.function).map(|function| function.name.clone()).unwrap_or_default();
                self.find(Offence::SystemCall, format!("a system call of unknown number in {place}"), origin);
            }
        }
    }

    fn find(&mut self, offence: Offence, what: String, origin: Origin) {
        if !self.offenders.insert((offence, what.clone())) {
            return;
        }
        let mut way = Vec::new();
        let mut at = origin;
        loop {
            let function = self.names.get(&at.function).map(|function| function.name.clone()).unwrap_or_default();
            way.push(Step { function, at: at.at });
            if at.function == self.entry {
                break;
            }
            match self.origins.get(&at.function) {
                Some(origin) => at = *origin,
                None => break,
            }
        }
        way.reverse();
        self.reached.findings.push(Finding { offence, what, way });
    }
}

/// Code of the linker's own making.
fn is_linkage_stub(function: &Function) -> bool {
    function.name.starts_with("linkage stub")
}
