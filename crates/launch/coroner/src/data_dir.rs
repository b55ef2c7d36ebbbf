//! The default directory of an app's store.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use coroner_process::secure_execution::is_secure;

/// Returns the default store directory of the app `app`.
///
/// Linux, the first that exists:
///
/// * `$STATE_DIRECTORY/<app>/coroner`, for systemd services with `StateDirectory=`
///   (systemd.exec(5)): the first directory in the variable;
/// * `$XDG_STATE_HOME/<app>/coroner`, or `~/.local/state/<app>/coroner` (XDG Base Directory
///   Specification 0.8) if the home directory exists: a service's often doesn't (`/nonexistent`),
///   and is not created;
/// * for root, `/var/lib/<app>/coroner`.
///
/// macOS and iOS: `~/Library/Application Support/<app>/Coroner` (in an app's sandbox `~` is its
/// container), which is included in backups and, unlike `Caches`, not purged by the system.
///
/// Windows: `%LOCALAPPDATA%\<app>\Coroner`. Other systems: as on Linux.
///
/// `None` if none of them exists, and on Android, where apps get their directory only from their
/// `Context`.
///
/// A program with [more rights than its caller](is_secure) ignores the caller's environment: its
/// directory is `/var/lib/<app>/coroner` for root, and there is none for other users.
pub fn default_store_dir(app: &str) -> Option<PathBuf> {
    #[cfg(unix)]
    let is_root = nix::unistd::geteuid().is_root();
    #[cfg(not(unix))]
    let is_root = false;
    default_store_dir_in(app, is_root, &|name| std::env::var_os(name).filter(|_| !is_secure()), &Path::is_dir)
}

/// Like [`default_store_dir`], with the environment and the existing directories as parameters.
fn default_store_dir_in(
    app: &str,
    is_root: bool,
    variable: &dyn Fn(&str) -> Option<OsString>,
    exists: &dyn Fn(&Path) -> bool,
) -> Option<PathBuf> {
    // An app id is a name, not a path: `../../other` must not lead elsewhere.
    const NOT_IN_NAMES: &[char] =
        if cfg!(windows) { &['/', '\0', '\\', ':', '*', '?', '"', '<', '>', '|'] } else { &['/', '\0'] };
    let app = app.replace(NOT_IN_NAMES, "-");
    if app.is_empty() || app == "." || app == ".." || cfg!(target_os = "android") {
        return None;
    }
    // The specification requires ignoring relative paths.
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
    // Several directories are separated by colons.
    let of_service = variable("STATE_DIRECTORY").and_then(|list| absolute(std::env::split_paths(&list).next()?));
    let of_user = || directory("XDG_STATE_HOME").or_else(|| Some(home?.join(".local/state")));
    of_service.or_else(of_user).or_else(|| is_root.then(|| PathBuf::from("/var/lib"))).map(below)
}

#[cfg(all(test, target_os = "macos"))]
mod darwin_tests;

#[cfg(all(test, target_os = "linux"))]
mod linux_tests;
