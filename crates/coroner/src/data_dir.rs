//! Where an app's data goes when it does not say.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The default store of the app `app`. Linux, the first that there is:
///
/// * `$STATE_DIRECTORY/<app>/coroner`: what systemd gives a service with `StateDirectory=` (systemd.exec(5)), the first of them;
/// * `$XDG_STATE_HOME/<app>/coroner`, or `~/.local/state/<app>/coroner` (XDG Base Directory Specification 0.8) if there is a home
///   directory: that of services is often one that does not exist (`/nonexistent`), and is not made;
/// * for root `/var/lib/<app>/coroner`.
///
/// A store that an earlier version made in `$XDG_DATA_HOME` or `~/.local/share` is used where it is.
///
/// macOS and iOS: `~/Library/Application Support/<app>/Coroner` (in an app's sandbox `~` is its container), which is in backups and
/// not purged by the system, as `Caches` is.
///
/// `None` if there is none of them, and on Android, whose apps learn their directory from their `Context` only.
pub fn default_store_dir(app: &str) -> Option<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    default_store_dir_in(app, is_root, &|name| std::env::var_os(name), &Path::is_dir)
}

/// [`default_store_dir`] with the environment given, and which directories there are.
fn default_store_dir_in(
    app: &str,
    is_root: bool,
    variable: &dyn Fn(&str) -> Option<OsString>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    // An app id is a name and not a path: `../../other` must not lead elsewhere.
    let app = app.replace(['/', '\0'], "-");
    if app.is_empty() || app == "." || app == ".." || cfg!(target_os = "android") {
        return None;
    }
    // The specification has relative paths ignored.
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let directory = |name| variable(name).map(PathBuf::from).and_then(absolute);
    let home = directory("HOME");
    if cfg!(target_vendor = "apple") {
        return Some(home?.join("Library/Application Support").join(app).join("Coroner"));
    }
    let home = home.filter(|home| exists(home));
    let below = |parent: PathBuf| parent.join(&app).join("coroner");
    let earlier = directory("XDG_DATA_HOME").or_else(|| Some(home.as_ref()?.join(".local/share")));
    if let Some(earlier) = earlier.map(below).filter(|store| exists(&store.join("runs"))) {
        return Some(earlier);
    }
    // Several are separated by colons.
    let of_service = variable("STATE_DIRECTORY").and_then(|list| {
        let first = list.as_bytes().split(|byte| *byte == b':').next()?;
        absolute(PathBuf::from(OsStr::from_bytes(first)))
    });
    let of_user = || directory("XDG_STATE_HOME").or_else(|| Some(home?.join(".local/state")));
    of_service.or_else(of_user).or_else(|| is_root.then(|| PathBuf::from("/var/lib"))).map(below)
}

#[cfg(all(test, target_os = "macos"))]
mod darwin_tests {
    use super::*;

    #[test]
    fn it_is_in_the_library_of_the_home_directory() {
        let store = |app: &str, home: Option<&str>| {
            let find = |name: &str| home.filter(|_| name == "HOME").map(OsString::from);
            default_store_dir_in(app, true, &find, &|_| true).map(|path| path.to_str().unwrap().to_owned())
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

    /// A machine on which there are `/h` and what is named.
    fn store_among(app: &str, is_root: bool, variables: &[(&str, &str)], there: &[&str]) -> Option<String> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let exists = |path: &Path| path == Path::new("/h") || there.iter().any(|other| path == Path::new(other));
        default_store_dir_in(app, is_root, &find, &exists).map(|path| path.to_str().unwrap().to_owned())
    }

    fn store(app: &str, variables: &[(&str, &str)]) -> Option<String> {
        store_among(app, false, variables, &[])
    }

    #[test]
    fn it_follows_the_base_directory_specification() {
        assert_eq!(store("app", &[("HOME", "/h")]).unwrap(), "/h/.local/state/app/coroner");
        assert_eq!(store("app", &[("HOME", "/h"), ("XDG_STATE_HOME", "/d")]).unwrap(), "/d/app/coroner");
        assert_eq!(store("app", &[("HOME", "/h"), ("XDG_STATE_HOME", "rel")]).unwrap(), "/h/.local/state/app/coroner");
        assert_eq!(store("app", &[]), None);
    }

    #[test]
    fn services_need_no_home() {
        let state = ("STATE_DIRECTORY", "/var/lib/paint:/var/lib/other");
        assert_eq!(store("app", &[state, ("HOME", "/h")]).unwrap(), "/var/lib/paint/app/coroner");
        assert_eq!(store("app", &[("STATE_DIRECTORY", "rel"), ("HOME", "/h")]).unwrap(), "/h/.local/state/app/coroner");
        let nobody = [("HOME", "/nonexistent")];
        assert_eq!(store("app", &nobody), None);
        for variables in [&nobody[..], &[]] {
            assert_eq!(store_among("app", true, variables, &[]).unwrap(), "/var/lib/app/coroner");
        }
    }

    #[test]
    fn a_store_of_an_earlier_version_is_used() {
        let store = |variables: &[(&str, &str)], there| store_among("app", false, variables, &[there]).unwrap();
        let state = ("STATE_DIRECTORY", "/s");
        assert_eq!(store(&[("HOME", "/h"), state], "/h/.local/share/app/coroner/runs"), "/h/.local/share/app/coroner");
        assert_eq!(store(&[("HOME", "/h"), ("XDG_DATA_HOME", "/d")], "/d/app/coroner/runs"), "/d/app/coroner");
        assert_eq!(store(&[("HOME", "/h")], "/h/.local/share/app"), "/h/.local/state/app/coroner");
    }

    #[test]
    fn an_app_id_is_a_name_and_not_a_path() {
        assert_eq!(store("../../x", &[("HOME", "/h")]).unwrap(), "/h/.local/state/..-..-x/coroner");
        assert_eq!(store("..", &[("HOME", "/h")]), None);
        assert_eq!(store("", &[("HOME", "/h")]), None);
    }
}
