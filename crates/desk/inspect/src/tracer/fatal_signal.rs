//! Whether a signal at its delivery stop ends the process with a core dump, and its description.

use std::mem::transmute;

use coroner_process::context::SignalInfo;
use coroner_process::registers::Arch;
use coroner_report::model::{Address, Crash, Signal, Timestamp, signal_code_name, signal_name, system_call_name};
use coroner_report::wire::{Monitor, Os};
use nix::sys::ptrace;
use nix::unistd::Pid;

/// The signals whose default action is a core dump (signal(7)).
const CORE: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// Whether a signal's default action is a core dump.
pub(super) fn has_core(signal: i32) -> bool {
    CORE.contains(&signal)
}

/// A signal that ends its process.
pub(super) struct FatalSignal {
    /// The process.
    pub(super) pid: Pid,
    pub(super) parent: Pid,
    /// Whether the process is the first one of its pid namespace, for which signals differ.
    pub(super) is_init: bool,
    info: SignalInfo,
}

impl FatalSignal {
    /// Returns the signal at a thread's delivery stop, if its default action ends the process.
    pub(super) fn at_stop(tid: Pid, signal: i32) -> Option<FatalSignal> {
        let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let contains = |name: &str| {
            let set = field(name).and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
            set >> (signal - 1) & 1 != 0
        };
        let pid = |name: &str| field(name)?.parse().ok().map(Pid::from_raw);
        // SAFETY: both are the kernel's `siginfo_t` of 128 bytes; every bit pattern is valid.
        let info: SignalInfo = unsafe { transmute::<libc::siginfo_t, SignalInfo>(ptrace::getsiginfo(tid).ok()?) };
        let numbers: Vec<&str> = field("NStgid:").unwrap_or_default().split_whitespace().collect();
        let is_init = numbers.len() > 1 && numbers.last() == Some(&"1");
        // An init process gets only faults, and those signals of its namespace that it handles.
        let is_dropped = is_init && !info.is_fault();
        let is_default = !contains("SigCgt:") && !contains("SigIgn:") && !is_dropped;
        is_default.then_some(FatalSignal { pid: pid("Tgid:")?, parent: pid("PPid:")?, is_init, info })
    }

    /// Whether the process sent the signal to itself.
    pub(super) fn is_raised(&self) -> bool {
        self.info.sender().is_some_and(|(pid, _)| pid == self.pid.as_raw())
    }

    /// Describes the crash of the thread `tid`.
    pub(super) fn crash(&self, tid: Pid, time: Timestamp) -> Crash {
        let (info, os) = (&self.info, Os::LINUX);
        let address = address(info).map(Address);
        let system_call = (info.is_fault() && info.signo == libc::SIGSYS).then(|| info.system_call());
        let sender = info.sender();
        Crash {
            time,
            monitor: Monitor::SIGNAL,
            tid: tid.as_raw() as u64,
            address,
            signal: Some(Signal {
                number: info.signo,
                name: signal_name(os, info.signo),
                code: info.code,
                code_name: signal_code_name(os, info.signo, info.code),
                errno: info.errno,
                address,
                sender_pid: sender.map(|(pid, _)| pid as u32),
                sender_uid: sender.map(|(_, user)| user),
                syscall: system_call,
                syscall_name: system_call.and_then(|call| system_call_name(os, Arch::NATIVE, call.into())),
                syscall_arch: system_call.and_then(|_| info.foreign_system_call_arch()),
                ..Signal::default()
            }),
            ..Crash::default()
        }
    }
}

/// Returns the address of a fault, if the kernel reports one.
fn address(info: &SignalInfo) -> Option<u64> {
    /// From asm-generic/siginfo.h.
    const SI_KERNEL: i32 = 0x80;
    const BUS_ADRALN: i32 = 1;
    let has_address = matches!(info.signo, libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP);
    let is_unaligned = cfg!(target_arch = "x86_64") && (info.signo, info.code) == (libc::SIGBUS, BUS_ADRALN);
    (info.is_fault() && has_address && info.code != SI_KERNEL && !is_unaligned).then(|| info.untagged_address())
}
