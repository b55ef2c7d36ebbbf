//! The reasons why a program can't be run.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a program was not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program does not exist.
    #[error("can't run `{}`: no such program", .0.display())]
    NotFound(PathBuf),
    /// A script's interpreter, or a program's dynamic linker, does not exist.
    #[error("can't run `{}`: its interpreter does not exist", .0.display())]
    NoInterpreter(PathBuf),
    /// The path is a folder.
    #[error("can't run `{}`: it is a folder", .0.display())]
    Folder(PathBuf),
    /// The file is not executable.
    #[error("can't run `{}`: not an executable file", .0.display())]
    NotExecutable(PathBuf),
    /// The system failed to start the program.
    #[error("can't run `{}`: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program's end can't be awaited.
    #[error("can't wait for the program: {0}")]
    Wait(io::Error),
}

/// Explains a program's failed start.
pub(super) fn start_error(program: &OsStr, source: io::Error) -> RunError {
    let path = PathBuf::from(program);
    let is_path = program.as_encoded_bytes().contains(&b'/');
    match source.kind() {
        io::ErrorKind::NotFound if is_path && path.is_file() => RunError::NoInterpreter(path),
        io::ErrorKind::NotFound => RunError::NotFound(path),
        io::ErrorKind::PermissionDenied if is_path && path.is_dir() => RunError::Folder(path),
        io::ErrorKind::PermissionDenied if !is_path || is_not_executable(&path) => RunError::NotExecutable(path),
        _ => RunError::Start { program: path, source },
    }
}

fn is_not_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0)
}
