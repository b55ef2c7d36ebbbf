//! Conditions of Linux: what it lacks when it happens.

use std::sync::atomic::Ordering;

use super::{Condition, DEAF, DISK, PLAIN};

pub(super) static CONDITIONS: &[Condition] = &[
    Condition { name: "full-disk", before_fault: fill_disk, ..PLAIN },
    Condition { name: "no-descriptors", before_fault: exhaust_descriptors, ..PLAIN },
    Condition { name: "no-address-space", before_fault: || limit(libc::RLIMIT_AS, 1 << 20), ..PLAIN },
    Condition { name: "no-file-size", before_fault: || limit(libc::RLIMIT_FSIZE, 0), ..PLAIN },
    Condition { name: "no-processes", before_fault: exhaust_processes, ..PLAIN },
    Condition { name: "deaf-threads", before_install: || DEAF.store(true, Ordering::SeqCst), ..PLAIN },
];

fn fill_disk() {
    use std::io::Write as _;
    let directory = DISK.get().expect("the program set it");
    let mut file = std::fs::File::create(directory.join("everything")).expect("the disk takes a file");
    for size in [1 << 16, 1 << 10, 1] {
        let block = vec![1_u8; size];
        while file.write_all(&block).is_ok() {}
    }
    // It keeps its descriptor, and its space.
    std::mem::forget(file);
}

fn exhaust_descriptors() {
    limit(libc::RLIMIT_NOFILE, 64);
    // SAFETY: opens descriptors and keeps them.
    while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } >= 0 {}
}

fn limit(resource: libc::__rlimit_resource_t, to: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: reads one limit.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0, "a limit can be lowered");
}

/// Root is not bound by RLIMIT_NPROC: another user is.
fn exhaust_processes() {
    const NOBODY: libc::uid_t = 65534;
    // SAFETY: changes this process's user alone.
    if unsafe { libc::getuid() } == 0 {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setuid(NOBODY) }, 0, "root may become nobody");
    }
    limit(libc::RLIMIT_NPROC, 0);
}
