//! What happened, in the words of the report: the monitor that noticed it fills this in, and nothing later asks the system
//! again.

use crate::monitor::exception::{Ending, Uncaught};
use coroner_machine::registers::Registers;
use coroner_machine::threads::Tid;
use coroner_report::wire::{Access, ExtraRegister, Hang, Mach, Monitor, Signal};

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
pub(crate) struct Incident {
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
    /// The address that the fault is about.
    pub address: Option<u64>,
    /// What the instruction did to it, where the processor told.
    pub access: Option<Access>,
    /// An instruction of the thread touched memory that it may not touch.
    pub is_memory_fault: bool,
    /// The exception that it is about, where a language's runtime told and no signal.
    pub uncaught: Option<&'static Uncaught<'static>>,
    /// The hang that it is.
    pub hung: Option<Hung>,
}

impl Incident {
    /// An exception that a language's runtime told of, on a thread with these registers.
    ///
    /// # Safety
    /// The exception must stay as it is until the report is written.
    pub(crate) unsafe fn of_exception(uncaught: &Uncaught<'_>, registers: &Registers, pid: i32, tid: Tid) -> Incident {
        // SAFETY: by the contract; only the lifetimes differ.
        let uncaught = unsafe { core::mem::transmute::<&Uncaught<'_>, &'static Uncaught<'static>>(uncaught) };
        Incident { registers: *registers, ..Incident::told(uncaught, pid, tid) }
    }

    /// A thread that does not answer.
    pub(crate) fn of_hang(uncaught: &'static Uncaught<'static>, hung: Hung, pid: i32, tid: Tid) -> Incident {
        Incident { hung: Some(hung), ..Incident::told(uncaught, pid, tid) }
    }

    fn told(uncaught: &'static Uncaught<'static>, pid: i32, tid: Tid) -> Incident {
        Incident {
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
}
