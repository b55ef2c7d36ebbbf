use super::*;

const LIST: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0"><dict>
<key>CFBundleName</key><string>Paint</string>
<key>CFBundleShortVersionString</key><string>1.2.3</string>
<key>CFBundleVersion</key><string>45</string>
<key>UIRequiredDeviceCapabilities</key><array><string>arm64</string></array>
</dict></plist>"#;

fn bundle(list: &[u8], executable: &str, place: &str) -> Stated {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(executable);
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::write(folder.path().join(place), list).unwrap();
    Stated::read_bundle(&program)
}

#[test]
fn macos_and_ios_bundles_have_name_version_and_build() {
    let text = |text: &str| Some(text.to_owned());
    let stated = Stated { name: text("Paint"), version: text("1.2.3"), build: text("45") };
    let mut binary = Vec::new();
    Value::from_reader(std::io::Cursor::new(LIST)).unwrap().to_writer_binary(&mut binary).unwrap();
    for list in [LIST.as_bytes(), &binary] {
        assert_eq!(bundle(list, "Paint.app/Contents/MacOS/paint", "Paint.app/Contents/Info.plist"), stated);
        assert_eq!(bundle(list, "Paint.app/paint", "Paint.app/Info.plist"), stated);
    }
}

#[test]
fn a_program_outside_a_bundle_and_a_damaged_list_have_no_facts() {
    assert_eq!(bundle(LIST.as_bytes(), "bin/paint", "bin/Info.plist"), Stated::default());
    assert_eq!(bundle(&LIST.as_bytes()[..300], "Paint.app/paint", "Paint.app/Info.plist"), Stated::default());
    assert_eq!(bundle(b"bplist00\xff\xff", "Paint.app/paint", "Paint.app/Info.plist"), Stated::default());
}
