//! Apple reports that don't contain a process's stacks, by kind.

/// Kinds by `bug_type` in the first line of an `.ips`. Apple publishes no list; these values were
/// found in reports.
const BUG_TYPES: [(&str, &str); 4] = [
    ("115", "a restart of the device (ResetCounter)"),
    ("210", "a kernel panic"),
    ("288", "a snapshot of all processes' stacks in the kernel's binary form (stacks)"),
    ("298", "memory that ran short (JetsamEvent): it lists processes and their memory"),
];

/// Kinds by the start of a line of text.
const LINES: [(&str, &str); 3] = [
    ("panic(cpu ", "a kernel panic"),
    ("\"panicString\"", "a kernel panic"),
    ("Largest process:", "memory that ran short (LowMemory): it lists processes and their memory"),
];

pub(crate) fn of_bug_type(bug_type: &str) -> Option<&'static str> {
    BUG_TYPES.iter().find(|known| known.0 == bug_type).map(|known| known.1)
}

/// Returns the kind of report for a line without leading spaces.
pub(crate) fn of_text(line: &str) -> Option<&'static str> {
    LINES.iter().find(|known| line.starts_with(known.0)).map(|known| known.1)
}
