//! Reads written minidumps with another reader, the crate `minidump`.

use coroner_formats::minidump_writer::{MinidumpError, from_report};
use coroner_process::registers::Arch;
use coroner_report::model::{
    Address, Bytes, Crash, Explanation, FaultKind, Header, Image, Mach, Mapping, Registers, Report, Signal,
    StackMemory, Thread, Timestamp,
};
use coroner_report::wire::{ImageKind, Monitor, Os};
use minidump::format::MINIDUMP_STREAM_TYPE;
use minidump::system_info::{Cpu, Os as Platform};
use minidump::{
    Minidump, MinidumpException, MinidumpLinuxMaps, MinidumpLinuxProcStatus, MinidumpMemoryList, MinidumpMiscInfo,
    MinidumpModuleList, MinidumpSystemInfo, MinidumpThreadList, MinidumpThreadNames, Module,
};

const SP: u64 = 0x7fff_0000_1008;
const PC: u64 = 0x5555_0000_1234;

fn thread(tid: u64, name: &str, registers: Option<Registers>) -> Thread {
    let name = Some(name.to_owned()).filter(|name| !name.is_empty());
    Thread { tid, name, crashed: tid == 70, main: tid == 70, registers, ..Thread::default() }
}

fn amd64() -> Registers {
    let mut general: Vec<u64> = (100..116).collect();
    general[7] = SP;
    general.extend([PC, 0x246]);
    Registers { arch: Some(Arch::X86_64), general, ..Registers::default() }
}

fn arm64() -> Registers {
    let mut general: Vec<u64> = (100..131).collect();
    general.extend([SP, PC, 0x6000_0000]);
    Registers { arch: Some(Arch::Aarch64), general, ..Registers::default() }
}

fn report(os: Os, arch: Arch, registers: &Registers, image: Image) -> Report {
    let memory = |tid, address| StackMemory {
        tid,
        address: Address(address),
        bytes: Bytes((0..64).collect()),
        ..StackMemory::default()
    };
    Report {
        header: Header {
            os,
            arch: Some(arch),
            pid: 4711,
            process_start: Timestamp(1_700_000_000_000_000_000),
            ..Header::default()
        },
        crash: Some(Crash {
            time: Timestamp(1_700_000_060_000_000_000),
            monitor: Monitor::SIGNAL,
            signal: Some(Signal { number: 11, code: 1, ..Signal::default() }),
            tid: 70,
            address: Some(Address(0x10)),
            ..Crash::default()
        }),
        threads: vec![
            thread(70, "main", Some(registers.clone())),
            thread(71, "wörker", Some(registers.clone())),
            thread(72, "", None),
        ],
        stack_memory: vec![memory(70, SP - 8), memory(70, 0x1000)],
        images: vec![
            Image { load_address: Address(0x7000_0000_0000), size: 0x1000, path: "/lib/other".into(), ..image.clone() },
            Image { is_main: true, ..image },
        ],
        ..Report::default()
    }
}

fn image(kind: ImageKind, id: Vec<u8>) -> Image {
    Image {
        kind,
        path: "/opt/paint/Paint".into(),
        load_address: Address(0x5555_0000_0000),
        size: 0x10_0000,
        build_id: Bytes(id),
        ..Image::default()
    }
}

#[test]
fn a_linux_report_is_written() {
    let image = image(ImageKind::ELF, (1..=20).collect());
    let report = report(Os::LINUX, Arch::X86_64, &amd64(), image.clone());
    let dump = Minidump::read(from_report(&report).unwrap()).unwrap();
    assert_eq!(dump.header.time_date_stamp, 1_700_000_060);

    let system = dump.get_stream::<MinidumpSystemInfo>().unwrap();
    assert_eq!((system.os, system.cpu), (Platform::Linux, Cpu::X86_64));
    let misc = dump.get_stream::<MinidumpMiscInfo>().unwrap();
    assert_eq!((misc.raw.process_id(), misc.raw.process_create_time()), (Some(&4711), Some(&1_700_000_000)));

    let exception = dump.get_stream::<MinidumpException>().unwrap();
    assert_eq!(exception.get_crashing_thread_id(), 70);
    let reason = exception.get_crash_reason(system.os, system.cpu).to_string();
    assert_eq!(reason, "SIGSEGV / SEGV_MAPERR");
    assert_eq!(exception.get_crash_address(system.os, system.cpu), 0x10);
    let context = exception.context(&system, Some(&misc)).unwrap();
    assert_eq!((context.get_instruction_pointer(), context.get_stack_pointer()), (PC, SP));

    let threads = dump.get_stream::<MinidumpThreadList>().unwrap();
    let names = dump.get_stream::<MinidumpThreadNames>().unwrap();
    let memory = dump.get_stream::<MinidumpMemoryList>().unwrap();
    let ids: Vec<u32> = threads.threads.iter().map(|thread| thread.raw.thread_id).collect();
    assert_eq!(ids, [70, 71, 72]);
    assert_eq!(names.get_name(71).as_deref(), Some("wörker"));
    assert_eq!(names.get_name(72), None);
    let context = threads.threads[0].context(&system, Some(&misc)).unwrap();
    for (name, value) in amd64().named().filter(|(name, _)| *name != "rflags") {
        assert_eq!(context.get_register(name), Some(value), "{name}");
    }
    assert!(threads.threads[2].context(&system, Some(&misc)).is_none());
    let stack = threads.threads[0].raw.stack;
    assert_eq!((stack.start_of_memory_range, stack.memory.data_size), (SP - 8, 64));
    assert_eq!(threads.threads[1].raw.stack.memory.data_size, 0, "its stack was not saved");
    let piece = memory.memory_at_address(SP).unwrap();
    assert_eq!(piece.bytes, (0..64).collect::<Vec<u8>>());
    assert_eq!(memory.iter().count(), 2);

    let modules = dump.get_stream::<MinidumpModuleList>().unwrap();
    let main = modules.main_module().unwrap();
    assert_eq!(
        (main.base_address(), main.size(), &*main.code_file()),
        (0x5555_0000_0000, 0x10_0000, "/opt/paint/Paint")
    );
    assert_eq!(main.code_identifier().unwrap().as_str(), image.code_id().unwrap());
    let debug_id = main.debug_identifier().unwrap().uuid().to_string();
    assert_eq!(debug_id, image.debug_id().unwrap());
    assert_eq!(modules.iter().count(), 2);
}

#[test]
fn the_files_of_proc_are_written_as_far_as_they_are_known() {
    let mut report = report(Os::LINUX, Arch::X86_64, &amd64(), image(ImageKind::ELF, vec![1; 20]));
    report.header.process_name = "Paint".into();
    let mapping = |start, protection, name: Option<&str>| Mapping {
        start: Address(start),
        size: 0x1000,
        protection,
        name: name.map(ToOwned::to_owned),
        file_offset: name.map(|_| 0x2000),
        ..Mapping::default()
    };
    report.mappings = vec![mapping(0x1000, 0, None), mapping(0x5555_0000_0000, 4 | 1 | 8, Some("/opt/my paint"))];
    let dump = Minidump::read(from_report(&report).unwrap()).unwrap();
    let maps = dump.get_stream::<MinidumpLinuxMaps>().unwrap();
    let found = maps.by_addr().map(|map| (map.map.address, map.is_readable(), map.is_executable(), map.map.offset));
    assert_eq!(
        found.collect::<Vec<_>>(),
        [((0x1000, 0x2000), false, false, 0), ((0x5555_0000_0000, 0x5555_0000_1000), true, true, 0x2000)]
    );
    let status = dump.get_stream::<MinidumpLinuxProcStatus>().unwrap();
    let value =
        |key: &str| status.iter().find(|(name, _)| name.as_bytes() == key.as_bytes()).unwrap().1.to_string_lossy();
    assert_eq!((&*value("Name"), &*value("Pid"), &*value("Threads")), ("Paint", "4711", "3"));
    report.header.os = Os::MACOS;
    let dump = Minidump::read(from_report(&report).unwrap()).unwrap();
    assert!(dump.get_raw_stream(MINIDUMP_STREAM_TYPE::LinuxMaps as u32).is_err(), "macOS has no such files");
}

#[test]
fn the_explanation_is_written_as_the_comment() {
    let mut report = report(Os::LINUX, Arch::X86_64, &amd64(), image(ImageKind::ELF, vec![1; 20]));
    let comment = |report: &Report| {
        let dump = Minidump::read(from_report(report).unwrap()).unwrap();
        let bytes = dump.get_raw_stream(MINIDUMP_STREAM_TYPE::CommentStreamW as u32).ok()?.to_vec();
        let units: Vec<u16> = bytes.chunks(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
        Some(String::from_utf16(&units).unwrap())
    };
    assert_eq!(comment(&report), None);
    report.explanation = Some(Explanation {
        headline: "Null pointer: read at null + 0x10 in wörker".to_owned(),
        kind: FaultKind::NullPointer,
        facts: vec!["rax was set by `xor eax, eax`".to_owned()],
        ..Explanation::default()
    });
    let expected = "Null pointer: read at null + 0x10 in wörker\nrax was set by `xor eax, eax`\0";
    assert_eq!(comment(&report).as_deref(), Some(expected));
}

#[test]
fn a_macos_report_is_written() {
    let image = image(ImageKind::MACHO, (0xa1..=0xb0).collect());
    let mut report = report(Os::MACOS, Arch::Aarch64, &arm64(), image.clone());
    let crash = report.crash.as_mut().unwrap();
    crash.mach = Some(Mach { exception: 1, code: 2, subcode: 0x10, ..Mach::default() });
    let dump = Minidump::read(from_report(&report).unwrap()).unwrap();
    let system = dump.get_stream::<MinidumpSystemInfo>().unwrap();
    assert_eq!((system.os, system.cpu), (Platform::MacOs, Cpu::Arm64));
    let exception = dump.get_stream::<MinidumpException>().unwrap();
    let reason = exception.get_crash_reason(system.os, system.cpu).to_string();
    assert_eq!(reason, "EXC_BAD_ACCESS / KERN_PROTECTION_FAILURE");
    assert_eq!(exception.get_crash_address(system.os, system.cpu), 0x10);
    let threads = dump.get_stream::<MinidumpThreadList>().unwrap();
    let context = threads.threads[0].context(&system, None).unwrap();
    for (name, value) in arm64().named().filter(|(name, _)| *name != "pstate") {
        assert_eq!(context.get_register(name), Some(value), "{name}");
    }
    let modules = dump.get_stream::<MinidumpModuleList>().unwrap();
    let main = modules.main_module().unwrap();
    assert_eq!(main.debug_identifier().unwrap().uuid().to_string(), image.debug_id().unwrap());
    assert_eq!(main.debug_file().as_deref(), Some("Paint"));

    // An abort, which is reported only as a signal.
    let crash = report.crash.as_mut().unwrap();
    (crash.mach, crash.signal) = (None, Some(Signal { number: 6, ..Signal::default() }));
    let dump = Minidump::read(from_report(&report).unwrap()).unwrap();
    let exception = dump.get_stream::<MinidumpException>().unwrap();
    assert_eq!(exception.raw.exception_record.exception_information[..3], [5, 0x10003, 6]);
}

#[test]
fn unsupported_reports_are_refused() {
    let whole = report(Os::LINUX, Arch::X86_64, &amd64(), image(ImageKind::ELF, Vec::new()));
    let mut report = whole.clone();
    report.header.arch = None;
    assert_eq!(from_report(&report), Err(MinidumpError::Platform));
    let mut report = whole.clone();
    report.header.os = Os(200);
    assert_eq!(from_report(&report), Err(MinidumpError::Platform));
    // A report truncated after its header still results in a minidump.
    let cut = Report { header: whole.header.clone(), ..Report::default() };
    let dump = Minidump::read(from_report(&cut).unwrap()).unwrap();
    assert!(dump.get_stream::<MinidumpException>().is_err());
    assert!(dump.get_stream::<MinidumpThreadList>().unwrap().threads.is_empty());
    // A module without an id still has its address.
    let dump = Minidump::read(from_report(&whole).unwrap()).unwrap();
    let modules = dump.get_stream::<MinidumpModuleList>().unwrap();
    assert!(modules.main_module().unwrap().code_identifier().is_none());
}
