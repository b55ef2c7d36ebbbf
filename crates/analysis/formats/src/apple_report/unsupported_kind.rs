//! Apple reports that don't contain a process's stacks, by kind.

/// Kinds by `bug_type` in the first line of an `.ips`. Apple publishes no list; these values were
/// found in reports.
const BUG_TYPES: [(&str, &str); 4] = [
    ("115", "a device restart (ResetCounter)"),
    ("210", "a kernel panic"),
    ("288", "all processes' stacks in the kernel's binary format (stacks)"),
    ("298", "low memory (JetsamEvent), with a list of processes and their memory use"),
];

/// Kinds by the start of a line of text.
const LINE_STARTS: [(&str, &str); 3] = [
    ("panic(cpu ", "a kernel panic"),
    ("\"panicString\"", "a kernel panic"),
    ("Largest process:", "low memory (LowMemory), with a list of processes and their memory use"),
];

pub(crate) fn describe_bug_type(bug_type: &str) -> Option<&'static str> {
    BUG_TYPES.iter().find(|known| known.0 == bug_type).map(|known| known.1)
}

/// Returns the kind of report for a line without leading spaces.
pub(crate) fn describe_line(line: &str) -> Option<&'static str> {
    LINE_STARTS.iter().find(|known| line.starts_with(known.0)).map(|known| known.1)
}
