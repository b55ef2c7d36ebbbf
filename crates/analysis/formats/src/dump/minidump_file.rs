//! Reads minidumps of Breakpad, Crashpad, Coroner and Windows.
//!
//! Those of Breakpad, Crashpad and Coroner are for Linux, Android and Apple processes.

use std::borrow::Cow;

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Annotation, Bytes, Crash, CrashFlag, Header, Image, Mach, Signal, Thread, Timestamp, signal_code_name,
    signal_name,
};
use coroner_report::wire::{Access, FORMAT_VERSION, ImageKind, Monitor, Os};
use coroner_symbols::Symbolizer;
use minidump::format::{MINIDUMP_EXCEPTION, MINIDUMP_STREAM_TYPE};
use minidump::system_info::{Cpu, Os as DumpOs};
use minidump::{
    CodeView, Minidump, MinidumpContext, MinidumpCrashpadInfo, MinidumpException, MinidumpMiscInfo, MinidumpModule,
    MinidumpModuleList, MinidumpRawContext, MinidumpSystemInfo, MinidumpThreadList, MinidumpThreadNames, Module,
};

use super::error::{DumpError, damaged};
use crate::content_id;
use crate::snapshot::{SavedMemory, registers, walk_threads, walk_windows_threads};
use crate::{MAX_IMAGES, MAX_THREADS};

/// Flag of an exception whose program counter is a return address.
///
/// winnt.h, `EXCEPTION_SOFTWARE_ORIGINATE`.
const SOFTWARE_ORIGINATE: u32 = 0x80;

pub(crate) fn read(bytes: &[u8], symbolizer: &mut Symbolizer) -> Result<Report, DumpError> {
    let stream = |what: &str| {
        let what = what.to_owned();
        move |error: minidump::Error| damaged(format!("invalid {what}: {error}"))
    };
    let dump = Minidump::read(bytes).map_err(stream("header"))?;
    let system = dump.get_stream::<MinidumpSystemInfo>().map_err(stream("system information"))?;
    let arch = match system.cpu {
        Cpu::X86_64 => Arch::X86_64,
        Cpu::Arm64 => Arch::Aarch64,
        other => return Err(DumpError::Unsupported(format!("a minidump for the processor {other}"))),
    };
    let os = match system.os {
        DumpOs::Linux => Os::LINUX,
        DumpOs::Android => Os::ANDROID,
        DumpOs::MacOs => Os::MACOS,
        DumpOs::Ios => Os::IOS,
        DumpOs::Windows if arch == Arch::X86_64 => Os::WINDOWS,
        other => return Err(DumpError::Unsupported(format!("a minidump of a {other} process"))),
    };
    let misc = dump.get_stream::<MinidumpMiscInfo>().ok();
    let names = dump.get_stream::<MinidumpThreadNames>().unwrap_or_default();
    let list = dump.get_stream::<MinidumpThreadList<'_>>().map_err(stream("thread list"))?;
    let modules = dump.get_stream::<MinidumpModuleList>().unwrap_or_default();
    let exception = dump.get_stream::<MinidumpException<'_>>().ok();
    let crashed = exception.as_ref().map(MinidumpException::get_crashing_thread_id);

    let regions = dump.get_memory();
    let saved = regions.iter().flat_map(minidump::UnifiedMemoryList::iter);
    let saved = saved.map(|piece| (piece.base_address(), piece.bytes())).collect::<Vec<(u64, &[u8])>>();
    let stacks = list.threads.iter().filter_map(|thread| {
        let piece = thread.stack_memory(regions.as_ref()?)?;
        Some((piece.base_address(), piece.bytes()))
    });
    let memory = SavedMemory::new(saved.iter().copied().chain(stacks).collect());

    let mut threads: Vec<Thread> = Vec::new();
    for thread in list.threads.iter().take(MAX_THREADS) {
        let tid = thread.raw.thread_id;
        let has_crashed = Some(tid) == crashed;
        // The registers at the crash, not those of the handler.
        let at_crash = exception.as_ref().filter(|_| has_crashed);
        let context = at_crash.and_then(|exception| exception.context(&system, misc.as_ref()));
        let context: Option<Cow<'_, MinidumpContext>> = context.or_else(|| thread.context(&system, misc.as_ref()));
        let name = names.get_name(tid).map(Cow::into_owned);
        threads.push(Thread {
            tid: tid.into(),
            name: name.filter(|name| !name.is_empty()),
            crashed: has_crashed,
            main: threads.is_empty(),
            registers: context.and_then(|context| general(&context)).map(|general| registers(arch, general)),
            ..Thread::default()
        });
    }
    // The crashed thread comes first, as in all reports.
    threads.sort_by_key(|thread| !thread.crashed);
    let main = modules.main_module().map(MinidumpModule::base_address);
    let images = modules.by_addr().take(MAX_IMAGES).map(|module| image(module, os, main)).collect::<Vec<_>>();
    let process_name = main.and_then(|main| images.iter().find(|image| image.load_address.0 == main));
    let annotations = dump.get_stream::<MinidumpCrashpadInfo>().map(|info| annotations(&info)).unwrap_or_default();
    let mut report = Report {
        header: Header {
            format_version: FORMAT_VERSION,
            event_id: content_id([&bytes[..bytes.len().min(1 << 20)], &(bytes.len() as u64).to_le_bytes()]),
            pid: misc.as_ref().and_then(|misc| misc.raw.process_id().copied()).unwrap_or_default(),
            process_name: process_name.map(|image| image.name().to_owned()).unwrap_or_default(),
            arch: Some(arch),
            os,
            page_size: 4096,
            process_start: misc
                .as_ref()
                .and_then(MinidumpMiscInfo::process_create_time)
                .map(Timestamp::from)
                .unwrap_or_default(),
            ..Header::default()
        },
        crash: Some(crash(&dump, exception.as_ref(), os, crashed)),
        threads,
        images,
        annotations,
        ..Report::default()
    };
    if os == Os::WINDOWS {
        let is_call =
            exception.is_some_and(|exception| exception.raw.exception_record.exception_flags & SOFTWARE_ORIGINATE != 0);
        walk_windows_threads(&mut report, &memory, is_call, symbolizer);
    } else {
        walk_threads(&mut report, &memory, None, symbolizer);
    }
    report.complete = report.problems.is_empty();
    Ok(report)
}

fn crash(dump: &Minidump<'_, &[u8]>, exception: Option<&MinidumpException<'_>>, os: Os, tid: Option<u32>) -> Crash {
    let time = Timestamp(u64::from(dump.header.time_date_stamp) * 1_000_000_000);
    let tid = tid.unwrap_or_default().into();
    let Some(exception) = exception else { return without_signal(dump, time, tid) };
    let record = &exception.raw.exception_record;
    if matches!(os, Os::LINUX | Os::ANDROID) {
        if record.exception_code == DUMP_REQUESTED {
            return without_signal(dump, time, tid);
        }
        let number = record.exception_code as i32;
        let code = record.exception_flags as i32;
        let has_address = code > 0 && code != 0x80 && matches!(number, 4 | 5 | 7 | 8 | 11);
        let address = has_address.then_some(Address(record.exception_address));
        let signal = Signal {
            number,
            name: signal_name(os, number),
            code,
            code_name: signal_code_name(os, number, code),
            address,
            ..Signal::default()
        };
        return Crash {
            time,
            tid,
            address,
            monitor: Monitor::SIGNAL,
            signal: (number > 0).then_some(signal),
            ..Crash::default()
        };
    }
    if os == Os::WINDOWS {
        return windows_crash(record, time, tid);
    }
    // Breakpad on Apple's systems stores the Mach exception's code and subcode here; Crashpad also
    // stores them in the parameters.
    let (code, subcode) = match record.exception_information {
        [_, code, subcode, ..] if record.number_parameters >= 3 => (code as i64, subcode as i64),
        _ => (i64::from(record.exception_flags), record.exception_address as i64),
    };
    let mach = Mach::new(record.exception_code as i32, code, subcode);
    let address = (mach.exception == 1).then_some(Address(record.exception_address));
    Crash { time, tid, address, monitor: Monitor::MACH, mach: Some(mach), ..Crash::default() }
}

/// Converts a Windows exception (winnt.h, `EXCEPTION_RECORD`).
fn windows_crash(record: &MINIDUMP_EXCEPTION, time: Timestamp, tid: u64) -> Crash {
    let number = record.exception_code.cast_signed();
    let mut crash = Crash {
        time,
        tid,
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

/// Breakpad's code for a dump that was not caused by a signal
/// (`MD_EXCEPTION_CODE_LIN_DUMP_REQUESTED`).
const DUMP_REQUESTED: u32 = 0xffff_ffff;

/// Returns the crash for a dump without a signal: usually of a running process. Coroner's minidumps
/// of exceptions and panics also have none, but a comment with the reason.
fn without_signal(dump: &Minidump<'_, &[u8]>, time: Timestamp, tid: u64) -> Crash {
    let comment = dump.get_raw_stream(MINIDUMP_STREAM_TYPE::CommentStreamW as u32).ok();
    let comment = comment.map(|bytes| {
        let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
        let text = char::decode_utf16(units.take_while(|unit| *unit != 0 && *unit != u16::from(b'\n')));
        text.map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)).take(MAX_COMMENT).collect::<String>()
    });
    let crash = Crash { time, tid, monitor: Monitor::USER, ..Crash::default() };
    match comment.filter(|comment| !comment.trim().is_empty()) {
        Some(comment) => Crash { exception_type: Some("minidump".to_owned()), message: Some(comment), ..crash },
        None => Crash {
            flags: vec![CrashFlag::NotFatal],
            exception_type: Some("dump of a running process".to_owned()),
            ..crash
        },
    }
}

/// Maximum length of a comment, in characters.
const MAX_COMMENT: usize = 1000;

/// Returns the general registers in the order used in reports.
fn general(context: &MinidumpContext) -> Option<Vec<u64>> {
    match &context.raw {
        MinidumpRawContext::Amd64(amd64) => Some(vec![
            amd64.rax,
            amd64.rdx,
            amd64.rcx,
            amd64.rbx,
            amd64.rsi,
            amd64.rdi,
            amd64.rbp,
            amd64.rsp,
            amd64.r8,
            amd64.r9,
            amd64.r10,
            amd64.r11,
            amd64.r12,
            amd64.r13,
            amd64.r14,
            amd64.r15,
            amd64.rip,
            amd64.eflags.into(),
        ]),
        MinidumpRawContext::Arm64(arm64) => {
            Some(arm64.iregs.iter().copied().chain([arm64.sp, arm64.pc, arm64.cpsr.into()]).collect())
        }
        MinidumpRawContext::OldArm64(arm64) => {
            Some(arm64.iregs.iter().copied().chain([arm64.sp, arm64.pc, arm64.cpsr.into()]).collect())
        }
        _ => None,
    }
}

fn image(module: &MinidumpModule, os: Os, main: Option<u64>) -> Image {
    let is_elf = matches!(os, Os::LINUX | Os::ANDROID);
    let build_id = match is_elf {
        _ if os == Os::WINDOWS => identity(module),
        true => module.code_identifier().map(|id| digits(id.as_str())).unwrap_or_default(),
        false => module.debug_identifier().map(|id| id.uuid().as_bytes().to_vec()).unwrap_or_default(),
    };
    let load_address = Address(module.base_address());
    Image {
        kind: match is_elf {
            _ if os == Os::WINDOWS => ImageKind::PE,
            true => ImageKind::ELF,
            false => ImageKind::MACHO,
        },
        path: module.code_file().into_owned(),
        load_address,
        // The module doesn't contain its file's base address: assume 0, as in position-independent
        // files.
        slide: load_address,
        size: module.size(),
        build_id: Bytes::from(build_id),
        is_main: Some(load_address.0) == main,
        version: module.version().map(Cow::into_owned),
        ..Image::default()
    }
}

/// Returns a module's id, as in reports for a PE image.
///
/// It consists of time stamp and size, and of GUID and age of its CodeView data.
fn identity(module: &MinidumpModule) -> Vec<u8> {
    let mut id = [module.raw.time_date_stamp.to_le_bytes(), module.raw.size_of_image.to_le_bytes()].concat();
    if let Some(CodeView::Pdb70(data)) = &module.codeview_info {
        let guid = &data.signature;
        id.extend(guid.data1.to_le_bytes());
        id.extend(guid.data2.to_le_bytes());
        id.extend(guid.data3.to_le_bytes());
        id.extend(guid.data4);
        id.extend(data.age.to_le_bytes());
    }
    id
}

/// Converts hexadecimal digits to bytes.
fn digits(text: &str) -> Vec<u8> {
    let text = text.as_bytes().as_chunks::<2>().0.iter();
    let pairs = text.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
    pairs.collect::<Option<Vec<u8>>>().unwrap_or_default()
}

/// Returns the annotations of a Crashpad client.
fn annotations(info: &MinidumpCrashpadInfo) -> Vec<Annotation> {
    let note = |source: &str, text: &str| Annotation {
        source: source.to_owned(),
        text: text.to_owned(),
        ..Annotation::default()
    };
    let simple = info.simple_annotations.iter().map(|(key, value)| note("crashpad", &format!("{key}: {value}")));
    let of_modules = info.module_list.iter().flat_map(|module| {
        let listed = module.list_annotations.iter().map(|text| note("crashpad", text));
        listed.chain(module.simple_annotations.iter().map(|(key, value)| note("crashpad", &format!("{key}: {value}"))))
    });
    simple.chain(of_modules).collect()
}
