//! Where an app's data goes when it does not say.

use std::ffi::OsString;
use std::path::PathBuf;

/// The default store of the app `app`:
///
/// * Linux: `$XDG_DATA_HOME/<app>/coroner`, or `~/.local/share/<app>/coroner` (XDG Base Directory Specification 0.8);
/// * macOS and iOS: `~/Library/Application Support/<app>/Coroner` (in an app's sandbox `~` is its container), which is in
///   backups and not purged by the system, as `Caches` is.
///
/// `None` where there is no home directory, and on Android, whose apps learn their directory from their `Context` only.
pub fn default_store_dir(app: &str) -> Option<PathBuf> {
    default_store_dir_in(app, &|name| std::env::var_os(name))
}

/// [`default_store_dir`] with the environment given.
fn default_store_dir_in(app: &str, variable: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // An app id is a name and not a path: `../../other` must not lead elsewhere.
    let app = app.replace(['/', '\0'], "-");
    if app.is_empty() || app == "." || app == ".." || cfg!(target_os = "android") {
        return None;
    }
    let directory = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if cfg!(target_vendor = "apple") {
        return Some(directory("HOME")?.join("Library/Application Support").join(app).join("Coroner"));
    }
    // The specification has relative paths ignored.
    let data = directory("XDG_DATA_HOME").or_else(|| Some(directory("HOME")?.join(".local/share")))?;
    Some(data.join(app).join("coroner"))
}

#[cfg(all(test, target_os = "macos"))]
mod darwin_tests {
    use super::*;

    #[test]
    fn it_is_in_the_library_of_the_home_directory() {
        let store = |app: &str, home: Option<&str>| {
            let find = |name: &str| home.filter(|_| name == "HOME").map(OsString::from);
            default_store_dir_in(app, &find).map(|path| path.to_str().unwrap().to_owned())
        };
        let home = Some("/Users/ann");
        assert_eq!(store("app", home).unwrap(), "/Users/ann/Library/Application Support/app/Coroner");
        assert_eq!(store("../x", home).unwrap(), "/Users/ann/Library/Application Support/..-x/Coroner");
        assert_eq!(store("app", None), None);
        assert_eq!(store("app", Some("relative")), None);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    fn store(app: &str, variables: &[(&str, &str)]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        default_store_dir_in(app, &find).map(|path| path.to_str().unwrap().to_owned())
    }

    #[test]
    fn it_follows_the_base_directory_specification() {
        assert_eq!(store("app", &[("HOME", "/h")]).unwrap(), "/h/.local/share/app/coroner");
        assert_eq!(store("app", &[("HOME", "/h"), ("XDG_DATA_HOME", "/d")]).unwrap(), "/d/app/coroner");
        assert_eq!(store("app", &[("HOME", "/h"), ("XDG_DATA_HOME", "rel")]).unwrap(), "/h/.local/share/app/coroner");
        assert_eq!(store("app", &[]), None);
    }

    #[test]
    fn an_app_id_is_a_name_and_not_a_path() {
        assert_eq!(store("../../x", &[("HOME", "/h")]).unwrap(), "/h/.local/share/..-..-x/coroner");
        assert_eq!(store("..", &[("HOME", "/h")]), None);
        assert_eq!(store("", &[("HOME", "/h")]), None);
    }
}
