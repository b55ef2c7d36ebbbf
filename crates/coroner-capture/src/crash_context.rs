//! What happened, in the words of the report: the monitor that noticed it fills this in, and nothing later asks the system
//! again.

use coroner_process::registers::Registers;
use coroner_process::threads::Tid;
use coroner_report::run_state::CrashRecord;
use coroner_report::wire::{Access, ExtraRegister, Hang, Mach, Monitor, Signal};

use crate::monitor::exception::{Ending, Uncaught};
use coroner_process::threads::wall_now;

/// A thread that does not answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hung {
    pub hang: Hang,
    /// The thread that noticed it; elsewhere than on Apple's systems it is the one that writes.
    #[cfg_attr(not(target_vendor = "apple"), allow(dead_code))]
    pub watcher: Tid,
}

/// A crash as its monitor knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashContext {
    /// Who noticed it.
    pub monitor: Monitor,
    pub signal: Option<Signal>,
    pub mach: Option<Mach>,
    /// The process: a child made by fork or vfork has another id than the run.
    pub pid: i32,
    /// The thread that crashed, or hangs.
    pub tid: Tid,
    /// Its registers; of one that hangs none, since it has yet to be stopped.
    pub registers: Registers,
    /// What the processor said of the fault, as registers; the first `extra_count` are meant.
    pub extra: [(ExtraRegister, u64); 3],
    pub extra_count: usize,
    /// The address that the fault is about (avma).
    pub address: Option<u64>,
    /// What the instruction did to it, where the processor says so.
    pub access: Option<Access>,
    /// An instruction of the thread touched memory that it may not touch.
    pub is_memory_fault: bool,
    /// The exception that it is about, where a language's runtime reported it and no signal.
    pub uncaught: Option<&'static Uncaught<'static>>,
    /// The hang that it is.
    pub hung: Option<Hung>,
}

impl CrashContext {
    /// An exception that a language's runtime reported, on a thread with these registers.
    ///
    /// # Safety
    /// The exception must stay as it is until the report is written.
    pub(crate) unsafe fn of_exception(uncaught: &Uncaught<'_>, registers: &Registers, pid: i32, tid: Tid) -> Self {
        // SAFETY: by the contract; only the lifetimes differ.
        let uncaught = unsafe { core::mem::transmute::<&Uncaught<'_>, &'static Uncaught<'static>>(uncaught) };
        CrashContext { registers: *registers, ..CrashContext::without_signal(uncaught, pid, tid) }
    }

    /// A thread that does not answer.
    pub(crate) fn of_hang(uncaught: &'static Uncaught<'static>, hung: Hung, pid: i32, tid: Tid) -> Self {
        CrashContext { hung: Some(hung), ..CrashContext::without_signal(uncaught, pid, tid) }
    }

    fn without_signal(uncaught: &'static Uncaught<'static>, pid: i32, tid: Tid) -> Self {
        CrashContext {
            monitor: uncaught.monitor,
            signal: None,
            mach: None,
            pid,
            tid,
            registers: Registers::default(),
            extra: [(ExtraRegister(0), 0); 3],
            extra_count: 0,
            address: None,
            access: None,
            is_memory_fault: false,
            uncaught: Some(uncaught),
            hung: None,
        }
    }

    /// What becomes of the process.
    pub(crate) fn ending(&self) -> Ending {
        self.uncaught.map_or(Ending::Fatal, |uncaught| uncaught.ending)
    }

    /// What the processor said of the fault.
    pub(crate) fn extra(&self) -> &[(ExtraRegister, u64)] {
        self.extra.get(..self.extra_count).unwrap_or_default()
    }

    /// What the run state keeps of it.
    pub(crate) fn record(&self) -> CrashRecord {
        let (signal, mach) = (self.signal.unwrap_or_default(), self.mach);
        CrashRecord {
            monitor: self.monitor,
            signal: mach.map_or(signal.number, |mach| mach.exception),
            code: mach.map_or(signal.code.into(), |mach| mach.code),
            errno: signal.errno,
            address: self.address,
            tid: self.tid as u64,
            time_ns: wall_now(),
            pc: self.registers.pc,
            sp: self.registers.sp(),
        }
    }
}
