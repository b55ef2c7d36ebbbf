//! Maximum stack use of the crash path, from each function that is entered with its own stack.
//!
//! The depth at each call is known from the machine code ([`super::flow`]), so that the deepest
//! path over the calls is an upper bound. It doesn't include the signal's kernel frame, which the
//! stack's listed size must not include either, nor calls through listed pointers (`indirect`),
//! which are the app's own code.
//!
//! A function listed as `switch` calls another on a different stack: the other one needs a line
//! that specifies the stack's size.

use std::collections::BTreeMap;

use super::graph::{Callee, Edge};
use super::rules::Rules;

/// Bytes below the stack pointer that a function without calls may use.
///
/// This is the red zone of the System V AMD64 ABI (3.2.2) and of Apple's arm64; AAPCS64 has none,
/// but it is counted anyway.
const RED_ZONE: i64 = 128;

/// The bound of one stack.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct Bound {
    /// The function that is entered with the stack.
    pub(super) root: String,
    /// The maximum bytes in use.
    pub(super) bytes: i64,
    /// The bytes available.
    pub(super) size: i64,
    /// The stack's description.
    pub(super) stack: String,
    /// The deepest path: functions, with the bytes that each adds.
    pub(super) path: Vec<(String, i64)>,
}

impl Bound {
    pub(super) fn fits(&self) -> bool {
        self.bytes <= self.size
    }
}

/// The calls that a search found, by the caller's address.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) edges: BTreeMap<u64, Vec<Edge>>,
    /// Each function's name, and the maximum bytes that it uses itself.
    pub(super) frames: BTreeMap<u64, (String, i64)>,
}

/// A function's own bound.
#[derive(Clone, Copy, Debug)]
struct Deepest {
    bytes: i64,
    next: Option<Edge>,
}

/// The search for the deepest path.
#[derive(Debug)]
pub(super) struct Search<'a> {
    calls: &'a Calls,
    rules: &'a Rules,
    known: BTreeMap<u64, Deepest>,
    open: Vec<u64>,
    /// Maximum runs of each function that entered a cycle, and the cycle's other functions.
    cycles: BTreeMap<u64, (i64, Vec<u64>)>,
    /// Cycles without a listed bound.
    pub(super) recursions: Vec<Vec<u64>>,
}

impl<'a> Search<'a> {
    pub(super) fn new(calls: &'a Calls, rules: &'a Rules) -> Search<'a> {
        Search {
            calls,
            rules,
            known: BTreeMap::new(),
            open: Vec::new(),
            cycles: BTreeMap::new(),
            recursions: Vec::new(),
        }
    }

    /// Returns the maximum stack of a function and everything it calls, and the path.
    pub(super) fn bound(&mut self, root: u64) -> (i64, Vec<(String, i64)>) {
        let total = self.visit(root) + RED_ZONE;
        let mut path = Vec::new();
        let mut at = Some(root);
        // A cycle on the path is counted as often as it may run, but shown once.
        while let Some(function) = at.take()
            && path.len() <= self.known.len()
        {
            let Some((name, frame)) = self.calls.frames.get(&function) else { break };
            let next = self.known.get(&function).and_then(|deepest| deepest.next);
            path.push((name.clone(), next.map_or(*frame, |next| next.depth)));
            match next {
                Some(Edge { callee: Callee::Function(next), .. }) => at = Some(next),
                Some(Edge { callee: Callee::Import, .. }) => {
                    path.push(("a library's function".to_owned(), self.rules.import_stack()));
                }
                None => {}
            }
        }
        (total, path)
    }

    fn visit(&mut self, function: u64) -> i64 {
        if let Some(known) = self.known.get(&function) {
            return known.bytes;
        }
        self.open.push(function);
        let own = self.calls.frames.get(&function).map_or(0, |(_, frame)| *frame);
        let mut deepest = Deepest { bytes: own, next: None };
        for edge in self.calls.edges.get(&function).into_iter().flatten() {
            let below = match edge.callee {
                Callee::Import => self.rules.import_stack(),
                Callee::Function(callee) => match self.open.iter().position(|open| *open == callee) {
                    Some(start) => {
                        self.cycle(start);
                        continue;
                    }
                    None => self.visit(callee),
                },
            };
            if edge.depth + below > deepest.bytes {
                deepest = Deepest { bytes: edge.depth + below, next: Some(*edge) };
            }
        }
        self.open.pop();
        if let Some((times, others)) = self.cycles.get(&function).cloned() {
            deepest.bytes *= times;
            // Entering the cycle at another function also runs all of it.
            for other in others {
                if let Some(known) = self.known.get_mut(&other) {
                    known.bytes += deepest.bytes;
                }
            }
        }
        self.known.insert(function, deepest);
        deepest.bytes
    }

    /// Handles a call back to the open function at index `start`.
    fn cycle(&mut self, start: usize) {
        let cycle = self.open[start..].to_vec();
        let name = |function: &u64| self.calls.frames.get(function).map_or("", |(name, _)| name.as_str());
        match cycle.iter().filter_map(|function| self.rules.recursion(name(function))).max() {
            Some(times) => {
                let head = cycle[0];
                let known = self.cycles.entry(head).or_default();
                // Another function of the cycle may be entered once more than the bounded one.
                known.0 = known.0.max(times + 1);
                known.1.extend(cycle.into_iter().filter(|function| *function != head));
            }
            None => self.recursions.push(cycle),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(edges: &[(u64, i64, u64)]) -> Calls {
        let mut calls = Calls::default();
        for function in 1..=4 {
            calls.frames.insert(function, (format!("f{function}"), 100));
        }
        for (from, depth, to) in edges {
            calls.edges.entry(*from).or_default().push(Edge { depth: *depth, callee: Callee::Function(*to) });
        }
        calls
    }

    #[test]
    fn the_deepest_path_is_found() {
        let (calls, rules) = (calls(&[(1, 40, 2), (1, 108, 3), (2, 1000, 4), (3, 108, 4)]), Rules::parse("").unwrap());
        let mut search = Search::new(&calls, &rules);
        let (bytes, path) = search.bound(1);
        assert_eq!(bytes, 40 + 1000 + 100 + RED_ZONE);
        assert_eq!(path, [("f1".to_owned(), 40), ("f2".to_owned(), 1000), ("f4".to_owned(), 100)]);
        assert!(search.recursions.is_empty());
    }

    #[test]
    fn recursion_is_found_and_counted() {
        let calls = calls(&[(1, 10, 2), (2, 110, 3), (3, 110, 2)]);
        let unbounded = Rules::parse("").unwrap();
        let mut search = Search::new(&calls, &unbounded);
        search.bound(1);
        assert_eq!(search.recursions, [[2, 3]]);
        let bounded = Rules::parse("recursion f3 4 -- four").unwrap();
        let mut search = Search::new(&calls, &bounded);
        assert!(search.bound(1).0 >= 10 + 4 * 220);
        assert!(search.recursions.is_empty());
    }
}
