//! A system on which `install` is an error. There is never a run, so nothing here is asked for a report, and what an app calls without one does
//! nothing.
#![allow(clippy::unnecessary_wraps, reason = "as where they do something")]

pub(crate) mod capture {
    use coroner_process::registers::Registers;
    use coroner_report::wire::{Exception, Monitor};

    pub(crate) use coroner_process::signal_set::SignalSet;
    pub(crate) use coroner_run::{AlternateStacks, ForkPolicy, InstallLimits, InstallOptions};

    /// No report is one after which the process goes on.
    pub(crate) const FIRST_NON_FATAL: u32 = u32::MAX;

    pub(crate) fn is_unsettled_child() -> bool {
        false
    }

    pub(crate) fn ignore_next_signal(_signal: i32) -> bool {
        false
    }

    pub(crate) mod app_memory {
        use std::ffi::c_void;

        /// A function that writes at most `room` bytes, and says how many.
        pub type CrashCallback = unsafe extern "C" fn(context: *mut c_void, into: *mut u8, room: usize) -> usize;

        pub(crate) const MAX_REGIONS: usize = 16;

        pub(crate) fn register(_name: &str, _address: u64, _size: usize) -> Option<usize> {
            Some(0)
        }

        pub(crate) fn unregister(_number: usize) {}

        pub(crate) fn set_callback(_callback: Option<CrashCallback>, _context: *mut c_void) {}
    }

    pub(crate) mod exception {
        use super::{Exception, Monitor, Registers};

        #[derive(Clone, Copy)]
        pub(crate) enum Ending {
            Fatal,
            NonFatal,
        }

        #[derive(Clone, Copy)]
        pub(crate) enum Threads {
            AsInstalled,
            This,
        }

        pub(crate) fn report(_: &Registers, _: Monitor, _: &[Exception<'_>], _: Ending) -> bool {
            false
        }

        pub(crate) fn report_with(_: Threads, _: &Registers, _: Monitor, _: &[Exception<'_>], _: Ending) -> bool {
            false
        }

        pub(crate) fn delivered() {}
    }

    pub(crate) mod hang {
        use coroner_report::wire::Hang;

        use crate::backtrace::ThreadId;

        pub(crate) fn is_within_budget() -> bool {
            false
        }

        pub(crate) fn report(_thread: ThreadId, _hang: Hang) -> bool {
            false
        }

        pub(crate) fn left_out() {}
    }
}

pub(crate) mod process {
    pub(crate) mod threads {
        /// Threads have no numbers here.
        pub(crate) type Tid = u64;

        pub(crate) fn this_thread() -> Tid {
            0
        }

        pub(crate) fn process_id() -> i32 {
            std::process::id() as i32
        }
    }

    pub(crate) mod memory_use {
        pub(crate) fn available() -> Option<u64> {
            None
        }
    }
}

pub(crate) mod walk {
    use coroner_process::registers::Registers;
    use coroner_unwind::RangeTable;

    /// Numbers of registers are this architecture's.
    pub(crate) type Native = coroner_unwind::X86_64;

    pub(crate) const MAX_RANGES: usize = 512;

    /// No walk asks it.
    pub(crate) static RANGES: RangeTable<MAX_RANGES> = RangeTable::new();

    /// For bindings: none are known, and no stack is walked from them.
    pub fn current_registers() -> Registers {
        Registers::default()
    }
}
