use super::*;

#[test]
fn os_release_is_read_with_and_without_quotes() {
    let text = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"13\"\nID=debian\n";
    assert_eq!(os_release(text, "ID"), "debian");
    assert_eq!(os_release(text, "VERSION_ID"), "13");
    assert_eq!(os_release(text, "BUILD_ID"), "");
}
