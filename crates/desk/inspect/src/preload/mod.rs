//! Reports crashes of an unmodified program by preloading the shared library (`LD_PRELOAD`).

mod library;
mod program;
mod signal_forwarding;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

pub use library::{LIBRARY_NAME, LIBRARY_VARIABLE};
pub use program::NotPreloadable;
pub use signal_forwarding::end_by_signal;

/// The library's environment variable for the folder that contains each process's store.
const STORES: &str = "CORONER_PRELOAD_STORES";
const PRELOAD: &str = "LD_PRELOAD";

/// The reason a program was not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreloadError {
    /// The program does not exist.
    #[error("can't run `{}`: no such program", .0.display())]
    NotFound(PathBuf),
    /// The path is a folder.
    #[error("can't run `{}`: it is a folder", .0.display())]
    Folder(PathBuf),
    /// The file is not executable.
    #[error("can't run `{}`: not an executable file", .0.display())]
    NotExecutable(PathBuf),
    /// The dynamic linker would not load the library into the program.
    #[error("can't preload the library into `{}`: {why}", program.display())]
    NotPreloadable {
        /// The program, or the interpreter of a script.
        program: PathBuf,
        /// The reason.
        why: NotPreloadable,
    },
    /// A script's interpreter can't be run.
    #[error(transparent)]
    Interpreter(Box<PreloadError>),
    /// The system failed to start the program.
    #[error("can't run `{}`: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The library is neither beside this command nor where packages install it.
    #[error("can't find {LIBRARY_NAME} beside `{}` or in ../lib", .0.display())]
    NoLibrary(PathBuf),
    /// Another step failed.
    #[error("{doing}: {source}")]
    System {
        /// The failed step.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
}

impl PreloadError {
    fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        |source| Self::System { doing, source }
    }
}

/// Runs a program to its end with the library preloaded. Returns its process id and exit status.
///
/// Signals that this process receives meanwhile are forwarded to the program. Each process has its
/// store in a folder of `stores`, named by its process id.
///
/// # Errors
/// See [`PreloadError`].
pub fn run_preloaded(
    program: &OsStr,
    arguments: &[OsString],
    stores: &Path,
) -> Result<(u32, ExitStatus), PreloadError> {
    let path = program::find(program)?;
    program::check(&path)?;
    let mut preload = library::find(stores)?.into_os_string();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&path);
    command.arg0(program).args(arguments).env(PRELOAD, preload).env(STORES, stores);
    signal_forwarding::begin();
    let mut child = command.spawn().map_err(|source| PreloadError::Start { program: path, source })?;
    signal_forwarding::forward_to(child.id());
    let status = child.wait().map_err(PreloadError::system("can't wait for the program"));
    signal_forwarding::end();
    Ok((child.id(), status?))
}
