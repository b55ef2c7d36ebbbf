//! Faults that are gone when the instruction runs again: something else has repaired them, or the
//! kernel has moved the thread.
//!
//! The process dies of them all the same. Where nothing but the instruction can kill it (the first
//! process of a PID namespace, a process with a filter of system calls) it lives, and dies of a
//! second fault.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use coroner_faults::{Ending, Fault, Thread, Top, chain};

use crate::conditions::PAGE;

/// The memory that is repaired, 0 for none; and the file behind it, as a descriptor plus 1.
static MEMORY: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FILE: AtomicUsize = AtomicUsize::new(0);

const PASSING: Fault = Fault {
    name: "",
    about: "",
    ending: Ending::Signal(libc::SIGSEGV),
    code: None,
    address: None,
    mach: None,
    thread: Thread::Main,
    top: Top::Function,
    frames: &[],
    run: || {},
};

/// The table.
pub(crate) static FAULTS: &[Fault] = &[
    Fault {
        name: "passing-store",
        about: "stores to a page that is made writable while the crash is reported",
        // `SEGV_ACCERR`.
        code: Some(2),
        frames: &["passing_store", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(passing_store),
        ..PASSING
    },
    Fault {
        name: "passing-bus",
        about: "reads a mapped file that is cut, and filled again while the crash is reported",
        ending: Ending::Signal(libc::SIGBUS),
        // `BUS_ADRERR`.
        code: Some(2),
        frames: &["passing_bus", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(passing_bus),
        ..PASSING
    },
    Fault {
        name: "passing-store-then-null",
        about: "as passing-store; if the process lives, stores to address 0",
        code: Some(1),
        address: Some(0),
        frames: &["passing_store_then_null", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(passing_store_then_null),
        ..PASSING
    },
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    Fault {
        name: "restartable-sequence",
        about: "stores to address 0 in a restartable sequence, which the kernel aborts",
        code: Some(1),
        address: Some(0),
        frames: &["restartable_sequence", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(restartable_sequence),
        ..PASSING
    },
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    Fault {
        name: "restartable-sequence-then-null",
        about: "as restartable-sequence; if the process lives, stores to address 0",
        code: Some(1),
        address: Some(0),
        frames: &["restartable_sequence_then_null", "chain_c", "chain_b", "chain_a"],
        run: || chain::here(restartable_sequence_then_null),
        ..PASSING
    },
];

/// Coroner's crash callback: repairs what the fault was about.
unsafe extern "C" fn repair(_: *mut c_void, _: *mut u8, _: usize) -> usize {
    // SAFETY: async-signal-safe calls, on memory and a file of the fault's own.
    unsafe {
        libc::mprotect(MEMORY.load(Ordering::SeqCst), PAGE, libc::PROT_READ | libc::PROT_WRITE);
        if let Some(file) = FILE.load(Ordering::SeqCst).checked_sub(1) {
            libc::ftruncate(file as i32, PAGE as libc::off_t);
        }
    }
    0
}

/// Maps a page that is repaired during the report: of a file without a byte, or one that can't be
/// written.
fn broken_page(is_file: bool) -> *mut u8 {
    let (access, flags, file) = if is_file {
        // SAFETY: a new descriptor. By the system call: Bionic has the function since API level 30.
        let file = unsafe { libc::syscall(libc::SYS_memfd_create, c"cut".as_ptr(), 0) } as i32;
        assert!(file >= 0, "a file in memory");
        FILE.store(file as usize + 1, Ordering::SeqCst);
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file)
    } else {
        (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    };
    // SAFETY: a new mapping; the callback is async-signal-safe.
    let page = unsafe {
        coroner::set_crash_callback(Some(repair), std::ptr::null_mut());
        libc::mmap(std::ptr::null_mut(), PAGE, access, flags, file, 0)
    };
    assert_ne!(page, libc::MAP_FAILED, "a page");
    MEMORY.store(page, Ordering::SeqCst);
    page.cast()
}

#[inline(never)]
fn passing_store() -> u64 {
    let page = broken_page(false);
    // SAFETY: the fault.
    unsafe { page.write_volatile(1) };
    page as u64
}

#[inline(never)]
fn passing_bus() -> u64 {
    let page = broken_page(true);
    // SAFETY: the fault.
    u64::from(unsafe { page.read_volatile() })
}

/// Nothing behind it is inlined: the second fault has this function's name.
#[inline(never)]
fn passing_store_then_null() -> u64 {
    let page = passing_store();
    // SAFETY: the fault.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    page
}

/// Stores to address 0 between two labels that the kernel knows (rseq(2)): a signal there
/// moves the thread to a third. Returns 1 if it got there.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[inline(never)]
fn restartable_sequence() -> u64 {
    // From glibc 2.35 on: where the thread has its `struct rseq`, whose second half is the address
    // of the sequence. SAFETY: looks a name up.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) }.cast::<isize>();
    assert!(!offset.is_null(), "the C library registers no restartable sequences");
    let aborted: u64;
    // SAFETY: the descriptor has the layout of `struct rseq_cs`; the fault is what this is here
    // for.
    unsafe {
        std::arch::asm!(
            ".pushsection .data.coroner_rseq,\"aw\"",
            ".balign 32",
            "9: .long 0, 0",
            ".quad 3f, 4f - 3f, 5f",
            ".popsection",
            "lea {scratch}, [rip + 9b]",
            "mov fs:[{offset} + 8], {scratch}",
            "xor {aborted:e}, {aborted:e}",
            "3: mov dword ptr [{aborted}], 1",
            "4: jmp 6f",
            ".long 0x53053053",
            "5: mov {aborted:e}, 1",
            "6:",
            offset = in(reg) *offset,
            scratch = out(reg) _,
            aborted = out(reg) aborted,
        );
    }
    aborted
}

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[inline(never)]
fn restartable_sequence_then_null() -> u64 {
    let aborted = restartable_sequence();
    // SAFETY: the fault.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
    aborted
}
