//! Checks whether reports can be stored in the store's directory.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use super::{Finding, Grade};
use crate::outboxes::{self, Outbox};

/// Approximate bytes that an install reserves for a report.
const RESERVE: u64 = 1 << 20;

const DIRECTORY: &str = "store";
const RESERVATION: &str = "reserved file";
const LOCKS: &str = "file locks";
const SPACE: &str = "free space";
const SIGNALS: &str = "signals";
const SERVER: &str = "server";
const CHILDREN: &str = "children";

/// Tries the steps of an app's start in `store`, and removes everything it creates.
pub(super) fn examine(store: &Path) -> Vec<Finding> {
    let opened = match coroner::Store::open(store) {
        Ok(opened) => opened,
        Err(error) => {
            let advice = "No reports can be stored. Choose another directory (`--store` or `Config::store_dir`).";
            return vec![Finding::other(Grade::Fails, DIRECTORY, error.to_string(), advice)];
        }
    };
    let probe = opened.path().join(format!(".doctor-{}", std::process::id()));
    let mut findings = vec![directory(store)];
    match File::options().read(true).write(true).create_new(true).open(&probe) {
        Ok(file) => {
            findings.extend([reservation(&file), locks(&file)]);
            let _ = std::fs::remove_file(&probe);
        }
        Err(error) => {
            let found = format!("can't create a file in `{}`: {error}", store.display());
            findings.push(Finding::other(Grade::Fails, RESERVATION, found, "No reports can be stored there."));
        }
    }
    findings.push(space(store));
    findings.extend(opened.signals_taken().map(|taken| signals(&taken)));
    findings.extend(children(opened.children_left_out()));
    findings.extend(outboxes::in_store(store).iter().flat_map(server));
    findings
}

/// Reports which other handler had taken Coroner's signals during the app's last run.
fn signals(taken: &str) -> Finding {
    Finding::other(
        Grade::Limited,
        SIGNALS,
        format!("in the app's last run, {taken}"),
        "A signal has only one handler. Install Coroner after the other one, or set `Crashes::reinstall_handlers`.",
    )
}

/// Reports the crashes of child processes that left no report.
fn children(left_out: u64) -> Option<Finding> {
    let found = format!("{left_out} crashes of child processes left no report: too many crashed at once");
    let advice =
        "Reports are delivered while the parent runs. Check that its delivery isn't disabled (docs/server.md).";
    (left_out > 0).then(|| Finding::other(Grade::Limited, CHILDREN, found, advice))
}

/// Reports the events that wait for a server, and those that were given up.
fn server(outbox: &Outbox) -> Vec<Finding> {
    let mut findings = Vec::new();
    if outbox.given_up > 0 {
        let found = format!(
            "the server rejected {}, kept in `{}`",
            outboxes::events(outbox.given_up),
            outbox.given_up_folder().display()
        );
        let advice = match outbox.is_sentry() {
            true => {
                "Check the DSN, the project, and the server's size limit. With another DSN, the app sends them again (docs/delivery.md)."
            }
            false => {
                "Check the address and the headers. With another address or other headers, the app sends them again (docs/delivery.md)."
            }
        };
        findings.push(Finding::other(Grade::Limited, SERVER, found, advice));
    }
    if outbox.waiting > 0 {
        let found =
            format!("{} waiting to be sent, in `{}`", outboxes::events(outbox.waiting), outbox.queue().display());
        let advice = "The app sends them while it runs, as soon as the server accepts them.";
        findings.push(Finding::other(Grade::Note, SERVER, found, advice));
    }
    findings
}

fn directory(store: &Path) -> Finding {
    Finding::works(DIRECTORY, format!("`{}` is writable", store.display()))
}

/// Checks whether space for a report can be reserved, so that a full disk loses no report.
fn reservation(mut file: &File) -> Finding {
    let found = match allocate(file) {
        Ok(()) => {
            return Finding::works(
                RESERVATION,
                "space for a report can be reserved, so that a full disk loses no report",
            );
        }
        Err(error) => error.to_string(),
    };
    match file.write_all(&vec![0; RESERVE as usize]) {
        Ok(()) => Finding::other(
            Grade::Limited,
            RESERVATION,
            format!("the file system doesn't support fallocate: {found}"),
            "Space is reserved by writing zeros instead. If the file system compresses or copies on write, a full disk \
             can lose a report.",
        ),
        Err(error) => Finding::other(
            Grade::Fails,
            RESERVATION,
            format!("can't write {} KiB: {error}", RESERVE >> 10),
            "There is no space for a report. Free some space on this disk.",
        ),
    }
}

#[cfg(target_os = "linux")]
fn allocate(file: &File) -> nix::Result<()> {
    nix::fcntl::fallocate(file, nix::fcntl::FallocateFlags::empty(), 0, RESERVE as libc::off_t)
}

#[cfg(target_vendor = "apple")]
fn allocate(file: &File) -> nix::Result<()> {
    let mut range = libc::fstore_t {
        fst_flags: libc::F_ALLOCATEALL,
        fst_posmode: libc::F_PEOFPOSMODE,
        fst_offset: 0,
        fst_length: RESERVE as libc::off_t,
        fst_bytesalloc: 0,
    };
    nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_PREALLOCATE(&mut range)).map(drop)
}

/// Checks whether record locks work, by which the next launch recognizes runs that have ended.
fn locks(file: &File) -> Finding {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_SETLK(&lock)) {
        Ok(_) => Finding::works(LOCKS, "record locks work, which show whether a run has ended"),
        Err(error) => Finding::other(
            Grade::Fails,
            LOCKS,
            format!("the file system doesn't support record locks: {error}"),
            "Ended runs can't be distinguished from running ones, so reports are not delivered. Use a local file system.",
        ),
    }
}

fn space(store: &Path) -> Finding {
    let free = match nix::sys::statvfs::statvfs(store) {
        Ok(status) => u64::from(status.blocks_available()).saturating_mul(status.fragment_size().into()),
        Err(error) => return Finding::other(Grade::Note, SPACE, format!("unknown: {error}"), ""),
    };
    let found = format!("{} MiB", free >> 20);
    if free < 16 << 20 {
        let consequence = "Delivery at the next launch needs a few MiB; until then, reports stay in the store.";
        Finding::other(Grade::Limited, SPACE, found, consequence)
    } else {
        Finding::works(SPACE, found)
    }
}
