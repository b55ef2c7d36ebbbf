use super::*;

#[test]
fn image_lines_are_parsed() {
    let ios = image(
        "0x102d18000 - 0x102d23fff My App arm64  <a47fbd1de98b3eed8e54afe0f7c0eea4> /var/containers/My App.app/My App",
        Arch::Other,
    )
    .unwrap();
    assert_eq!((ios.name.as_str(), ios.path.as_str()), ("My App", "/var/containers/My App.app/My App"));
    assert_eq!((ios.load_address, ios.size, ios.arch), (0x1_02d1_8000, 0xc000, Arch::Aarch64));
    assert_eq!(ios.debug_id.unwrap().to_string(), "a47fbd1de98b3eed8e54afe0f7c0eea4");
    let mac = image(
        "       0x10b2d5000 -        0x10b2d8fff +com.example.App (1.0 - 1) <A47FBD1D-E98B-3EED-8E54-AFE0F7C0EEA4> /A/App",
        Arch::X86_64,
    )
    .unwrap();
    assert_eq!((mac.name.as_str(), mac.path.as_str(), mac.arch), ("com.example.App", "/A/App", Arch::X86_64));
    let unknown = image("0x7fff0000 - 0xffffffffffffffff ??? (*) <00000000000000000000000000000000> ???", Arch::Other);
    assert_eq!(unknown.unwrap().debug_id, None);
    assert_eq!(image("EOF", Arch::Other), None);
    assert_eq!(image("0xzz - 0x10 a", Arch::Other), None);
}

#[test]
fn an_unknown_end_is_the_start_of_the_next_image() {
    let text =
        "Binary Images:\n  0x1000 - ??? a <A47FBD1D-E98B-3EED-8E54-AFE0F7C0EEA4> /a\n *0x3000 - 0x3fff b <0> /b\n";
    let lists = ImageLists::read(text.as_bytes());
    assert_eq!((lists.images[0].size, lists.images[1].load_address), (0x2000, 0x3000));
    assert_eq!(
        (lists.image_at(0, 0x2fff), lists.image_at(0, 0x3000), lists.image_at(0, 0x4000)),
        (Some(0), Some(1), None)
    );
}

#[test]
fn images_are_found_in_a_processs_own_list_or_the_kernels() {
    let text = "stack of a\nBinary Images:\n0x1000 - 0x1fff a\n\nstack of b\nBinary Images:\n0x1000 - 0x1fff b\n0x9000 - 0x9fff k\n";
    let lists = ImageLists::read(text.as_bytes());
    let of_b = text.find("stack of b").unwrap();
    assert_eq!((lists.image_at(0, 0x1000), lists.image_at(of_b, 0x1000)), (Some(0), Some(1)));
    assert_eq!(lists.image_at(0, 0x9000), Some(2));
}
