//! Reads an app bundle's facts from its file `Info.plist`.
//!
//! Source: "Information Property List", Bundle Resources, Apple. It is parsed here and not by
//! Foundation, so that Coroner doesn't add a dependency to the app, and install starts no runtime.

use std::path::{Path, PathBuf};

use plist::Value;

use super::Stated;

impl Stated {
    /// Reads the facts of the bundle whose executable is `program`.
    ///
    /// All are `None` if the program isn't in a bundle, or if the list is invalid.
    pub(super) fn read_bundle(program: &Path) -> Stated {
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

/// Returns the possible paths of a program's list: in `App.app/Contents` for
/// `App.app/Contents/MacOS/app` (macOS), and beside the program for `App.app/app` (iOS).
fn places(program: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = program.parent();
    let contents = folder.filter(|folder| folder.ends_with("Contents/MacOS")).and_then(Path::parent);
    let flat = folder.filter(|folder| folder.extension().is_some_and(|kind| kind == "app" || kind == "appex"));
    [contents, flat].into_iter().flatten().map(|folder| folder.join("Info.plist"))
}

#[cfg(test)]
mod tests;
