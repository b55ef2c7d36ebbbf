//! What a report of Apple's systems is of, where it is of no process' stacks.

/// By `bug_type` in the line of JSON that an `.ips` begins with. Apple publishes no list; these are what the systems write.
const BUG_TYPES: [(&str, &str); 4] = [
    ("115", "a restart of the device (ResetCounter)"),
    ("210", "a kernel panic"),
    ("288", "a snapshot of all processes' stacks in the kernel's binary form (stacks)"),
    ("298", "memory that ran short (JetsamEvent): it lists processes and their memory"),
];

/// By the beginning of a line of text.
const LINES: [(&str, &str); 3] = [
    ("panic(cpu ", "a kernel panic"),
    ("\"panicString\"", "a kernel panic"),
    ("Largest process:", "memory that ran short (LowMemory): it lists processes and their memory"),
];

pub(crate) fn of_bug_type(bug_type: &str) -> Option<&'static str> {
    BUG_TYPES.iter().find(|known| known.0 == bug_type).map(|known| known.1)
}

/// `line` is without spaces before it.
pub(crate) fn of_text(line: &str) -> Option<&'static str> {
    LINES.iter().find(|known| line.starts_with(known.0)).map(|known| known.1)
}
