//! The exception stream.

use coroner_report::model::{Crash, Report};
use minidump_common::format::{
    MINIDUMP_EXCEPTION, MINIDUMP_EXCEPTION_STREAM, MINIDUMP_LOCATION_DESCRIPTOR as Location,
};

use crate::minidump_writer::file::File;
use crate::minidump_writer::{MinidumpError, context};

/// Breakpad's code for a dump that was not caused by a signal
/// (`MD_EXCEPTION_CODE_LIN_DUMP_REQUESTED`).
const DUMP_REQUESTED: u32 = 0xffff_ffff;
/// Mach's exception type for software-generated exceptions (`mach/exception_types.h`).
const EXC_SOFTWARE: u32 = 5;
/// The code of [`EXC_SOFTWARE`] for a Unix signal, whose number is the subcode.
const EXC_SOFT_SIGNAL: u64 = 0x10003;

/// Writes the exception stream with the crashed thread's registers.
pub(crate) fn stream(file: &mut File, report: &Report) -> Result<Option<Location>, MinidumpError> {
    let Some(crash) = &report.crash else { return Ok(None) };
    let thread = report.crashed_thread();
    let thread_context = context::write(file, thread.and_then(|thread| thread.registers.as_ref()))?;
    let is_apple = report.header.os.is_apple();
    let stream = MINIDUMP_EXCEPTION_STREAM {
        thread_id: crash.tid as u32,
        __align: 0,
        exception_record: if is_apple { mach(crash) } else { linux(crash) },
        thread_context,
    };
    file.append(stream).map(Some)
}

/// Returns the exception in Breakpad's form for Linux: the signal, its `si_code`, and the address.
fn linux(crash: &Crash) -> MINIDUMP_EXCEPTION {
    let signal = crash.signal.as_ref();
    MINIDUMP_EXCEPTION {
        exception_code: signal.map_or(DUMP_REQUESTED, |signal| signal.number as u32),
        exception_flags: signal.map_or(0, |signal| signal.code as u32),
        exception_address: address(crash),
        ..MINIDUMP_EXCEPTION::default()
    }
}

/// Returns the exception in Crashpad's form for macOS.
///
/// It consists of the exception, its code, the address, and the full code and subcode. A signal
/// without a Mach exception is written in XNU's form.
fn mach(crash: &Crash) -> MINIDUMP_EXCEPTION {
    let (exception, code, subcode) = match (&crash.mach, &crash.signal) {
        (Some(mach), _) => (mach.exception as u32, mach.code as u64, mach.subcode as u64),
        (None, Some(signal)) => (EXC_SOFTWARE, EXC_SOFT_SIGNAL, signal.number as u64),
        (None, None) => (EXC_SOFTWARE, 0, 0),
    };
    let mut exception_information = [0; 15];
    exception_information[..3].copy_from_slice(&[u64::from(exception), code, subcode]);
    MINIDUMP_EXCEPTION {
        exception_code: exception,
        exception_flags: code as u32,
        exception_address: address(crash),
        number_parameters: 3,
        exception_information,
        ..MINIDUMP_EXCEPTION::default()
    }
}

fn address(crash: &Crash) -> u64 {
    let of_signal = || crash.signal.as_ref().and_then(|signal| signal.address);
    crash.address.or_else(of_signal).map_or(0, |address| address.0)
}
