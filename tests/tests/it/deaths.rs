//! The end of a process by each fault, with and without Coroner: exit status, core flag, and the
//! core dump's notes on the signal and the thread.
//!
//! `cargo test -p coroner-tests --test it -- deaths:: --nocapture` prints the table.

use std::fmt;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use coroner_faults::{Ending, FAULTS, Fault};
use coroner_tests::damaged::find_fault;

/// Death of a process.
#[derive(Debug, PartialEq, Eq)]
struct Death {
    status: ExitStatus,
    core: Option<Core>,
}

/// A core dump's notes on the signal and the thread that died of it.
#[derive(Debug, PartialEq, Eq)]
struct Core {
    signal: i32,
    code: i32,
    errno: i32,
    /// `si_addr`, or the user and whether the process itself sent the signal.
    cause: Cause,
    pc: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Cause {
    Address(u64),
    Sender { itself: bool, uid: u32 },
}

impl fmt::Display for Death {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.status)?;
        match &self.core {
            None => write!(out, "; no core"),
            Some(Core { signal, code, errno, cause, pc }) => {
                write!(out, "; si_signo {signal} si_code {code} si_errno {errno} ")?;
                match cause {
                    Cause::Address(address) => write!(out, "si_addr {address:#x}")?,
                    Cause::Sender { itself, uid } => {
                        write!(out, "si_pid {} si_uid {uid}", if *itself { "its own" } else { "another" })?;
                    }
                }
                write!(out, " pc {pc:#x}")
            }
        }
    }
}

impl Death {
    /// Removes what depends on where memory is mapped, because Coroner maps memory too. Of an
    /// address in such memory, keeps the offset in its page; of a stack overflow, removes the
    /// address, the instruction, and whether the kernel had space for the frame of Rust's handler
    /// (a thread may have an alternate stack only with Coroner).
    fn without_places(mut self, fault: &Fault) -> Death {
        const MAPPED: u64 = 0x7000_0000_0000;
        let is_overflow = fault.name.starts_with("stack-overflow");
        let place = |at: u64| if at >= MAPPED { at % 4096 } else { at };
        if let Some(core) = &mut self.core {
            if is_overflow && let Cause::Address(_) = core.cause {
                (core.code, core.cause, core.pc) = (0, Cause::Address(0), 0);
            }
            core.pc = place(core.pc);
            if let Cause::Address(address) = &mut core.cause {
                *address = place(*address);
            }
        }
        self
    }
}

/// Runs the program with this fault to its end, in an empty folder for its core dump.
fn die(fault: &Fault, conditions: &[&str], store: Option<&Path>) -> Death {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_crash_program"));
    let store = store.map_or("-".as_ref(), Path::as_os_str);
    command.arg(store).args([fault.name, "2"]).args(conditions).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            if libc::setrlimit(libc::RLIMIT_CORE, &raw const all) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // Images at the same addresses each time; no memory in the dump.
            libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
            let filter = libc::open(c"/proc/self/coredump_filter".as_ptr(), libc::O_WRONLY);
            libc::write(filter, c"0".as_ptr().cast(), 1);
            libc::close(filter);
            Ok(())
        });
    }
    let status = command.status().unwrap();
    let dumps: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
    let core = match &dumps[..] {
        [] => None,
        [dump] => Some(Core::read(&std::fs::read(dump).unwrap())),
        more => panic!("{more:?}"),
    };
    Death { status, core }
}

impl Core {
    /// Reads the notes of an ELF core dump (elf.h, asm-generic/siginfo.h): of the first thread,
    /// which is the one that died.
    fn read(bytes: &[u8]) -> Core {
        const PT_NOTE: u32 = 4;
        const NT_PRSTATUS: u32 = 1;
        const NT_PRPSINFO: u32 = 3;
        const NT_SIGINFO: u32 = 0x5349_4749;
        let half = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (headers, size, count) = (long(0x20) as usize, usize::from(half(0x36)), usize::from(half(0x38)));
        let notes = (0..count).map(|number| headers + number * size).find(|at| word(*at) == PT_NOTE).unwrap();
        let (mut at, end) = (long(notes + 8) as usize, (long(notes + 8) + long(notes + 32)) as usize);
        let (mut status, mut process, mut info) = (None, None, None);
        while at < end {
            let (name, length, kind) = (word(at) as usize, word(at + 4) as usize, word(at + 8));
            let content = at + 12 + name.next_multiple_of(4);
            let place = match kind {
                NT_PRSTATUS => &mut status,
                NT_PRPSINFO => &mut process,
                NT_SIGINFO => &mut info,
                _ => &mut None,
            };
            place.get_or_insert(content);
            at = content + length.next_multiple_of(4);
        }
        let (status, process, info) = (status.unwrap(), process.unwrap(), info.unwrap());
        let (signal, errno, code) = (word(info) as i32, word(info + 4) as i32, word(info + 8) as i32);
        assert_eq!(i32::from(half(status + 12).cast_signed()), signal, "pr_cursig and si_signo");
        // `pr_pid` of `struct elf_prpsinfo`; `pr_reg` of `struct elf_prstatus`, and the place of
        // the program counter in it.
        let pid = word(process + 24);
        let pc = long(status + 112 + 8 * if cfg!(target_arch = "x86_64") { 16 } else { 32 });
        let cause = if code > 0 {
            Cause::Address(long(info + 16))
        } else {
            Cause::Sender { itself: word(info + 16) == pid, uid: word(info + 20) }
        };
        Core { signal, code, errno, cause, pc }
    }
}

/// Whether the kernel writes core dumps into the working directory.
fn leaves_cores() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    // SAFETY: only queries.
    let is_root = unsafe { libc::geteuid() } == 0;
    !pattern.contains(['|', '/']) && !pattern.trim().is_empty() && is_root
}

#[test]
fn every_fault_ends_the_process_as_without_coroner() {
    if std::env::var_os("CORONER_TEST_RUNNER").is_some() || !leaves_cores() {
        eprintln!("skipped: the kernel's core_pattern names no file in the working directory, or this is not root");
        return;
    }
    let mut wrong = Vec::new();
    // With Rust's handlers of SIGSEGV and SIGBUS, and without, as in a C program.
    for conditions in [&[][..], &["c-dispositions"]] {
        let passing = ["passing-store", "passing-bus"].map(|name| find_fault(name).expect("a fault"));
        for fault in FAULTS.iter().chain(passing) {
            let store = tempfile::tempdir().unwrap();
            let without = die(fault, conditions, None);
            let with = die(fault, conditions, Some(store.path()));
            println!("{:30} {conditions:?}\n    without: {without}\n    with:    {with}", fault.name);
            // Processes that die of a signal leave a core dump.
            let dies = matches!(fault.ending, Ending::Signal(_) | Ending::Either(..));
            assert!(!dies || without.status.core_dumped(), "{}: {without}", fault.name);
            // Rust's handler makes unaligned accesses, which are faults then: it never reaches its
            // end.
            let is_exempt = fault.name == "alignment-check" && conditions.is_empty();
            if without.without_places(fault) != with.without_places(fault) && !is_exempt {
                wrong.push(fault.name);
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
