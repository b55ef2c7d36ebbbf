use super::*;

#[test]
fn placeholders_are_distinguished_from_names() {
    for nothing in ["0x102d18000 + 18420", "App + 18420", "???", "_mh_execute_header + 12", "<redacted> + 4"] {
        assert!(is_placeholder(nothing, "App"), "{nothing}");
    }
    for name in ["main + 18420", "-[App run:] + 4", "main (main.m:12)", "0x102d18000 + x"] {
        assert!(!is_placeholder(name, "App"), "{name}");
    }
}

#[test]
fn stack_headings_are_recognized() {
    for thread in
        ["Thread 0 Crashed:", "Thread 12:", "Thread 0:: Dispatch queue: com.apple.main-thread", "Thread 1 name: x"]
    {
        assert!(heading(thread).is_some_and(|stack| stack.is_thread), "{thread}");
    }
    assert!(heading("Last Exception Backtrace:").is_some_and(|stack| !stack.is_thread));
    assert!(heading("Thread 0 crashed with ARM Thread State (64-bit):").is_none());
    assert!(heading("Threads: 12").is_none());
}
