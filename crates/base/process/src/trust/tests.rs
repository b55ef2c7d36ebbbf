use super::{Distrust, Entry};

const USER: u32 = 1000;

#[test]
fn only_own_entries_that_nobody_else_can_change_are_used() {
    let entry = |mode, owner, links| Entry { mode, owner, links };
    for (directory, expected) in [
        (entry(0o040_700, USER, 3), Ok(())),
        (entry(0o040_755, USER, 2), Ok(())),
        (entry(0o041_755, USER, 2), Ok(())),
        (entry(0o040_700, 0, 2), Err(Distrust::Owner(0))),
        (entry(0o040_777, 0, 2), Err(Distrust::Owner(0))),
        (entry(0o040_770, USER, 2), Err(Distrust::Writable)),
        (entry(0o120_777, USER, 1), Err(Distrust::Kind)),
        (entry(0o100_600, USER, 1), Err(Distrust::Kind)),
    ] {
        assert_eq!(directory.check_directory(USER), expected, "{directory:?}");
    }
    for (file, expected) in [
        (entry(0o100_600, USER, 1), Ok(())),
        // A removed file: the caller has it open.
        (entry(0o100_600, USER, 0), Ok(())),
        (entry(0o100_600, USER, 2), Err(Distrust::Links(2))),
        (entry(0o100_600, 0, 1), Err(Distrust::Owner(0))),
        (entry(0o100_602, USER, 1), Err(Distrust::Writable)),
        (entry(0o010_600, USER, 1), Err(Distrust::Kind)),
        (entry(0o040_700, USER, 1), Err(Distrust::Kind)),
    ] {
        assert_eq!(file.check_file(USER), expected, "{file:?}");
    }
}
