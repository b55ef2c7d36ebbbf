//! Systems on which crashes are reported.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use coroner_process::registers::Registers;
use coroner_report::wire::{AddressKind, FoundBy, Frame};

use crate::backtrace::Backtrace;

pub(crate) use coroner_capture::InstallError as Reason;
pub(crate) use {coroner_capture as capture, coroner_process as process, coroner_walk as walk};

/// Begins a run in the store at `directory`, and installs the signal handlers.
pub(crate) fn begin_run(directory: &Path, options: &capture::InstallOptions) -> Result<capture::Run, Reason> {
    // A path that contains NUL could not have been opened as a store; an empty path fails.
    let path = CString::new(directory.as_os_str().as_bytes()).unwrap_or_default();
    capture::install(&path, options)
}

/// A stack of this thread, in the form of a report's exception.
#[derive(Debug, Default)]
pub(crate) struct Stack(Vec<Frame>);

impl Stack {
    /// Captures the stack of the caller of a function that is running on this thread.
    ///
    /// `registers` are the function's. Its own frame is left out.
    pub(crate) fn above(registers: &Registers) -> Self {
        let backtrace = Backtrace::above(registers);
        let frames = backtrace.addresses().iter().enumerate().map(|(index, pc)| {
            let is_instruction = backtrace.lookup_address(index) == Some(*pc);
            let address_kind = if is_instruction { AddressKind::INSTRUCTION } else { AddressKind::RETURN };
            let found_by = if index == 0 { FoundBy::CONTEXT } else { FoundBy::CFI };
            Frame { pc: *pc, found_by, address_kind, sp: None, cfa: None }
        });
        Self(frames.collect())
    }

    /// Returns the frames, to be named at the next launch.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.0
    }

    /// Returns `None`: this process doesn't name its frames on this system.
    #[allow(clippy::unused_self)] // The same signature as on other systems.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        None
    }
}
