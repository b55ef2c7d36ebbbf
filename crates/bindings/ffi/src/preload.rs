//! Installation in an unmodified program, for `coroner run`.
//!
//! `coroner run` preloads the library (`LD_PRELOAD`), and its constructor installs Coroner.
//!
//! It does so only if [`STORES`] names a folder, and never in a program that got privileges from
//! its file (set-user-ID, file capabilities). Each process has its own store in that folder, named
//! by its process id, so that no process picks up another's reports.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use coroner::{Config, Crashes, Delivery, SignalSet};

/// The variable with the folder for the stores. If it is unset, the constructor does nothing.
const STORES: &str = "CORONER_PRELOAD_STORES";

/// Called by the dynamic linker on load, before the program's own constructors and `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Some(stores) = std::env::var_os(STORES) else { return };
    // SAFETY: it reads the auxiliary vector, which the C library has set up by now.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    // A panic must not unwind out of a constructor. After one, no store exists, and nothing else is
    // reported.
    let _ = std::panic::catch_unwind(|| install(Path::new(&stores)));
}

fn install(stores: &Path) {
    // Without `/proc`, use the name the program was called by.
    let called = || std::env::args_os().next().map(PathBuf::from);
    let executable = std::env::current_exe().ok().or_else(called).unwrap_or_default();
    let name = executable.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // The kernel appends this to a file that no longer has a name; a memfd never has one.
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    let store = stores.join(std::process::id().to_string());
    let config = Config::new(if name.is_empty() { "program" } else { name })
        .store_dir(&store)
        // The process that started the program reads the store.
        .no_sinks()
        .delivery(Delivery::new().at_install(false).symbolicate(false))
        // A program that checks for a signal's default disposition, as Python does for SIGINT,
        // finds it unchanged.
        .crashes(Crashes::new().endings(SignalSet::EMPTY).reinstall_handlers(is_node()));
    let installed = coroner::install(config);
    if installed.is_ok() && OURS.set((std::process::id(), store)).is_ok() {
        // SAFETY: the function takes no arguments, and stays loaded because the library does.
        unsafe { libc::atexit(at_exit) };
    }
    match installed {
        Ok(coroner) if is_node() => look_again(coroner),
        Ok(_) => {}
        Err(error) => {
            eprintln!("coroner: crashes of process {} ({name}) are not reported: {error}", std::process::id());
        }
    }
}

/// The id of the process that installed Coroner, and its store.
static OURS: OnceLock<(u32, PathBuf)> = OnceLock::new();

/// Removes the store after a clean exit: a build with thousands of processes would leave thousands.
///
/// Handlers run in reverse order of their registration, so this runs after the program's own.
extern "C" fn at_exit() {
    // A child created by fork inherits the parent's exit handlers.
    if let Some((_, store)) = OURS.get().filter(|(process, _)| *process == std::process::id()) {
        let _ = std::panic::catch_unwind(|| remove_unused(store));
    }
}

/// Removes a store that contains only this process's run.
///
/// A second run belongs to a crashed child created by fork.
fn remove_unused(store: &Path) -> std::io::Result<()> {
    if std::fs::read_dir(store.join("runs"))?.count() <= 1 { std::fs::remove_dir_all(store) } else { Ok(()) }
}

/// Whether the program is Node.js or embeds it.
///
/// At startup Node sets each signal to its default action, because its parent may have left others
/// (`PlatformInit` in src/node.cc).
fn is_node() -> bool {
    // SAFETY: it looks up a name; the program and its libraries are loaded by now.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"napi_create_function".as_ptr()) }.is_null()
}

/// Takes the signals back in the first seconds.
///
/// Starts a thread, which is acceptable only in a program that has many threads anyway.
fn look_again(coroner: coroner::Coroner) {
    const AFTER: [Duration; 5] = [
        Duration::from_millis(200),
        Duration::from_millis(1200),
        Duration::from_secs(2),
        Duration::from_secs(4),
        Duration::from_secs(8),
    ];
    let looks = move || {
        for after in AFTER {
            std::thread::sleep(after);
            coroner.flush(Duration::ZERO);
        }
    };
    // If the thread can't be started, crashes are reported only until the program resets the
    // signals.
    let _ = std::thread::Builder::new().name("coroner".into()).spawn(looks);
}
