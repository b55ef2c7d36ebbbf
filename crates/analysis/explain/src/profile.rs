//! A hanging thread's activity: the samples in its profile by function, and as a sentence.

use std::collections::HashMap;

use coroner_process::heap_sort;
use coroner_report::Report;
use coroner_report::model::{Frame, InApp, InAppRules, Profile, ProfileEnd};
use coroner_report::text::short_function;
use coroner_report::wire::ThreadState;

/// Maximum length of a function's name, in characters.
const MAX_NAME: usize = 60;
/// Maximum number of functions in a sentence, and the minimum percentage of time for each.
const MAX_PLACES: usize = 3;
const MIN_PERCENT: u64 = 10;

/// A profile's samples as a tree of functions. Calls of a function from different places are
/// merged.
#[derive(Clone, Debug, Default)]
pub struct ProfileTree {
    /// The nodes; each comes after its caller.
    pub nodes: Vec<ProfileFunction>,
    /// Total time of all samples, in nanoseconds.
    pub weight_ns: u64,
}

/// A function in a [`ProfileTree`].
#[derive(Clone, Debug, Default)]
pub struct ProfileFunction {
    /// Index of its caller.
    pub parent: Option<usize>,
    /// Number of callers above it.
    pub depth: usize,
    /// The function's name, or image and offset if the name is unknown.
    pub name: String,
    /// Whether the function is the app's own.
    pub in_app: bool,
    /// Time in the function and its callees, in nanoseconds.
    pub weight_ns: u64,
    /// The thread's most frequent activity in samples that end here, and its time in nanoseconds.
    pub doing: Option<(String, u64)>,
}

impl ProfileTree {
    /// Returns the tree for a report's profile. `None` if there are no samples.
    pub fn from_report(report: &Report) -> Option<ProfileTree> {
        let profile = report.profile.as_ref()?;
        let weight_ns = profile.weight_ns();
        if weight_ns == 0 {
            return None;
        }
        let rules = InAppRules::default();
        let in_app = InApp::new(&rules, report);
        let weights = profile.weights();
        let mut tree = ProfileTree { nodes: Vec::new(), weight_ns };
        let mut known: HashMap<(Option<usize>, String), usize> = HashMap::new();
        // The innermost function of each node in the tree.
        let mut places = Vec::with_capacity(profile.nodes.len());
        for (number, node) in profile.nodes.iter().enumerate() {
            let mut place: Option<usize> = profile.parent(number).map(|parent| places[parent]);
            for (name, is_own) in functions(&in_app, &node.frame) {
                let depth = place.map_or(0, |caller| tree.nodes[caller].depth + 1);
                let next = *known.entry((place, name.clone())).or_insert(tree.nodes.len());
                if next == tree.nodes.len() {
                    tree.nodes.push(ProfileFunction {
                        parent: place,
                        depth,
                        name,
                        in_app: is_own,
                        ..ProfileFunction::default()
                    });
                }
                tree.nodes[next].weight_ns = tree.nodes[next].weight_ns.saturating_add(weights[number]);
                place = Some(next);
            }
            // Every frame has at least one function.
            places.push(place.unwrap_or_default());
        }
        let mut doing: HashMap<(usize, String), u64> = HashMap::new();
        for end in &profile.ends {
            let Some(place) = end.node.and_then(|node| places.get(node)) else { continue };
            let weight = doing.entry((*place, describe_activity(end))).or_default();
            *weight = weight.saturating_add(end.weight_ns);
        }
        let mut doing: Vec<_> = doing.into_iter().collect();
        doing.sort();
        for ((place, what), weight) in doing {
            let most = &mut tree.nodes[place].doing;
            if most.as_ref().is_none_or(|(_, least)| *least < weight) {
                *most = Some((what, weight));
            }
        }
        Some(tree)
    }

    /// Returns a time as a percentage of the total.
    pub fn percent(&self, weight_ns: u64) -> f64 {
        weight_ns as f64 * 100.0 / self.weight_ns.max(1) as f64
    }

    /// Returns each node's callees in order of decreasing time; `None` as the key has the root
    /// functions.
    pub fn called_by(&self) -> HashMap<Option<usize>, Vec<usize>> {
        let mut called: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
        for (number, node) in self.nodes.iter().enumerate() {
            called.entry(node.parent).or_default().push(number);
        }
        called
            .values_mut()
            .for_each(|numbers| numbers.sort_by_key(|number| std::cmp::Reverse(self.nodes[*number].weight_ns)));
        called
    }
}

/// Returns a frame's functions, outermost first, and whether each is the app's own.
fn functions(in_app: &InApp<'_>, frame: &Frame) -> Vec<(String, bool)> {
    let mut found: Vec<(String, bool)> = in_app
        .functions(frame)
        .filter_map(|function| Some((short_function(function.name?, MAX_NAME).into_owned(), function.in_app)))
        .collect();
    found.reverse();
    if found.is_empty() {
        let name = match (frame.module.as_deref(), frame.module_offset) {
            (Some(module), Some(offset)) => format!("{} + {offset}", module.rsplit('/').next().unwrap_or(module)),
            _ => frame.address.to_string(),
        };
        found.push((name, false));
    }
    found
}

/// Describes a thread's activity.
fn describe_activity(end: &ProfileEnd) -> String {
    let call = end.syscall_name.map_or_else(String::new, |call| format!(" in {call}"));
    match end.state {
        Some(ThreadState::RUNNING) => "on a CPU".to_owned(),
        Some(ThreadState::RUNNABLE) => "waiting for a CPU".to_owned(),
        Some(ThreadState::BLOCKED) => format!("blocked{call}"),
        Some(ThreadState::UNINTERRUPTIBLE) => format!("blocked uninterruptibly{call}"),
        Some(ThreadState::STOPPED) => "stopped".to_owned(),
        _ => String::new(),
    }
}

/// Returns, for example, `93 % in save (notes.c:27), blocked in fdatasync`.
///
/// The sentence has the app's own functions with the most time, and the thread's activity there.
pub(crate) fn describe_time(report: &Report) -> Option<String> {
    let profile = report.profile.as_ref()?;
    let all = profile.weight_ns();
    if all == 0 {
        return None;
    }
    let rules = InAppRules::default();
    let in_app = InApp::new(&rules, report);
    let mut by_place: HashMap<(String, String), u64> = HashMap::new();
    for end in &profile.ends {
        let Some(name) = end.node.and_then(|node| own_function(profile, &in_app, node)) else { continue };
        let weight = by_place.entry((name, describe_activity(end))).or_default();
        *weight = weight.saturating_add(end.weight_ns);
    }
    let mut places: Vec<_> = by_place.into_iter().collect();
    heap_sort(&mut places, |one, other| (other.1, &one.0) < (one.1, &other.0));
    let percent = |weight: u64| (u128::from(weight) * 100 / u128::from(all)) as u64;
    let top = places.iter().filter(|(_, weight)| percent(*weight) >= MIN_PERCENT).take(MAX_PLACES);
    let sentences: Vec<String> = top
        .map(|((name, doing), weight)| {
            let doing = if doing.is_empty() { String::new() } else { format!(", {doing}") };
            format!("{} % in {name}{doing}", percent(*weight))
        })
        .collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// Returns the app's own innermost function on a stack; if there are none, the innermost function.
fn own_function(profile: &Profile, in_app: &InApp<'_>, node: usize) -> Option<String> {
    let path = || std::iter::successors(Some(node), |node| profile.parent(*node));
    let mut all = path().filter_map(|node| profile.nodes.get(node)).map(|node| functions(in_app, &node.frame));
    let own = all.find_map(|functions| functions.into_iter().rev().find(|(_, is_own)| *is_own));
    let innermost = || functions(in_app, &profile.nodes.get(node)?.frame).pop();
    own.or_else(innermost).map(|(name, _)| name)
}
