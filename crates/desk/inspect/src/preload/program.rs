//! Finds a program, and checks whether the dynamic linker would load a library into it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, elf};

use super::PreloadError;

/// Maximum number of nested script interpreters, as in the kernel (`BINPRM_MAX_RECURSION`).
const MAX_INTERPRETERS: usize = 5;
/// Bytes to read, enough for a script's first line and a program's headers.
const MAX_HEAD: u64 = 1 << 16;

const MACHINE: elf::Machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

/// The reason a library can't be preloaded into a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotPreloadable {
    /// Neither ELF nor a script.
    #[error("neither an ELF program nor a script with an interpreter (`#!`)")]
    UnknownFormat,
    /// A 32-bit program.
    #[error("it is a 32-bit program, but the library is 64-bit")]
    Narrow,
    /// The program's ELF headers can't be read.
    #[error("damaged ELF headers: {0}")]
    Damaged(String),
    /// The program is for another processor.
    #[error("it is built for another processor")]
    OtherProcessor,
    /// A static program, which has no dynamic linker.
    #[error("it is statically linked")]
    Static,
    /// The library needs another C library.
    #[error("it uses another C library (musl or glibc) than the library")]
    OtherLibc,
    /// The dynamic linker ignores `LD_PRELOAD` in set-user-ID programs.
    #[error("it is set-user-ID or set-group-ID, for which the system ignores LD_PRELOAD")]
    ChangesUser,
}

/// Finds a program by path, or by name in the folders of `PATH`.
pub(super) fn find(name: &OsStr) -> Result<PathBuf, PreloadError> {
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let candidates = candidates(name);
    if let Some(program) = candidates.iter().find(|path| is_program(path)) {
        return Ok(program.clone());
    }
    // For a name without a slash, a folder in `PATH` is skipped.
    let is_there = |path: &PathBuf| path.is_file() || path.exists() && path.as_os_str() == name;
    Err(match candidates.into_iter().find(is_there) {
        Some(other) if other.is_dir() => PreloadError::Folder(other),
        Some(other) => PreloadError::NotExecutable(other),
        None => PreloadError::NotFound(name.into()),
    })
}

/// Returns a name's possible paths: one per folder of `PATH`, or the name itself if it is a path.
fn candidates(name: &OsStr) -> Vec<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return vec![PathBuf::from(name)];
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&folders)
        .map(|folder| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder }.join(name))
        .collect()
}

/// Checks that a library can be preloaded into a program, or into the interpreter of a script.
pub(super) fn check(program: &Path) -> Result<(), PreloadError> {
    let mut path = program.to_owned();
    for _ in 0..MAX_INTERPRETERS {
        let mut head = Vec::new();
        // A program may be executable but not readable; then nothing is known about it.
        let Ok(file) = File::open(&path) else { return Ok(()) };
        if file.take(MAX_HEAD).read_to_end(&mut head).is_err() {
            return Ok(());
        }
        let Some(line) = head.strip_prefix(b"#!") else {
            return check_elf(&path, &head).map_err(|why| PreloadError::NotPreloadable { program: path, why });
        };
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line).into_owned();
        let mut words = line.split_whitespace();
        let Some(interpreter) = words.next() else { return Ok(()) };
        path = match (Path::new(interpreter).file_name(), words.next()) {
            (Some(env), Some(name)) if env == "env" && !name.starts_with('-') => {
                find(OsStr::new(name)).map_err(|error| PreloadError::Interpreter(Box::new(error)))?
            }
            _ => PathBuf::from(interpreter),
        };
    }
    Ok(())
}

fn check_elf(path: &Path, head: &[u8]) -> Result<(), NotPreloadable> {
    if !head.starts_with(b"\x7fELF") {
        return Err(NotPreloadable::UnknownFormat);
    }
    if head.get(4) != Some(&2) {
        return Err(NotPreloadable::Narrow);
    }
    let parsed = elf::FileHeader64::<Endianness>::parse(head).and_then(|header| {
        let endian = header.endian()?;
        Ok((header.e_machine(endian), header.program_headers(endian, head)?, endian))
    });
    let (machine, segments, endian) = parsed.map_err(|error| NotPreloadable::Damaged(error.to_string()))?;
    if machine != MACHINE {
        return Err(NotPreloadable::OtherProcessor);
    }
    let Some(interpreter) = segments.iter().find(|segment| segment.p_type(endian) == elf::PT_INTERP) else {
        return Err(NotPreloadable::Static);
    };
    let (offset, size) = interpreter.file_range(endian);
    let name = usize::try_from(offset).ok().zip(usize::try_from(offset.saturating_add(size)).ok());
    let name = name.and_then(|(from, to)| head.get(from..to)).unwrap_or_default();
    if name.windows(7).any(|part| part == b"ld-musl") != cfg!(target_env = "musl") {
        return Err(NotPreloadable::OtherLibc);
    }
    if let Ok(metadata) = std::fs::metadata(path) {
        let mode = metadata.permissions().mode();
        let changes_user = mode & 0o4000 != 0 && metadata.uid() != nix::unistd::geteuid().as_raw();
        let changes_group = mode & 0o2010 == 0o2010 && metadata.gid() != nix::unistd::getegid().as_raw();
        if changes_user || changes_group {
            return Err(NotPreloadable::ChangesUser);
        }
    }
    Ok(())
}
