use super::*;

#[test]
fn a_signal_is_ignored_once_and_only_on_its_thread() {
    assert!(ignore_next(7, 11));
    assert!(!take_ignored(8, 11));
    assert!(!take_ignored(7, 10));
    assert!(take_ignored(7, 11));
    assert!(!take_ignored(7, 11));
}

#[test]
fn the_same_fault_twice_in_a_row_is_not_repaired() {
    assert!(try_again(9, 0x1000, 0));
    assert!(!try_again(9, 0x1000, 0));
    assert!(try_again(9, 0x1000, 0x2000), "another page");
    assert!(try_again(9, 0x1004, 0x2000), "another instruction");
}
