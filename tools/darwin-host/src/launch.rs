//! The command: arguments, the main thread's stack, and the program's start.

use std::{
    env,
    ffi::{CString, OsString},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::host::{
    gate::{self, Beginning},
    kernel::{self, lock, pages, thread::Thread},
    libsystem::{conditions, process},
    loader, mach, signals,
};

/// The main thread's stack: 8 MiB, above inaccessible pages.
///
/// Source: <mach/vm_param.h>; MAXSSIZ of XNU's bsd/i386/vmparam.h is the 64 MiB that it may grow
/// to.
const MAIN_STACK: usize = 8 << 20;
const MAIN_GUARD: usize = 1 << 20;

static STACK_GUARD: AtomicUsize = AtomicUsize::new(0);
static STACK_END: AtomicUsize = AtomicUsize::new(0);

/// The main thread's stack with its guard: lowest address and end.
pub(crate) fn main_stack() -> (usize, usize) {
    (STACK_GUARD.load(Ordering::Relaxed), STACK_END.load(Ordering::Relaxed))
}

/// The words before the program's path on its command line.
static PREFIX: OnceLock<Vec<CString>> = OnceLock::new();

/// Returns the words that run a Mach-O program: the launcher, if any, the host, its options.
pub(crate) fn prefix() -> Vec<CString> {
    PREFIX.get().cloned().unwrap_or_default()
}

fn fail(message: &str) -> ! {
    eprintln!("darwin-host: {message}");
    std::process::exit(kernel::ending::REFUSED)
}

const USAGE: &str = "usage: darwin-host [--libraries FOLDER] [--launcher PROGRAM] PROGRAM [ARGUMENT…]";

/// Returns the option's value, from `--option VALUE`.
fn value(arguments: &mut impl Iterator<Item = OsString>, option: &str) -> PathBuf {
    match arguments.next() {
        Some(value) => std::path::absolute(value).unwrap_or_default(),
        None => fail(&format!("{option} needs a value; {USAGE}")),
    }
}

/// Runs the command.
pub(crate) fn main() -> ! {
    let mut arguments = env::args_os().skip(1);
    let (mut libraries, mut launcher) = (None, None);
    let program = loop {
        match arguments.next() {
            None => fail(USAGE),
            Some(option) if option == "--libraries" => libraries = Some(value(&mut arguments, "--libraries")),
            Some(option) if option == "--launcher" => launcher = Some(value(&mut arguments, "--launcher")),
            Some(program) => break program,
        }
    };
    let path = std::path::absolute(&program).unwrap_or_else(|_| PathBuf::from(&program));
    let text = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    let mut words = Vec::new();
    if let Some(launcher) = &launcher {
        words.push(text(launcher));
    }
    // qemu answers reads of /proc/self/exe with the host's own path.
    words.push(text(&env::current_exe().unwrap_or_else(|e| fail(&format!("its own path: {e}")))));
    for (option, path) in [("--libraries", &libraries), ("--launcher", &launcher)] {
        if let Some(path) = path {
            words.push(CString::new(option).unwrap_or_default());
            words.push(text(path));
        }
    }
    let _ = PREFIX.set(words);

    let mut program_arguments = vec![CString::new(program.into_vec()).unwrap_or_default()];
    program_arguments.extend(arguments.map(|a| CString::new(a.into_vec()).unwrap_or_default()));
    start(&path, libraries, program_arguments)
}

fn start(path: &Path, libraries: Option<PathBuf>, arguments: Vec<CString>) -> ! {
    conditions::prepare();
    pages::prepare();
    signals::prepare();
    mach::tasks::prepare();
    loader::prepare(path, libraries);

    let stack = pages::map(MAIN_STACK + MAIN_GUARD) as usize;
    if stack == 0 {
        fail("no memory for the main thread's stack");
    }
    // SAFETY: a fresh mapping.
    unsafe { libc::mprotect(stack as *mut libc::c_void, MAIN_GUARD, libc::PROT_NONE) };
    STACK_GUARD.store(stack, Ordering::Relaxed);
    STACK_END.store(stack + MAIN_GUARD + MAIN_STACK, Ordering::Relaxed);
    let thread = Thread::create();
    thread.guard = stack;
    thread.stack_low = stack + MAIN_GUARD;
    thread.stack_end = stack + MAIN_GUARD + MAIN_STACK;
    thread.adopt();
    lock().add_thread(thread);

    let main = match loader::load_main(path) {
        Ok(main) => main,
        Err(message) => fail(&message),
    };
    let start = process::prepare(arguments);
    // SAFETY: the stack was created for this, and is unused after the initializers. Both functions
    // take at most four arguments. `main` is entered on its own, at the stack's top.
    unsafe {
        gate::enter(Beginning::Host, initialise as *const () as usize, thread.stack_end, start);
        gate::enter(Beginning::Main, main, thread.stack_end, start)
    };
    fail("main came back to the host: `start` ends the program");
}

/// Runs the initializers, on the program's stack.
extern "C" fn initialise(count: usize, arguments: usize, environment: usize, apple: usize) {
    loader::initialise([count, arguments, environment, apple]);
}
