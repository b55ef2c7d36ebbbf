use super::*;

#[test]
fn numbers() {
    let mut text = [0; 64];
    for (value, wanted) in [(0, "0"), (-7, "-7"), (i128::from(u64::MAX), "18446744073709551615")] {
        let length = put_decimal(&mut text, value);
        assert_eq!(&text[..length], wanted.as_bytes());
    }
    let length = put_decimal(&mut text, i128::from(i64::MIN));
    assert_eq!(&text[..length], b"-9223372036854775808");
    assert_eq!(put(&mut [0; 3], 1, b"abcd"), 3);
}
