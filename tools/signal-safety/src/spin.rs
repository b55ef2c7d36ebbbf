//! Loops that wait for another thread: by spinning on a lock or polling a flag.
//!
//! In a crash the other thread may be stopped, or be the crashed thread itself: such a loop may
//! never end. A loop of a function's control flow graph is an offence if
//! * it waits: it contains a locked read-modify-write (x86_64 `lock cmpxchg`, `xchg`, …; arm64
//!   `cas`, `swp`, a store-exclusive, or a call of `__aarch64_cas*` and similar functions), or an
//!   instruction for waiting loops (`pause`, `yield`, `isb`, `wfe`), or it repeatedly loads the
//!   same memory and does nothing else (no store, no system call, and only calls of functions that
//!   do as little); and
//! * it has no bound of its own: no register or stack word is updated by each iteration from its
//!   previous value (a counter, a moving address) and decides a branch out of the loop.
//!
//! Two retries are not offences: that of a store-exclusive if the loop branches on its status, and
//! the lock-free retry of a compare-exchange whose expected value was just read by the failed one.
//! There, one thread's failure is another's success.
//!
//! A bound by a clock can't be detected here: such loops are on the allow-list, by function
//! (`spin`).
//!
//! Limits: an atomic operation in a called function is detected only if that function calls no
//! other. A wait by recursion and a counter that bounds nothing are not detected.

use std::collections::{BTreeMap, BTreeSet};

use super::decode::operation::{Atomic, Effect, Flow, Operation, Place};
use super::flow::Flows;

/// The behavior of a function that is called in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    /// An out-of-line atomic operation of the compiler (`__aarch64_cas4_acq`).
    ///
    /// Its first argument is the expected value, its result the old one.
    Atomic(Atomic),
    /// A few instructions that only load and compute.
    Reads,
    /// Like [`Callee::Reads`], with a locked operation.
    Exchanges,
    /// Anything else.
    Other,
}

/// Returns the operation of a compiler's out-of-line function, by its name.
fn out_of_line(name: &str) -> Option<Atomic> {
    let operation = name.strip_prefix("__aarch64_")?;
    Some(match operation.get(..3) {
        Some("cas") => Atomic::CompareExchange(0),
        Some("lda") => Atomic::Add,
        _ => Atomic::Exchange,
    })
}

/// Classifies a function that a loop calls.
///
/// `name_at` returns the name of the function at an address.
pub(super) fn classify(name: &str, operations: &[Operation], name_at: &dyn Fn(u64) -> Option<String>) -> Callee {
    if let Some(atomic) = out_of_line(name) {
        return Callee::Atomic(atomic);
    }
    let mut exchanges = false;
    for operation in operations {
        match operation.flow {
            Flow::Call(Some(to)) | Flow::Branch { to, conditional: false } => {
                let is_inside = operations.iter().any(|inside| inside.at == to);
                match name_at(to).as_deref().and_then(out_of_line) {
                    Some(atomic) => exchanges |= waits_by(Some(atomic)),
                    None if is_inside => {}
                    None => return Callee::Other,
                }
            }
            Flow::Call(None) | Flow::Jump => return Callee::Other,
            _ if operation.system_call => return Callee::Other,
            _ => {}
        }
    }
    if operations.is_empty() {
        return Callee::Other;
    }
    if exchanges || operations.iter().any(|o| waits_by(o.atomic)) {
        Callee::Exchanges
    } else if operations.iter().any(|o| o.stores) {
        Callee::Other
    } else {
        Callee::Reads
    }
}

/// Whether an operation may take a lock.
fn waits_by(atomic: Option<Atomic>) -> bool {
    matches!(atomic, Some(Atomic::CompareExchange(_) | Atomic::Exchange | Atomic::StoreExclusive(_)))
}

/// Returns the loops that wait for another thread without a bound.
///
/// Each is represented by the address of its last branch.
pub(super) fn waits(flows: &Flows, callee: &mut dyn FnMut(u64) -> Callee) -> Vec<u64> {
    let mut found = Vec::new();
    let edges = back_edges(flows);
    for (from, head) in &edges {
        let body_of = |from: usize| body(flows, from, *head);
        let whole = edges.iter().filter(|(_, other)| other == head).flat_map(|(from, _)| body_of(*from)).collect();
        let body = body_of(*from);
        if let Some(branch) = flows.block(*from).last()
            && Loop::new(flows, &body, &whole, *head, callee).waits(branch)
        {
            found.push(branch.at);
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the back edges: those to a block that is being visited in a depth-first search.
fn back_edges(flows: &Flows) -> Vec<(usize, usize)> {
    let count = flows.successors.len();
    let (mut open, mut done) = (vec![false; count], vec![false; count]);
    let mut edges = Vec::new();
    for root in 0..count {
        if done[root] {
            continue;
        }
        let mut path = vec![(root, 0)];
        open[root] = true;
        while let Some((block, next)) = path.last_mut() {
            let block = *block;
            if let Some(&successor) = flows.successors[block].get(*next) {
                *next += 1;
                if open[successor] {
                    edges.push((block, successor));
                } else if !done[successor] {
                    open[successor] = true;
                    path.push((successor, 0));
                }
            } else {
                open[block] = false;
                done[block] = true;
                path.pop();
            }
        }
    }
    edges
}

/// Returns a back edge's natural loop.
///
/// These are the blocks that reach its start without passing the loop's head.
fn body(flows: &Flows, from: usize, head: usize) -> BTreeSet<usize> {
    let mut predecessors: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (block, successors) in flows.successors.iter().enumerate() {
        for successor in successors {
            predecessors.entry(*successor).or_default().push(block);
        }
    }
    let mut body = BTreeSet::from([head, from]);
    let mut waiting = if from == head { Vec::new() } else { vec![from] };
    while let Some(block) = waiting.pop() {
        for predecessor in predecessors.get(&block).into_iter().flatten() {
            if body.insert(*predecessor) {
                waiting.push(*predecessor);
            }
        }
    }
    body
}

/// A loop, with the behavior of the functions that it calls.
struct Loop<'a> {
    flows: &'a Flows,
    body: &'a BTreeSet<usize>,
    /// The loop together with the bodies of other back edges to the same head.
    whole: &'a BTreeSet<usize>,
    head: usize,
    operations: Vec<(&'a Operation, Option<Callee>)>,
}

impl<'a> Loop<'a> {
    fn new(
        flows: &'a Flows,
        body: &'a BTreeSet<usize>,
        whole: &'a BTreeSet<usize>,
        head: usize,
        callee: &mut dyn FnMut(u64) -> Callee,
    ) -> Loop<'a> {
        let operations = body.iter().flat_map(|block| flows.block(*block));
        let operations = operations
            .map(|operation| {
                let callee = match operation.flow {
                    Flow::Call(Some(to)) => Some(callee(to)),
                    Flow::Call(None) => Some(Callee::Other),
                    _ => None,
                };
                (operation, callee)
            })
            .collect();
        Loop { flows, body, whole, head, operations }
    }

    fn waits(&self, branch: &Operation) -> bool {
        let is_status = |operation: &Operation| match operation.atomic {
            Some(Atomic::StoreExclusive(status)) => branch.reads.contains(&Place::Register(status)),
            _ => false,
        };
        if self.operations.iter().any(|(operation, _)| is_status(operation)) {
            return false;
        }
        let atomics: Vec<Atomic> = self.operations.iter().filter_map(|(o, callee)| atomic(o, *callee)).collect();
        let exchanges = atomics.iter().any(|atomic| waits_by(Some(*atomic)))
            || self.operations.iter().any(|(_, callee)| *callee == Some(Callee::Exchanges));
        let pauses = self.operations.iter().any(|(operation, _)| operation.pauses);
        (exchanges || pauses || self.only_polls()) && !self.has_bound() && !self.retries()
    }

    /// Whether it loads the same memory in every iteration and has no other lasting effect.
    fn only_polls(&self) -> bool {
        let writes: BTreeSet<&Place> = self.operations.iter().flat_map(|(operation, _)| &operation.writes).collect();
        let reads = self.operations.iter().any(|(o, callee)| o.loads.is_some() || *callee == Some(Callee::Reads));
        let lasts = |(operation, callee): &(&Operation, Option<Callee>)| {
            operation.stores
                || operation.system_call
                || matches!(callee, Some(Callee::Other | Callee::Atomic(_)))
                || operation.loads.iter().flatten().any(|by| writes.contains(&Place::Register(*by)))
        };
        reads && !self.operations.iter().any(lasts)
    }

    /// Whether each iteration updates and compares a value, such as a counter.
    fn has_bound(&self) -> bool {
        let carried = self.carried();
        self.operations.iter().filter(|(operation, _)| operation.is_arithmetic()).any(|(operation, _)| {
            // A plain move changes nothing.
            let is_move = matches!(operation.effects[..], [Effect::Copy { add: 0, .. }]);
            operation.writes.iter().filter(|_| !is_move).any(|counter| {
                let from = self.derived(*counter);
                // The computed value flows back to its own input in the next iteration.
                let comes_back = |place: &Place| carried.contains(place) && self.derived(*place).contains(counter);
                *counter != Place::Flags
                    && operation.reads.iter().any(|read| from.contains(read))
                    && from.iter().any(comes_back)
                    && self.is_compared(&from)
            })
        })
    }

    /// Whether a branch that leaves the loop depends on one of these places.
    ///
    /// It may depend directly or through the flags that were set last. A locked operation, whose
    /// flags depend on memory, is not a comparison.
    fn is_compared(&self, places: &BTreeSet<Place>) -> bool {
        let sets_flags = |block: usize| {
            self.flows.block(block).iter().rposition(|operation| operation.writes.contains(&Place::Flags))
        };
        let compares = |block: usize, index: usize| {
            let comparison = &self.flows.block(block)[index];
            let is_locked = comparison.atomic.is_some() || matches!(comparison.flow, Flow::Call(_));
            !is_locked && self.depends(block, index, places)
        };
        self.body.iter().filter(|block| self.leaves(**block)).any(|block| {
            let last = self.flows.block(*block).len() - 1;
            if !self.flows.block(*block)[last].reads.contains(&Place::Flags) {
                return compares(*block, last);
            }
            match sets_flags(*block) {
                Some(index) => compares(*block, index),
                // Two branches share a comparison.
                None => self
                    .body
                    .iter()
                    .filter(|before| self.flows.successors[**before].contains(block))
                    .any(|before| sets_flags(*before).is_some_and(|index| compares(*before, index))),
            }
        })
    }

    /// Whether an operation reads one of these places before its block overwrites the place.
    fn depends(&self, block: usize, index: usize, places: &BTreeSet<Place>) -> bool {
        let operations = self.flows.block(block);
        operations[index].reads.iter().filter(|place| **place != Place::Flags && places.contains(place)).any(|place| {
            match operations[..index].iter().rposition(|before| before.writes.contains(place)) {
                Some(writer) => operations[writer].is_arithmetic() && self.depends(block, writer, places),
                None => true,
            }
        })
    }

    /// Whether a block ends in a branch out of all loops with this head.
    fn leaves(&self, block: usize) -> bool {
        let successors = &self.flows.successors[block];
        let is_branch = self
            .flows
            .block(block)
            .last()
            .is_some_and(|last| matches!(last.flow, Flow::Branch { conditional: true, .. }));
        // A branch into another function has one successor here.
        is_branch && (successors.len() < 2 || successors.iter().any(|successor| !self.whole.contains(successor)))
    }

    /// Returns everything computed in the loop from a place.
    ///
    /// Values in memory that others may change are not followed.
    fn derived(&self, from: Place) -> BTreeSet<Place> {
        let mut all = BTreeSet::from([from]);
        loop {
            let before = all.len();
            for (operation, _) in self.operations.iter().filter(|(operation, _)| operation.is_arithmetic()) {
                if operation.reads.iter().any(|read| *read != Place::Flags && all.contains(read)) {
                    all.extend(operation.writes.iter().filter(|place| **place != Place::Flags));
                }
            }
            if all.len() == before {
                return all;
            }
        }
    }

    /// Returns places that the loop writes and a later iteration reads before writing them.
    fn carried(&self) -> BTreeSet<Place> {
        let mut live: BTreeMap<usize, BTreeSet<Place>> = BTreeMap::new();
        loop {
            let mut changed = false;
            for block in self.body.iter().rev() {
                let successors = self.flows.successors[*block].iter().filter(|block| self.body.contains(block));
                let mut at: BTreeSet<Place> =
                    successors.filter_map(|successor| live.get(successor)).flatten().copied().collect();
                for operation in self.flows.block(*block).iter().rev() {
                    for place in &operation.writes {
                        at.remove(place);
                    }
                    at.extend(&operation.reads);
                }
                if live.get(block) != Some(&at) {
                    live.insert(*block, at);
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
        let written: BTreeSet<Place> =
            self.operations.iter().flat_map(|(operation, _)| &operation.writes).copied().collect();
        live.get(&self.head).into_iter().flatten().filter(|place| written.contains(place)).copied().collect()
    }

    /// Whether it waits only by one compare-exchange that expects the value that it last read.
    fn retries(&self) -> bool {
        let mut expected = None;
        for (operation, callee) in &self.operations {
            match (atomic(operation, *callee), callee) {
                (Some(Atomic::CompareExchange(register)), _) if expected.is_none() => {
                    expected = Some((operation.at, register));
                }
                (Some(Atomic::Add), _) => {}
                (Some(_), _) | (None, Some(Callee::Exchanges)) => return false,
                _ if operation.pauses => return false,
                _ => {}
            }
        }
        let Some((exchange, register)) = expected else { return false };
        let mut places = BTreeSet::from([Place::Register(register)]);
        let mut is_own = false;
        loop {
            let before = places.len();
            for (operation, _) in &self.operations {
                if !operation.writes.iter().any(|place| places.contains(place)) {
                    continue;
                }
                if operation.at == exchange {
                    is_own = true;
                    continue;
                }
                match operation.effects[..] {
                    [Effect::Copy { from, add: 0, .. }] => drop(places.insert(Place::Register(from))),
                    // A narrower move.
                    [] if operation.is_arithmetic()
                        && operation.reads.len() == 1
                        && !operation.writes.contains(&Place::Flags) =>
                    {
                        places.extend(&operation.reads);
                    }
                    _ => return false,
                }
            }
            if places.len() == before {
                return is_own;
            }
        }
    }
}

/// Returns an operation's atomic access, by itself or in the function that it calls.
fn atomic(operation: &Operation, callee: Option<Callee>) -> Option<Atomic> {
    match callee {
        Some(Callee::Atomic(atomic)) => Some(atomic),
        _ => operation.atomic,
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::operation;
    use super::super::program::Machine;
    use super::*;

    fn arm64(words: &[u32]) -> usize {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        waits(&Flows::new(operation::decode(Machine::Aarch64, &code, 0x1000)), &mut |_| Callee::Other).len()
    }

    #[test]
    fn a_lock_is_a_wait_and_a_retry_of_a_store_exclusive_is_not() {
        // ldaxr w8, [x0]; add w8, w8, #1; stlxr w9, w8, [x0]; cbnz w9, -12; ret
        assert_eq!(arm64(&[0x885f_fc08, 0x1100_0508, 0x8809_fc08, 0x35ff_ffa9, 0xd65f_03c0]), 0);
        // ldaxr w8, [x0]; cbnz w8, -4; stlxr w9, w1, [x0]; cbnz w9, -12; ret: waits for zero
        assert_eq!(arm64(&[0x885f_fc08, 0x35ff_ffe8, 0x8809_fc01, 0x35ff_ffa9, 0xd65f_03c0]), 1);
        // swpa w1, w8, [x0]; cbnz w8, -4; ret
        assert_eq!(arm64(&[0xb8a1_8008, 0x35ff_ffe8, 0xd65f_03c0]), 1);
    }

    #[test]
    fn a_count_bounds_and_memory_does_not() {
        // swpa w1, w8, [x0]; cbz w8, +12; subs x2, x2, #1; b.ne -12; ret
        assert_eq!(arm64(&[0xb8a1_8008, 0x3400_0068, 0xf100_0442, 0x54ff_ffa1, 0xd65f_03c0]), 0);
        // ldr w8, [x0]; cbnz w8, -4; ret
        assert_eq!(arm64(&[0xb940_0008, 0x35ff_ffe8, 0xd65f_03c0]), 1);
        // ldr x0, [x0]; cbnz x0, -4; ret: walks a list
        assert_eq!(arm64(&[0xf940_0000, 0xb5ff_ffe0, 0xd65f_03c0]), 0);
    }
}
