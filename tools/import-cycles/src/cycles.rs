//! Strongly connected components (Tarjan, "Depth-first search and linear graph algorithms", 1972).

use std::collections::BTreeSet;

/// Returns the groups of at least two nodes, of `0..count`, that can all reach each other.
pub(crate) fn cycles(count: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let (numbers, lowest) = (vec![None; count], vec![0; count]);
    let mut search = Search { edges, numbers, lowest, next: 0, stack: Vec::new(), found: Vec::new() };
    for node in 0..count {
        if search.numbers[node].is_none() {
            search.visit(node);
        }
    }
    search.found.sort();
    search.found
}

struct Search<'e> {
    edges: &'e BTreeSet<(usize, usize)>,
    /// The order in which nodes were first visited.
    numbers: Vec<Option<usize>>,
    /// The lowest number that can be reached.
    lowest: Vec<usize>,
    next: usize,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        let number = self.next;
        self.next += 1;
        (self.numbers[node], self.lowest[node]) = (Some(number), number);
        self.stack.push(node);
        for (_, to) in self.edges.range((node, 0)..=(node, usize::MAX)) {
            match self.numbers[*to] {
                None => {
                    self.visit(*to);
                    self.lowest[node] = self.lowest[node].min(self.lowest[*to]);
                }
                Some(number) if self.stack.contains(to) => self.lowest[node] = self.lowest[node].min(number),
                Some(_) => {}
            }
        }
        if self.lowest[node] == number {
            let from = self.stack.iter().position(|other| *other == node).unwrap_or_default();
            let mut group = self.stack.split_off(from);
            if group.len() > 1 {
                group.sort_unstable();
                self.found.push(group);
            }
        }
    }
}
