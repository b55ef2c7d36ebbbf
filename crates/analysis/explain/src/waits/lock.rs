//! Identifies a futex's lock from the waiting function and the memory around the word.

use coroner_report::Report;
use coroner_report::model::{Address, Frame, FutexWait, Thread, WaitKind};

use super::futex::{TID, command, is_private};
use super::{bionic, glibc, musl};
use coroner_report::wire::{AddressKind, Os};

/// The commands `FUTEX_LOCK_PI` and `FUTEX_LOCK_PI2`.
///
/// Their word's low bits are the owner's tid, on which the kernel itself relies.
const LOCK_PI: [u32; 2] = [6, 13];
/// Number of innermost functions that are searched for the waiting one.
const MAX_FUNCTIONS: usize = 12;

/// The lock or condition that a thread waits for.
pub(super) struct Found {
    pub(super) kind: WaitKind,
    pub(super) library: Option<&'static str>,
    pub(super) address: Address,
    pub(super) owner: Option<u64>,
}

/// The library that a lock belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Glibc,
    Musl,
    Bionic,
    /// Rust's standard library.
    Std,
    ParkingLot,
}

impl Library {
    fn name(self) -> &'static str {
        match self {
            Library::Glibc => "glibc",
            Library::Musl => "musl",
            Library::Bionic => "bionic",
            Library::Std => "std",
            Library::ParkingLot => "parking_lot",
        }
    }
}

/// Whether other processes may hold the lock.
///
/// glibc's robust mutexes look the same even if they belong to one process.
pub(super) fn is_process_shared(futex: &FutexWait) -> bool {
    !is_private(futex) && !glibc::is_robust(futex)
}

/// Returns what a thread waits for. An owner is only named if the lock's layout is known and all of
/// its fields are consistent.
pub(super) fn identify(report: &Report, thread: &Thread, futex: &FutexWait) -> Found {
    let unknown = Found { kind: WaitKind::Futex, library: None, address: futex.address, owner: None };
    if LOCK_PI.contains(&command(futex)) {
        let owner = futex.word().map(|word| u64::from(word & TID)).filter(|tid| *tid != 0);
        return Found { kind: WaitKind::Mutex, library: Some("kernel"), owner, ..unknown };
    }
    let Some((kind, library)) = find_waiting_function(report, thread) else { return unknown };
    let found = Found { kind, library: library.map(Library::name), ..unknown };
    // The word still has the expected value: the thread has not been woken yet.
    if futex.word() != Some(futex.expected) {
        return found;
    }
    let known = match library {
        Some(Library::Glibc) => glibc::owner(kind, futex),
        Some(Library::Musl) => musl::owner(kind, futex),
        Some(Library::Bionic) => bionic::owner(kind, futex),
        // The word records whether it is locked, but not by which thread.
        Some(Library::Std | Library::ParkingLot) | None => None,
    };
    let Some(known) = known else { return found };
    let address = Address(futex.address.0.wrapping_sub(known.word_offset));
    Found { kind: known.kind, address, owner: known.owner.map(u64::from).filter(|tid| *tid != 0), ..found }
}

/// Returns the innermost function known to wait, and its library.
fn find_waiting_function(report: &Report, thread: &Thread) -> Option<(WaitKind, Option<Library>)> {
    let mut inner = None;
    let mut searched = 0;
    for (number, frame) in thread.frames.iter().enumerate() {
        // A signal interrupted the functions from here on: its handler waits.
        if number > 0 && frame.address_kind == AddressKind::INSTRUCTION {
            return None;
        }
        for name in names(frame) {
            searched += 1;
            if searched > MAX_FUNCTIONS {
                return None;
            }
            inner = inner.or_else(|| library_by_inner_function(name));
            if let Some((kind, library)) = rust_wait(name) {
                return Some((kind, Some(library)));
            }
            if let Some(kind) = pthread_wait(name) {
                let library = library_of(report, frame);
                // An app's function may have the same name. In a static program it is the C
                // library's.
                if library.is_some() || is_static(report) {
                    return Some((kind, library.or(inner)));
                }
            }
            // Another function waits by itself, so its caller doesn't wait for a lock.
            if number > 0 && !is_waiting_helper(name) && library_of(report, frame).is_none() {
                return None;
            }
        }
    }
    None
}

/// Whether a function may appear between a waiting function and its system call.
///
/// Such functions belong to Rust's standard library, to the crates that make the call for its
/// locks, or to the C library in a static program.
fn is_waiting_helper(name: &str) -> bool {
    let bare = name.trim_start_matches(['<', '&']);
    let is_of = |prefixes: &[&str]| prefixes.iter().any(|prefix| bare.starts_with(prefix));
    is_of(&[
        "std::",
        "core::",
        "parking_lot",
        "linux_futex",
        "libc::",
        "syscall",
        "__",
        "futex_",
        "lll_",
        "pthread_",
        "timedwait",
    ])
}

/// Returns the names of a frame's functions, innermost first.
fn names(frame: &Frame) -> impl Iterator<Item = &str> {
    let inlined = frame.inlined.iter().filter_map(|one| one.function.as_deref().or(one.raw_function.as_deref()));
    inlined.chain(frame.function.as_deref().or(frame.raw_function.as_deref()))
}

/// Whether no C library was loaded.
fn is_static(report: &Report) -> bool {
    !report.images.iter().any(|image| library_by_path(report, &image.path).is_some())
}

/// Returns the C library that contains the function.
///
/// It is found by the image's name; for a static program by what the app recorded.
fn library_of(report: &Report, frame: &Frame) -> Option<Library> {
    let path = frame.module.as_deref()?;
    if let Some(library) = library_by_path(report, path) {
        return Some(library);
    }
    let is_main = is_static(report) && report.images.iter().any(|image| image.is_main && image.path == path);
    let recorded = report.run.as_ref().and_then(|run| run.app.runtime_name.as_deref()).filter(|_| is_main)?;
    [Library::Glibc, Library::Musl, Library::Bionic].into_iter().find(|library| library.name() == recorded)
}

/// Returns a C library by its file name.
fn library_by_path(report: &Report, path: &str) -> Option<Library> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if starts(&["libc.so.6", "libpthread.so.0", "libc-2.", "libpthread-2."]) {
        return Some(Library::Glibc);
    }
    if starts(&["ld-musl-", "libc.musl-"]) {
        return Some(Library::Musl);
    }
    if name == "libc.so" {
        return Some(if report.header.os == Os::ANDROID { Library::Bionic } else { Library::Musl });
    }
    None
}

/// Returns a C library by an internal function that the others don't have.
fn library_by_inner_function(name: &str) -> Option<Library> {
    let name = name.trim_start_matches('_').trim_start_matches("GI_").trim_start_matches('_');
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    match name {
        _ if starts(&["lll_lock_wait", "futex_abstimed_wait", "lll_mutex_lock"]) => Some(Library::Glibc),
        "timedwait" | "timedwait_cp" => Some(Library::Musl),
        _ => None,
    }
}

fn rust_wait(name: &str) -> Option<(WaitKind, Library)> {
    // Depending on the mangling also `<std::sys::…::Mutex>::lock_contended`.
    let name = &*name.replace(['<', '>'], "");
    let ends = |suffix: &str| name.ends_with(suffix);
    if name.starts_with("parking_lot::") {
        let kind = match () {
            () if name.contains("condvar") => WaitKind::Condition,
            () if ends("lock_shared_slow") || ends("lock_upgradable_slow") => WaitKind::ReadLock,
            () if ends("lock_exclusive_slow") || ends("upgrade_slow") => WaitKind::WriteLock,
            () if ends("lock_slow") => WaitKind::Mutex,
            () => return None,
        };
        return Some((kind, Library::ParkingLot));
    }
    let name = name.strip_prefix("std::sys")?;
    let kind = match () {
        () if name.contains("Mutex::lock_contended") => WaitKind::Mutex,
        () if name.contains("RwLock::read_contended") => WaitKind::ReadLock,
        () if name.contains("RwLock::write_contended") => WaitKind::WriteLock,
        () if name.contains("Condvar::wait") => WaitKind::Condition,
        () if name.contains("Parker::park") => WaitKind::Park,
        () if name.contains("Once::call") || name.contains("Once::wait") => WaitKind::Once,
        () => return None,
    };
    Some((kind, Library::Std))
}

/// Returns the kind of wait by a function's name in glibc, musl and bionic.
///
/// Leading underscores and version suffixes are ignored.
fn pthread_wait(name: &str) -> Option<WaitKind> {
    let name = name.trim_start_matches('_').trim_start_matches("GI_").trim_start_matches('_');
    let name = name.split(['@', '.']).next().unwrap_or(name);
    let is = |prefix: &str, part: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.contains(part));
    Some(match () {
        () if is("pthread_mutex_", "lock") && !name.contains("unlock") && !name.contains("trylock") => WaitKind::Mutex,
        () if is("pthread_rwlock_", "rdlock") => WaitKind::ReadLock,
        () if is("pthread_rwlock_", "wrlock") => WaitKind::WriteLock,
        () if is("pthread_cond_", "wait") => WaitKind::Condition,
        () if is("pthread_", "join") => WaitKind::ThreadEnd,
        () if is("sem_", "wait") || is("new_sem_", "wait") => WaitKind::Semaphore,
        () if is("pthread_barrier_", "wait") => WaitKind::Barrier,
        () if name.starts_with("pthread_once") => WaitKind::Once,
        () => return None,
    })
}
