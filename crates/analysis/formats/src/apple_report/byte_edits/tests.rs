use super::*;

#[test]
fn bytes_outside_the_edits_are_kept() {
    let mut edits = Edits::default();
    edits.replace(6..11, "all");
    edits.insert(0, "> ");
    edits.insert(11, "!");
    edits.insert(11, "!");
    // Two invalid edits: one that overlaps, one beyond the end.
    edits.replace(7..9, "x");
    edits.replace(11..40, "y");
    assert_eq!(edits.apply(b"hello world"), b"> hello all!!");
    assert_eq!(Edits::default().apply(b"as it was"), b"as it was");
}
