//! The crash: a signal, a Mach exception or a Windows exception.

use coroner_report::model::{Address, Crash, CrashFlag, Mach, Signal, signal_code_name, signal_name};
use coroner_report::wire::{Access, Monitor, Os};
use minidump::format::{MINIDUMP_EXCEPTION, MINIDUMP_STREAM_TYPE};
use minidump::{Minidump, MinidumpAssertion, MinidumpException};
use minidump_processor::ProcessState;

/// Exception codes of dumps that were requested, without an exception.
///
/// Breakpad's `MD_EXCEPTION_CODE_LIN_DUMP_REQUESTED` and Crashpad's `Signals::kSimulatedSigno`;
/// Crashpad's `kMachExceptionSimulated` (`CPsx`), `CrashpadClient::kTriggeredExceptionCode` and
/// `kSimulatedExceptionCode`.
const REQUESTED: [u32; 4] = [0xffff_ffff, 0x4350_7378, 0x0cca_11ed, 0x0517_a7ed];
/// Crashpad's `kMachExceptionFromNSException` (`CPnx`), for an uncaught `NSException`.
const NS_EXCEPTION: u32 = 0x4350_6e78;
/// `EXC_CRASH` (`mach/exception_types.h`), whose code contains the exception before it.
const EXC_CRASH: u64 = 10;
/// Maximum length of a comment, in characters.
const MAX_COMMENT: usize = 1000;

/// Returns the crash without time and thread.
pub(super) fn crash(
    dump: &Minidump<'_, &[u8]>,
    exception: Option<&MinidumpException<'_>>,
    state: &ProcessState,
    os: Os,
) -> Crash {
    let Some(record) = exception.map(|exception| &exception.raw.exception_record) else { return requested(dump) };
    // Breakpad for macOS writes 0 for a dump without an exception.
    if REQUESTED.contains(&record.exception_code) || record.exception_code == 0 {
        return requested(dump);
    }
    let mut crash = match os {
        Os::WINDOWS => windows(record),
        os if os.is_apple() => apple(record),
        os => linux(record, state, os),
    };
    // A 32-bit process's addresses may be sign-extended.
    if state.system_info.cpu.pointer_width() == minidump::system_info::PointerWidth::Bits32 {
        let narrow = |address: Address| Address(address.0 & u64::from(u32::MAX));
        crash.address = crash.address.map(narrow);
        crash.signal.iter_mut().for_each(|signal| signal.address = signal.address.map(narrow));
    }
    if let Ok(assertion) = dump.get_stream::<MinidumpAssertion>() {
        crash.message = crash.message.or_else(|| assertion_text(&assertion));
    }
    crash
}

/// Converts a signal.
///
/// Writers without the signal's code wrote 0, which is also `SI_USER`; the address is the sender in
/// that case. A fault is distinguished by its instruction, if the dump contains that.
fn linux(record: &MINIDUMP_EXCEPTION, state: &ProcessState, os: Os) -> Crash {
    let number = record.exception_code.cast_signed();
    let code = record.exception_flags.cast_signed();
    let is_fault = matches!(number, 4 | 5 | 7 | 8 | 11);
    let unknown_code = code == 0;
    let info = state.exception_info.as_ref();
    let is_known =
        info.and_then(|info| info.instruction_properties.as_ref()).is_some_and(|known| known.is_access_derivable);
    let accesses = info.and_then(|info| info.memory_access_list.as_ref()).filter(|_| is_known);
    let is_other_access = accesses.is_some_and(|list| {
        let has = |at: u64, size: u8| record.exception_address.wrapping_sub(at) < u64::from(size.max(1));
        !list.iter().any(|access| has(access.address_info.address, access.size.unwrap_or(1)))
    });
    let has_address = match code {
        // A jump has no access to memory.
        0 => is_fault && (number != 11 || !is_other_access || is_at_instruction(record, state)),
        0x80 => false,
        code => code > 0 && is_fault,
    };
    let address = has_address.then_some(Address(record.exception_address));
    let signal = Signal {
        number,
        name: signal_name(os, number),
        code,
        code_name: signal_code_name(os, number, code).filter(|_| !unknown_code),
        unknown_code,
        address,
        ..Signal::default()
    };
    Crash { address, monitor: Monitor::SIGNAL, signal: Some(signal), ..Crash::default() }
}

fn is_at_instruction(record: &MINIDUMP_EXCEPTION, state: &ProcessState) -> bool {
    let thread = state.requesting_thread.and_then(|index| state.threads.get(index));
    thread
        .and_then(|thread| thread.frames.first())
        .is_some_and(|frame| frame.context.get_instruction_pointer() == record.exception_address)
}

/// Converts a Mach exception.
///
/// Breakpad stores code and subcode in the record's fields. Crashpad stores them in the parameters,
/// too; but of `EXC_CRASH` the parameters have the original, and the fields what it contains.
fn apple(record: &MINIDUMP_EXCEPTION) -> Crash {
    if record.exception_code == NS_EXCEPTION {
        return Crash { monitor: Monitor::NS_EXCEPTION, ..Crash::default() };
    }
    let fields = (i64::from(record.exception_flags), record.exception_address.cast_signed());
    let (code, subcode) = match record.exception_information {
        [exception, ..] if exception == EXC_CRASH && u64::from(record.exception_code) != EXC_CRASH => fields,
        [exception, code, subcode, ..]
            if record.number_parameters >= 3 && exception == u64::from(record.exception_code) =>
        {
            (code.cast_signed(), subcode.cast_signed())
        }
        [exception, code, ..] if record.number_parameters == 2 && exception == u64::from(record.exception_code) => {
            (code.cast_signed(), fields.1)
        }
        _ => fields,
    };
    let mach = Mach::new(record.exception_code.cast_signed(), code, subcode);
    // The address of `EXC_BAD_ACCESS`, except `EXC_I386_GPFLT`, which has none.
    let has_address = mach.exception == 1 && mach.code != 13;
    let address = has_address.then_some(Address(record.exception_address));
    Crash { address, monitor: Monitor::MACH, mach: Some(mach), ..Crash::default() }
}

/// Converts a Windows exception (winnt.h, `EXCEPTION_RECORD`).
fn windows(record: &MINIDUMP_EXCEPTION) -> Crash {
    let number = record.exception_code.cast_signed();
    let mut crash = Crash {
        monitor: Monitor::SEH,
        signal: Some(Signal { number, name: signal_name(Os::WINDOWS, number), ..Signal::default() }),
        ..Crash::default()
    };
    let [kind, address, ..] = record.exception_information;
    match record.exception_code {
        // An access violation, and an error reading from a file; −1: the processor reported no
        // address.
        0xc000_0005 | 0xc000_0006 | 0x8000_0001 if record.number_parameters >= 2 && address != u64::MAX => {
            crash.address = Some(Address(address));
            crash.access = match kind {
                _ if address == record.exception_address => Some(Access::EXECUTE),
                0 => Some(Access::READ),
                1 => Some(Access::WRITE),
                8 => Some(Access::EXECUTE),
                _ => None,
            };
        }
        0xc000_00fd => crash.flags.push(CrashFlag::StackOverflow),
        0xc000_0409 if record.number_parameters >= 1 => crash.message = Some(fast_fail(kind)),
        _ => {}
    }
    crash
}

/// Describes a termination by `__fastfail` (winnt.h, `FAST_FAIL_…`).
fn fast_fail(code: u64) -> String {
    let what = match code {
        0 | 2 => "stack buffer overrun",
        3 => "corrupt linked list",
        5 => "invalid parameter passed to a C runtime function",
        7 => "the program terminated itself",
        8 => "index out of range",
        10 => "call to an address that Control Flow Guard does not allow",
        _ => "failed check",
    };
    format!("{what} (__fastfail {code})")
}

fn assertion_text(assertion: &MinidumpAssertion) -> Option<String> {
    let filled = |text: Option<String>| text.filter(|text| !text.trim().is_empty());
    let expression = filled(assertion.expression());
    let function = filled(assertion.function()).map(|name| format!("in {name}"));
    let file = filled(assertion.file()).map(|file| format!("{file}:{}", assertion.raw.line));
    let parts = [expression, function, file].into_iter().flatten().collect::<Vec<_>>();
    (!parts.is_empty()).then(|| format!("assertion failed: {}", parts.join(", ")))
}

/// Returns the crash for a dump without an exception: usually of a running process. Coroner's
/// minidumps of exceptions and panics also have none, but a comment with the reason.
fn requested(dump: &Minidump<'_, &[u8]>) -> Crash {
    let comment = dump.get_raw_stream(MINIDUMP_STREAM_TYPE::CommentStreamW as u32).ok();
    let comment = comment.map(|bytes| {
        let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        let text = char::decode_utf16(units.take_while(|unit| *unit != 0 && *unit != u16::from(b'\n')));
        text.map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)).take(MAX_COMMENT).collect::<String>()
    });
    let crash = Crash { monitor: Monitor::USER, ..Crash::default() };
    match comment.filter(|comment| !comment.trim().is_empty()) {
        Some(comment) => Crash { exception_type: Some("minidump".to_owned()), message: Some(comment), ..crash },
        None => Crash {
            flags: vec![CrashFlag::NotFatal],
            exception_type: Some("dump of a running process".to_owned()),
            ..crash
        },
    }
}
