use super::*;

#[test]
fn a_name_ends_at_its_first_nul() {
    let words = [u64::from_le_bytes(*b"worker\0x"), 0];
    assert_eq!(ThreadName::from_words(words).as_bytes(), b"worker");
    let words = [u64::from_le_bytes(*b"01234567"), u64::from_le_bytes(*b"89abcdef")];
    assert_eq!(ThreadName::from_words(words).as_bytes(), b"0123456789abcde");
}
