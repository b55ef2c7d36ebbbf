//! The shared library in a program that does not know of it: `coroner run` preloads it (`LD_PRELOAD`), and its constructor installs Coroner.
//!
//! It does so only where [`STORES`] names a folder, and never in a program that got rights from its file (set-user-ID, file capabilities). Each
//! process has a store of its own in that folder, named by its process id, so that none takes in what another has left.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use coroner::{Config, Crashes, Delivery, SignalSet};

/// The variable that names the folder for the stores. Without it the constructor does nothing.
const STORES: &str = "CORONER_PRELOAD_STORES";

/// What the dynamic linker calls when it has loaded the library, before the program's own constructors and `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Some(stores) = std::env::var_os(STORES) else { return };
    // SAFETY: it reads the auxiliary vector, which the C library has by now.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return;
    }
    // A panic may not leave it; of one in here nothing is to be seen but that there is no store.
    let _ = std::panic::catch_unwind(|| install(Path::new(&stores)));
}

fn install(stores: &Path) {
    // Without `/proc` there is how it was called.
    let called = || std::env::args_os().next().map(PathBuf::from);
    let executable = std::env::current_exe().ok().or_else(called).unwrap_or_default();
    let name = executable.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // The kernel's mark of a file that has no name any more, as that of a memfd never has.
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    let store = stores.join(std::process::id().to_string());
    let config = Config::new(if name.is_empty() { "program" } else { name })
        .store_dir(&store)
        // What is left is read by who has started the program.
        .no_sinks()
        .delivery(Delivery::new().at_install(false).symbolicate(false))
        // A program that looks whether a signal was left alone, as Python does with SIGINT, finds it so.
        .crashes(Crashes::new().endings(SignalSet::EMPTY).reinstall_handlers(is_node()));
    let installed = coroner::install(config);
    if installed.is_ok() && OURS.set((std::process::id(), store)).is_ok() {
        // SAFETY: the function takes nothing, and stays loaded as the library does.
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

/// The process that installed, and its store.
static OURS: OnceLock<(u32, PathBuf)> = OnceLock::new();

/// Behind all that the program has to do at its end: it has ended well, and a build with thousands of processes has thousands of stores.
extern "C" fn at_exit() {
    // A child by fork has the parent's function, too.
    if let Some((_, store)) = OURS.get().filter(|(process, _)| *process == std::process::id()) {
        let _ = std::panic::catch_unwind(|| remove_unused(store));
    }
}

/// Removes a store that has nothing but the run of this process: another one is of a child by fork, which has crashed.
fn remove_unused(store: &Path) -> std::io::Result<()> {
    if std::fs::read_dir(store.join("runs"))?.count() <= 1 { std::fs::remove_dir_all(store) } else { Ok(()) }
}

/// Whether the program is Node.js, or something that embeds it: as it starts, it gives each signal its default action, since its parent may
/// have left others (`PlatformInit` in src/node.cc).
fn is_node() -> bool {
    // SAFETY: it looks a name up; the program and its libraries are loaded by now.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"napi_create_function".as_ptr()) }.is_null()
}

/// Takes the signals back in the first seconds of a program that has many threads anyway.
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
    // Without a thread only crashes before that are reported.
    let _ = std::thread::Builder::new().name("coroner".into()).spawn(looks);
}
