use super::*;

#[test]
fn a_version_is_formatted_with_dots() {
    assert_eq!(version_text(0x0527_6403).as_c_str(), c"1319.100.3");
    assert_eq!(version_text(0x0001_0000).as_c_str(), c"1.0.0");
    assert_eq!(version_text(0xffff_ffff).as_c_str(), c"65535.255.255");
}
