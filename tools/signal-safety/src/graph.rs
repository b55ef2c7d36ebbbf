//! The code reachable from an entry point, and the path to each finding.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use std::cell::RefCell;
use std::rc::Rc;

use super::decode::operation::{Convention, operations};
use super::decode::{self, Reference, Target};
use super::flow::{Facts, Flows, Value};
use super::program::{Function, Program, Slot};
use super::rules::{Offence, Rules};
use super::spin;
use super::stack::{self, Bound, Calls};

/// A step in a path: a function, and the instruction in it that leads to the next.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) function: String,
    pub(super) at: u64,
}

/// A reachable offence, and a shortest path to it.
#[derive(Clone, Debug)]
pub(super) struct Finding {
    pub(super) offence: Offence,
    /// The offence at the end of the path: a function, a system call, a call through a register.
    pub(super) what: String,
    pub(super) path: Vec<Step>,
}

/// The code reachable from one entry point.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) functions: BTreeSet<String>,
    pub(super) imports: BTreeSet<String>,
    pub(super) system_calls: BTreeSet<String>,
    /// Functions that call through a pointer, and why they are allowed to.
    pub(super) indirect: BTreeMap<String, String>,
    pub(super) thread_locals: BTreeSet<String>,
    pub(super) stacks: Vec<Bound>,
    pub(super) findings: Vec<Finding>,
}

/// A call's use of the stack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Edge {
    /// Bytes of the caller's frame, including the return address.
    pub(super) depth: i64,
    pub(super) callee: Callee,
}

/// The callee of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    /// A function in the program, by its address.
    Function(u64),
    /// A function in another library.
    Import,
}

/// The analysis of a function's code.
#[derive(Debug)]
struct Code {
    facts: Facts,
    /// Loops that wait for another thread without a bound.
    waits: Vec<u64>,
}

/// The references of all functions of a program.
#[derive(Debug)]
pub(super) struct Graph<'a> {
    program: &'a Program,
    references: BTreeMap<u64, Vec<Reference>>,
    /// All referenced data addresses: an object ends where the next referenced one begins.
    referenced: BTreeSet<u64>,
    /// The analyses so far.
    codes: RefCell<BTreeMap<u64, Rc<Code>>>,
}

/// A function that calls one of its arguments.
///
/// It is a listed assembly routine, or a caller that passes its own argument to one.
#[derive(Clone, Copy, Debug)]
struct Through {
    argument: usize,
    /// Whether it calls the argument on another stack.
    switches: bool,
    /// Bytes of stack from its entry to the argument's, if on the same stack.
    depth: i64,
}

/// The origin of a search step.
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
        Graph { program, references, referenced, codes: RefCell::default() }
    }

    fn code_of(&self, function: &Function) -> Rc<Code> {
        if let Some(code) = self.codes.borrow().get(&function.start) {
            return Rc::clone(code);
        }
        let flows = Flows::new(operations(self.program, function));
        let mut callee = |to: u64| match self.function_at(to) {
            Some(callee) if !is_linkage_stub(&callee) => {
                let name_at = |to| self.function_at(to).map(|function| function.name);
                spin::classify(&callee.name, &operations(self.program, &callee), &name_at)
            }
            _ => spin::Callee::Other,
        };
        let waits = spin::waits(&flows, &mut callee);
        let code = Rc::new(Code { facts: flows.facts(self.program.machine), waits });
        self.codes.borrow_mut().insert(function.start, Rc::clone(&code));
        code
    }

    /// Returns the function or linkage stub at an address.
    fn function_at(&self, address: u64) -> Option<Function> {
        self.program.function_at(address).cloned().or_else(|| self.program.nameless_code_at(address))
    }

    /// Returns the functions that call one of their arguments, by address.
    fn throughs(&self, rules: &Rules) -> BTreeMap<u64, Through> {
        let return_address = Convention::for_machine(self.program.machine).return_address;
        let mut throughs = BTreeMap::new();
        for function in self.program.functions() {
            if let Some((argument, switches)) = rules.through(&function.name) {
                let depth = self.code_of(function).facts.deepest + return_address;
                throughs.insert(function.start, Through { argument, switches, depth });
            }
        }
        loop {
            let mut more = BTreeMap::new();
            for (start, references) in &self.references {
                for reference in references {
                    let to = match reference.target {
                        Target::Code(to) => to,
                        Target::CodeThrough(slot) if self.program.is_offset_table(slot) => {
                            match self.program.slot(slot) {
                                Some(Slot::Own(to)) => *to,
                                _ => continue,
                            }
                        }
                        _ => continue,
                    };
                    let (Some(inner), false) = (throughs.get(&to), throughs.contains_key(start)) else { continue };
                    let Some(function) = self.program.function_at(*start) else { continue };
                    let code = self.code_of(function);
                    if let Some(Value::Argument(argument)) = code.facts.argument(reference.at, inner.argument) {
                        let depth =
                            code.facts.depths.get(&reference.at).copied().unwrap_or(code.facts.deepest) + inner.depth;
                        more.insert(*start, Through { argument, switches: inner.switches, depth });
                    }
                }
            }
            if more.is_empty() {
                return throughs;
            }
            throughs.extend(more);
        }
    }

    /// Searches all code reachable from a function, breadth first.
    ///
    /// Bounds the stacks that it uses if `bounds_stacks` is set.
    pub(super) fn search(&self, entry: &Function, rules: &Rules, bounds_stacks: bool) -> Reached {
        let mut search = Search {
            graph: self,
            rules,
            bounds_stacks,
            throughs: self.throughs(rules),
            entry: entry.start,
            origins: BTreeMap::new(),
            names: BTreeMap::new(),
            objects: BTreeSet::new(),
            waiting: VecDeque::new(),
            offenders: BTreeSet::new(),
            reached: Reached::default(),
            calls: Calls::default(),
            roots: BTreeSet::from([entry.start]),
        };
        search.names.insert(entry.start, entry.clone());
        search.waiting.push_back(entry.start);
        search.reached.functions.insert(entry.name.clone());
        while let Some(start) = search.waiting.pop_front() {
            search.visit(start);
        }
        if bounds_stacks {
            search.bound_stacks();
        }
        search.reached
    }
}

struct Search<'a> {
    graph: &'a Graph<'a>,
    rules: &'a Rules,
    bounds_stacks: bool,
    throughs: BTreeMap<u64, Through>,
    entry: u64,
    origins: BTreeMap<u64, Origin>,
    names: BTreeMap<u64, Function>,
    objects: BTreeSet<u64>,
    waiting: VecDeque<u64>,
    offenders: BTreeSet<(Offence, String)>,
    reached: Reached,
    calls: Calls,
    /// Functions that are entered with their own stack.
    roots: BTreeSet<u64>,
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
        let code = self.graph.code_of(&function);
        let facts = &code.facts;
        self.calls.frames.insert(start, (function.name.clone(), facts.deepest));
        let through = self.throughs.get(&start).copied();
        if let Some(at) = facts.unknown_depth
            && self.bounds_stacks
            && through.is_none_or(|through| !through.switches)
        {
            self.find(Offence::UnknownFrame, function.name.clone(), Origin { function: start, at });
        }
        if let Some(at) = code.waits.first()
            && !self.rules.spin(&function.name)
        {
            self.find(Offence::Spin, function.name.clone(), Origin { function: start, at: *at });
        }
        for reference in references {
            let origin = Origin { function: start, at: reference.at };
            match reference.target {
                Target::Code(to) => self.call(to, &function, facts, origin),
                Target::CodeThrough(slot) => self.call_through(slot, &function, facts, origin),
                Target::Address(to) if self.graph.program.is_code(to) => self.code(to, origin),
                Target::Address(to) => self.data(to, origin),
                Target::Load(from) => match self.graph.program.slot(from).cloned() {
                    Some(slot) if self.graph.program.is_offset_table(from) => self.slot(&slot, origin),
                    _ => self.data(from, origin),
                },
                Target::Unknown => match facts.through.get(&reference.at) {
                    Some(Value::Address(to)) => self.call(*to, &function, facts, origin),
                    Some(Value::Loaded(slot)) => self.call_through(*slot, &function, facts, origin),
                    _ if through.is_some() => {}
                    _ => self.unknown(&function, origin),
                },
                Target::SystemCall(number) => self.system_call(number, origin),
                Target::ThreadLocal => {
                    self.reached.thread_locals.insert(function.name.clone());
                }
            }
        }
    }

    /// Handles a call or jump to the address stored in a slot.
    fn call_through(&mut self, slot: u64, caller: &Function, facts: &Facts, origin: Origin) {
        match self.graph.program.slot(slot).cloned() {
            Some(Slot::Own(to)) if self.graph.program.is_offset_table(slot) => self.call(to, caller, facts, origin),
            Some(import @ Slot::Import(_)) => {
                self.add_edge(Callee::Import, facts, origin);
                self.slot(&import, origin);
            }
            Some(slot @ Slot::LazyThreadLocal) => self.slot(&slot, origin),
            // A variable: by now it may contain another address than when the program was loaded.
            Some(Slot::Own(_)) | None => self.unknown(caller, origin),
        }
    }

    /// Handles a call or jump to a function.
    fn call(&mut self, to: u64, caller: &Function, facts: &Facts, origin: Origin) {
        self.code(to, origin);
        let Some(callee) = self.graph.function_at(to) else { return };
        // Rejected functions and landing pads are not in `names`: they are not followed.
        if self.names.contains_key(&callee.start) {
            self.add_edge(Callee::Function(callee.start), facts, origin);
        }
        let Some(through) = self.throughs.get(&callee.start).copied() else { return };
        let program = self.graph.program;
        let called = match facts.argument(origin.at, through.argument) {
            Some(Value::Address(address)) if program.is_code(address) => Some(address),
            Some(Value::Loaded(slot)) if program.is_offset_table(slot) => match program.slot(slot) {
                Some(Slot::Own(address)) => Some(*address),
                _ => None,
            },
            // It passes on its own argument, which its caller determines.
            Some(Value::Argument(_)) if self.throughs.contains_key(&caller.start) => return,
            _ => None,
        };
        let Some(called) = called else {
            let what = format!("what {} gives {} to call", caller.name, callee.name);
            self.find(Offence::UnknownCall, what, origin);
            return;
        };
        self.code(called, origin);
        let Some(called) = self.graph.function_at(called) else { return };
        if through.switches {
            self.roots.insert(called.start);
        } else {
            let depth = facts.depths.get(&origin.at).copied().unwrap_or(facts.deepest) + through.depth;
            let edge = Edge { depth, callee: Callee::Function(called.start) };
            self.calls.edges.entry(origin.function).or_default().push(edge);
        }
    }

    fn add_edge(&mut self, callee: Callee, facts: &Facts, origin: Origin) {
        let depth = facts.depths.get(&origin.at).copied().unwrap_or(facts.deepest);
        self.calls.edges.entry(origin.function).or_default().push(Edge { depth, callee });
    }

    /// Compares the bound of each entered stack with its size.
    fn bound_stacks(&mut self) {
        let calls = std::mem::take(&mut self.calls);
        let mut search = stack::Search::new(&calls, self.rules);
        for root in self.roots.clone() {
            let name = self.names.get(&root).map(|function| function.name.clone()).unwrap_or_default();
            let origin = self.origins.get(&root).copied().unwrap_or(Origin { function: root, at: root });
            let Some((size, stack)) = self.rules.stack(&name) else {
                self.find(Offence::UnknownStack, name, origin);
                continue;
            };
            let (bytes, path) = search.bound(root);
            let bound = Bound { root: name.clone(), bytes, size, stack: stack.to_owned(), path };
            if !bound.fits() {
                self.find(Offence::StackTooDeep, format!("{name}: {bytes} of {size} bytes"), origin);
            }
            self.reached.stacks.push(bound);
        }
        for cycle in std::mem::take(&mut search.recursions) {
            let names: Vec<&str> = cycle.iter().filter_map(|f| Some(self.names.get(f)?.name.as_str())).collect();
            let what = names.join(" -> ");
            let function = cycle[cycle.len() - 1];
            self.find(Offence::Recursion, what, Origin { function, at: function });
        }
    }

    /// Follows a linkage stub, which jumps to the address in its slot of the global offset table.
    fn stub(&mut self, start: u64, references: &[Reference]) {
        let origin = self.origins.get(&start).copied().unwrap_or(Origin { function: start, at: start });
        let slot = references.iter().find_map(|reference| match reference.target {
            Target::CodeThrough(slot) | Target::Load(slot) => self.graph.program.slot(slot).cloned(),
            _ => None,
        });
        match slot {
            Some(slot) => {
                let callee = match &slot {
                    Slot::Own(to) => self.graph.function_at(*to).map(|function| Callee::Function(function.start)),
                    _ => Some(Callee::Import),
                };
                self.calls.frames.insert(start, ("linkage stub".to_owned(), 0));
                self.calls.edges.entry(start).or_default().extend(callee.map(|callee| Edge { depth: 0, callee }));
                match slot {
                    Slot::Own(to) => self.code(to, origin),
                    slot => self.slot(&slot, origin),
                }
            }
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

    /// Follows all pointers of a data object, and of the objects that it points to.
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
        let mut path = Vec::new();
        let mut at = origin;
        loop {
            let function = self.names.get(&at.function).map(|function| function.name.clone()).unwrap_or_default();
            path.push(Step { function, at: at.at });
            if at.function == self.entry {
                break;
            }
            match self.origins.get(&at.function) {
                Some(origin) => at = *origin,
                None => break,
            }
        }
        path.reverse();
        self.reached.findings.push(Finding { offence, what, path });
    }
}

/// Whether a function is code generated by the linker.
fn is_linkage_stub(function: &Function) -> bool {
    function.name.starts_with("linkage stub")
}
