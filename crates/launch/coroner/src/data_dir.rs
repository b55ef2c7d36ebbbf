//! Where an app's data goes when it does not say.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The default store of the app `app`. Linux, the first that there is:
///
/// * `$STATE_DIRECTORY/<app>/coroner`: what systemd gives a service with `StateDirectory=` (systemd.exec(5)), the first of them;
/// * `$XDG_STATE_HOME/<app>/coroner`, or `~/.local/state/<app>/coroner` (XDG Base Directory Specification 0.8) if there is a home
///   directory: that of services is often one that does not exist (`/nonexistent`), and is not made;
/// * for root `/var/lib/<app>/coroner`.
///
/// macOS and iOS: `~/Library/Application Support/<app>/Coroner` (in an app's sandbox `~` is its container), which is in backups and
/// not purged by the system, as `Caches` is.
///
/// Windows: `%LOCALAPPDATA%\\<app>\\Coroner`. Other systems: as Linux.
///
/// `None` if there is none of them, and on Android, whose apps learn their directory from their `Context` only.
pub fn default_store_dir(app: &str) -> Option<PathBuf> {
    #[cfg(unix)]
    let is_root = rustix::process::geteuid().is_root();
    #[cfg(not(unix))]
    let is_root = false;
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
    const NOT_IN_NAMES: &[char] =
        if cfg!(windows) { &['/', '\0', '\\', ':', '*', '?', '"', '<', '>', '|'] } else { &['/', '\0'] };
    let app = app.replace(NOT_IN_NAMES, "-");
    if app.is_empty() || app == "." || app == ".." || cfg!(target_os = "android") {
        return None;
    }
    // The specification has relative paths ignored.
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let directory = |name| variable(name).map(PathBuf::from).and_then(absolute);
    if cfg!(windows) {
        return Some(directory("LOCALAPPDATA")?.join(app).join("Coroner"));
    }
    let home = directory("HOME");
    if cfg!(target_vendor = "apple") {
        return Some(home?.join("Library/Application Support").join(app).join("Coroner"));
    }
    let home = home.filter(|home| exists(home));
    let below = |parent: PathBuf| parent.join(&app).join("coroner");
    // Several are separated by colons.
    let of_service = variable("STATE_DIRECTORY").and_then(|list| absolute(std::env::split_paths(&list).next()?));
    let of_user = || directory("XDG_STATE_HOME").or_else(|| Some(home?.join(".local/state")));
    of_service.or_else(of_user).or_else(|| is_root.then(|| PathBuf::from("/var/lib"))).map(below)
}

#[cfg(all(test, target_os = "macos"))]
mod darwin_tests;

#[cfg(all(test, target_os = "linux"))]
mod linux_tests;
