//! What the bundle of an app states of it: the file `Info.plist` ("Information Property List", Bundle Resources, Apple).
//!
//! It is read here and not by Foundation, so that an app links nothing for Coroner and install starts no runtime.

use std::path::{Path, PathBuf};

use plist::Value;

use super::Stated;

impl Stated {
    /// Of the bundle that `program` is the executable of. `None` if it is in none, or the list can't be understood.
    pub(super) fn by_bundle_of(program: &Path) -> Stated {
        let read = |path: PathBuf| Value::from_file(path).ok()?.into_dictionary();
        let Some(list) = places(program).find_map(read) else { return Stated::default() };
        let text = |key: &str| list.get(key).and_then(Value::as_string).map(str::to_owned);
        Stated {
            name: text("CFBundleDisplayName").or_else(|| text("CFBundleName")),
            version: text("CFBundleShortVersionString"),
            build: text("CFBundleVersion"),
        }
    }
}

/// Where the list of a program is: `App.app/Contents/MacOS/app` has it in `App.app/Contents` (macOS), `App.app/app` beside
/// itself (iOS).
fn places(program: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = program.parent();
    let contents = folder.filter(|folder| folder.ends_with("Contents/MacOS")).and_then(Path::parent);
    let flat = folder.filter(|folder| folder.extension().is_some_and(|kind| kind == "app" || kind == "appex"));
    [contents, flat].into_iter().flatten().map(|folder| folder.join("Info.plist"))
}

#[cfg(test)]
mod tests {
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
        Stated::by_bundle_of(&program)
    }

    #[test]
    fn bundles_of_macos_and_ios_state_name_version_and_build() {
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
    fn elsewhere_and_in_a_damaged_list_nothing_is_stated() {
        assert_eq!(bundle(LIST.as_bytes(), "bin/paint", "bin/Info.plist"), Stated::default());
        assert_eq!(bundle(&LIST.as_bytes()[..300], "Paint.app/paint", "Paint.app/Info.plist"), Stated::default());
        assert_eq!(bundle(b"bplist00\xff\xff", "Paint.app/paint", "Paint.app/Info.plist"), Stated::default());
    }
}
