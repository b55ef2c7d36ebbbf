extern crate std;

use super::*;

#[test]
fn a_stat_line_may_contain_any_name() {
    let line = |name: &str, state: &str, threads: u32| {
        std::format!("77 ({name}) {state} 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 {threads} 0 987654 9 55 9\n")
    };
    let stat = |state, threads| parse_stat(line("a) Z (b c", state, threads).as_bytes());
    assert_eq!(stat("S", 3), Some(Stat { start: 987_654, resident: 55, ended: false }));
    assert_eq!(stat("Z", 1), Some(Stat { start: 987_654, resident: 55, ended: true }));
    assert_eq!(
        stat("Z", 2),
        Some(Stat { start: 987_654, resident: 55, ended: false }),
        "only its first thread has ended"
    );
    assert_eq!(parse_stat(b"77 (cut) S 1 2"), None);
}
