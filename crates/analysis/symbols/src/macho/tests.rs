use super::*;

#[test]
fn fat_headers_are_checked() {
    let fat = |words: &[u32]| Bytes::owned(words.iter().flat_map(|word| word.to_be_bytes()).collect());
    assert!(slices(&fat(&[FAT_MAGIC, 52])).unwrap().is_none(), "a Java class");
    assert_eq!(slices(&fat(&[FAT_MAGIC, 2, 0x0100_000c])).unwrap_err().offset, 8);
    let error = slices(&fat(&[FAT_MAGIC, 1, 0x0100_000c, 0, 28, 1, 0])).unwrap_err();
    assert_eq!(error.offset, 8, "one byte too long: {error:?}");
    assert!(slices(&fat(&[FAT_MAGIC, 1, 7, 0, 28, 0, 0])).is_err(), "32-bit alone");
    assert!(slices(&Bytes::owned(vec![])).unwrap().is_none());
    assert!(slices(&Bytes::owned(MH_MAGIC_32.to_vec())).is_err());
}
