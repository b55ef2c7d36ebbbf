//! Reads minidumps of Breakpad, Crashpad, Coroner and Windows with `minidump-processor`.
//!
//! It decodes the streams and the crashing instruction, and walks the stacks with what
//! [`provider`] finds. The result is converted to a report, which [`Symbolizer`] names.

mod exception;
mod modules;
mod pdata;
mod provider;

use std::collections::BTreeMap;

use coroner_process::registers::Arch;
use coroner_report::Report;
use coroner_report::model::{
    Address, Annotation, AppFacts, Code, CrashFlag, DeviceFacts, Exception, Frame, Header, Mapping, OsFacts, Problem,
    Registers, RunFacts, Thread, Timestamp, Value,
};
use coroner_report::wire::{AddressKind, ExtraRegister, FORMAT_VERSION, FoundBy, Language, Monitor, Os, WalkEnd};
use coroner_symbols::Symbolizer;
use minidump::system_info::{Cpu, Os as DumpOs};
use minidump::{
    Minidump, MinidumpAnnotation, MinidumpContext, MinidumpCrashpadInfo, MinidumpException, MinidumpLinuxMaps,
    MinidumpLinuxProcStatus, MinidumpMemoryInfoList, MinidumpModule, MinidumpModuleList, MinidumpRawContext,
    MinidumpStream, MinidumpSystemInfo, MinidumpThreadList, Module, UnifiedMemoryInfo, UnifiedMemoryInfoList,
};
use minidump_processor::{LinuxProcStatus, ProcessState, process_minidump};
use minidump_unwind::{CallStack, CallStackInfo, FrameTrust};

use self::provider::{MAX_FRAMES, Provider, Step};
use super::error::{DumpError, damaged};
use crate::content_id;
use crate::snapshot::{SavedMemory, describe_image, registers};
use crate::{MAX_IMAGES, MAX_THREADS};

/// Flag of an exception whose program counter is a return address.
///
/// winnt.h, `EXCEPTION_SOFTWARE_ORIGINATE`.
const SOFTWARE_ORIGINATE: u32 = 0x80;
/// Bytes of code kept before and after the program counter.
const CODE_BYTES: u64 = 128;

pub(crate) fn read(bytes: &[u8], symbolizer: &mut Symbolizer) -> Result<Report, DumpError> {
    let dump = Minidump::read(bytes).map_err(|error| damaged(format!("invalid minidump header at byte 0: {error}")))?;
    let system: MinidumpSystemInfo = stream(&dump, "system information")?;
    let list: MinidumpThreadList<'_> = stream(&dump, "thread list")?;
    let os = match system.os {
        DumpOs::Linux => Os::LINUX,
        DumpOs::Android => Os::ANDROID,
        DumpOs::MacOs => Os::MACOS,
        DumpOs::Ios => Os::IOS,
        DumpOs::Windows => Os::WINDOWS,
        DumpOs::Unknown(number) => return Err(DumpError::System(format!("platform {number:#x}"))),
        other => return Err(DumpError::System(other.long_name().into_owned())),
    };
    let (arch, symbols_arch) = match system.cpu {
        Cpu::X86_64 => (Some(Arch::X86_64), coroner_symbols::Arch::X86_64),
        Cpu::Arm64 => (Some(Arch::Aarch64), coroner_symbols::Arch::Aarch64),
        Cpu::X86 => (None, coroner_symbols::Arch::X86),
        Cpu::Arm => (None, coroner_symbols::Arch::Arm),
        _ => (None, coroner_symbols::Arch::Other),
    };
    let modules = dump.get_stream::<MinidumpModuleList>().unwrap_or_default();
    // On Apple's simulators the first module is the dynamic linker.
    let main = modules.main_module().filter(|module| !module.code_file().ends_with("/dyld_sim"));
    let main = main.map(MinidumpModule::base_address);
    let mut report = Report {
        header: Header {
            format_version: FORMAT_VERSION,
            event_id: content_id([&bytes[..bytes.len().min(1 << 20)], &(bytes.len() as u64).to_le_bytes()]),
            arch,
            os,
            page_size: 4096,
            ..Header::default()
        },
        images: modules.by_addr().take(MAX_IMAGES).map(|module| modules::image(module, os, main)).collect(),
        ..Report::default()
    };
    let regions = dump.get_memory();
    let saved = regions.iter().flat_map(minidump::UnifiedMemoryList::iter);
    let saved = saved.map(|piece| (piece.base_address(), piece.bytes())).collect::<Vec<(u64, &[u8])>>();
    let stacks = list.threads.iter().filter_map(|thread| {
        let piece = thread.stack_memory(regions.as_ref()?)?;
        Some((piece.base_address(), piece.bytes()))
    });
    let memory = SavedMemory::new(saved.iter().copied().chain(stacks).collect());
    let provider = Provider::new(&report, symbols_arch, &memory, symbolizer);
    let state = pollster::block_on(process_minidump(&dump, &provider))
        .map_err(|error| damaged(format!("can't process the minidump: {error}")))?;
    let exception = dump.get_stream::<MinidumpException<'_>>().ok();
    fill(&mut report, &dump, &state, exception.as_ref());
    add_threads(&mut report, &state, &provider, exception.as_ref());
    add_memory(&mut report, &dump, &memory);
    report.complete = report.problems.is_empty();
    Ok(report)
}

/// Returns a stream that a minidump must have.
fn stream<'d, S: MinidumpStream<'d>>(dump: &'d Minidump<'d, &'d [u8]>, what: &str) -> Result<S, DumpError> {
    dump.get_stream::<S>().map_err(|error| {
        let place = dump.all_streams().find(|stream| stream.stream_type == S::STREAM_TYPE);
        match place {
            Some(place) => damaged(format!("invalid {what} at byte {:#x}: {error}", place.location.rva)),
            None => damaged(format!("the minidump has no {what}")),
        }
    })
}

/// Fills in process, system and crash.
fn fill(
    report: &mut Report,
    dump: &Minidump<'_, &[u8]>,
    state: &ProcessState,
    exception: Option<&MinidumpException<'_>>,
) {
    let status =
        || dump.get_stream::<MinidumpLinuxProcStatus<'_>>().ok().map(|status| LinuxProcStatus::from(status).pid);
    let main = report.images.iter().find(|image| image.is_main);
    let (name, path) = main.map(|image| (image.name().to_owned(), image.path.clone())).unzip();
    let header = &mut report.header;
    header.pid = state.process_id.filter(|pid| *pid != 0).or_else(status).unwrap_or_default();
    header.process_name = name.clone().unwrap_or_default();
    header.process_start = state.process_create_time.map(Timestamp::from).unwrap_or_default();
    let mut crash = exception::crash(dump, exception, state, header.os);
    crash.time = Timestamp::from(state.time);
    let requesting = state.requesting_thread.and_then(|index| state.threads.get(index));
    let tid = exception.map(MinidumpException::get_crashing_thread_id);
    // Of a process without an exception any thread may have requested the dump.
    let first = state.threads.first().filter(|_| crash.has(CrashFlag::NotFatal));
    let tid = tid.filter(|tid| *tid != 0).or(requesting.or(first).map(|thread| thread.thread_id));
    crash.tid = tid.unwrap_or_default().into();
    let info = &state.system_info;
    let filled = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let version = info.os_version.clone().filter(|version| version != "0.0.0");
    let is_linux = matches!(header.os, Os::LINUX | Os::ANDROID);
    let release = state.linux_standard_base.as_ref();
    let mut run = RunFacts {
        app: AppFacts {
            process_name: name,
            executable: path,
            pid: Some(header.pid).filter(|pid| *pid != 0),
            ..AppFacts::default()
        },
        os: OsFacts {
            name: Some(if header.os == Os::MACOS { "macOS".to_owned() } else { info.os.long_name().into_owned() }),
            version: version.clone().filter(|_| !is_linux),
            build: info.os_build.clone().filter(|_| !is_linux),
            kernel_version: version.filter(|_| is_linux),
            distribution: release.and_then(|release| filled(&release.id)),
            distribution_version: release.and_then(|release| filled(&release.release)),
            ..OsFacts::default()
        },
        device: DeviceFacts {
            arch: Some(info.cpu.to_string()),
            cpu: info.cpu_info.clone(),
            processor_count: u32::try_from(info.cpu_count).ok().filter(|count| *count != 0),
            ..DeviceFacts::default()
        },
        ..RunFacts::default()
    };
    add_annotations(report, dump, state, &mut run);
    // Crashpad's client on iOS describes the exception in annotations.
    let text = |key: &str| match run.extra.get(key) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    if crash.monitor == Monitor::NS_EXCEPTION {
        report.exceptions.push(Exception {
            language: Language::OBJC,
            type_name: text("exceptionName"),
            message: text("exceptionReason"),
            tid: crash.tid,
            ..Exception::default()
        });
    }
    report.crash = Some(crash);
    report.run = Some(run);
}

/// Adds the annotations of Crashpad's clients, and the messages that macOS's libraries left.
fn add_annotations(report: &mut Report, dump: &Minidump<'_, &[u8]>, state: &ProcessState, run: &mut RunFacts) {
    let note = |source: &str, text: &str| Annotation {
        source: source.to_owned(),
        text: text.to_owned(),
        ..Annotation::default()
    };
    let info = dump.get_stream::<MinidumpCrashpadInfo>().ok();
    let extra = &mut run.extra;
    let mut add = |pairs: &BTreeMap<String, String>| {
        extra.extend(pairs.iter().map(|(key, value)| (key.clone(), Value::Text(value.clone()))));
    };
    if let Some(info) = &info {
        add(&info.simple_annotations);
        for module in &info.module_list {
            add(&module.simple_annotations);
            let text = |(key, value): (&String, &MinidumpAnnotation)| match value {
                MinidumpAnnotation::String(text) => Some((key.clone(), text.clone())),
                _ => None,
            };
            add(&module.annotation_objects.iter().filter_map(text).collect());
            let source = state.modules.iter().nth(module.module_index).map(|module| module.code_file().into_owned());
            let source = source.unwrap_or_else(|| "crashpad".to_owned());
            report.annotations.extend(module.list_annotations.iter().map(|text| note(&source, text)));
        }
    }
    for info in state.mac_crash_info.iter().flatten() {
        let source = info.module_path().unwrap_or_default();
        for text in [info.message(), info.message2(), info.signature_string(), info.backtrace()].into_iter().flatten() {
            report.annotations.push(note(source, text));
        }
    }
    report.annotations.retain(|annotation| !annotation.text.trim().is_empty());
}

fn add_threads(
    report: &mut Report,
    state: &ProcessState,
    provider: &Provider<'_>,
    exception: Option<&MinidumpException<'_>>,
) {
    let crash = report.crash.clone().unwrap_or_default();
    let is_crash = !crash.has(CrashFlag::NotFatal);
    // On Linux the main thread has the process's id. Other writers list it first.
    let pid = u64::from(report.header.pid);
    let main = Some(pid).filter(|pid| *pid != 0 && matches!(report.header.os, Os::LINUX | Os::ANDROID));
    let is_call = report.header.os == Os::WINDOWS
        && exception.is_some_and(|exception| exception.raw.exception_record.exception_flags & SOFTWARE_ORIGINATE != 0);
    for (number, stack) in state.threads.iter().take(MAX_THREADS).enumerate() {
        let tid = u64::from(stack.thread_id);
        let crashed = is_crash && tid == crash.tid;
        let context = stack.frames.first().map(|frame| &frame.context);
        let mut thread = Thread {
            tid,
            name: stack.thread_name.clone().filter(|name| !name.is_empty()),
            crashed,
            main: main.map_or(number == 0, |main| tid == main),
            registers: context.and_then(general),
            walk_end: (!stack.frames.is_empty()).then(|| walk_end(stack, provider)),
            ..Thread::default()
        };
        thread.frames = frames(report, stack, provider);
        if let Some(first) = thread.frames.first_mut().filter(|_| is_call && crashed) {
            first.address_kind = AddressKind::RETURN;
        }
        report.threads.push(thread);
    }
    // The crashed thread comes first, as in all reports.
    report.threads.sort_by_key(|thread| !thread.crashed);
    // The walk had to guess where it left these images.
    let mut without: Vec<String> = Vec::new();
    for pair in report.threads.iter().flat_map(|thread| thread.frames.windows(2)) {
        let image = report.image_at(pair[0].lookup_address()).filter(|_| pair[1].found_by == FoundBy::SCAN);
        let image = image.filter(|image| !provider.has_data(image.load_address.0)).map(describe_image);
        without.extend(image.filter(|image| !without.contains(image)));
    }
    if !without.is_empty() {
        let what = format!(
            "no file with the build id of {} was found; stacks through it are walked without unwind data",
            without.join(", ")
        );
        report.problems.push(Problem { section: None, offset: 0, what });
    }
}

/// Converts a thread's frames.
fn frames(report: &Report, stack: &CallStack, provider: &Provider<'_>) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for frame in stack.frames.iter().take(MAX_FRAMES) {
        let (sp, pc) = (frame.context.get_stack_pointer(), frame.resume_address);
        let (mut found_by, mut address_kind) = match frame.trust {
            FrameTrust::Context => (FoundBy::CONTEXT, AddressKind::INSTRUCTION),
            FrameTrust::CallFrameInfo | FrameTrust::PreWalked => (FoundBy::CFI, AddressKind::RETURN),
            FrameTrust::FramePointer => (FoundBy::FRAME_POINTER, AddressKind::RETURN),
            FrameTrust::CfiScan | FrameTrust::Scan | FrameTrust::None => (FoundBy::SCAN, AddressKind::RETURN),
        };
        if let (FrameTrust::CallFrameInfo, Some(Step::Found(found, kind))) = (frame.trust, provider.step(sp, pc)) {
            (found_by, address_kind) = (found, kind);
        }
        // The first word of the stack, after a call to an address without code.
        if let [first] = &frames[..]
            && found_by == FoundBy::SCAN
            && report.header.arch == Some(Arch::X86_64)
            && first.sp.map(|below| below.0.wrapping_add(8)) == Some(sp)
            && report.image_at(first.address).is_none()
        {
            found_by = FoundBy::STACK_TOP;
        }
        let sp = Some(Address(sp));
        frames.push(Frame { address: Address(pc), found_by, address_kind, sp, ..Frame::default() });
    }
    frames
}

fn walk_end(stack: &CallStack, provider: &Provider<'_>) -> WalkEnd {
    let last = stack.frames.last().map(|frame| (frame.context.get_stack_pointer(), frame.resume_address));
    match last.and_then(|(sp, pc)| provider.step(sp, pc)) {
        _ if stack.frames.len() >= MAX_FRAMES => WalkEnd::LIMIT,
        _ if stack.info == CallStackInfo::MissingMemory => WalkEnd::UNREADABLE,
        Some(Step::End(end)) => end,
        _ => WalkEnd::NO_RULE,
    }
}

/// Adds the code at the program counter, and the mappings at the address of the fault.
fn add_memory(report: &mut Report, dump: &Minidump<'_, &[u8]>, memory: &SavedMemory<'_>) {
    let innermost = report.crashed_thread().into_iter().flat_map(|thread| thread.frames.iter().take(2));
    let found = innermost.map(|frame| frame.address.0).find_map(|pc| {
        let start = (pc.saturating_sub(CODE_BYTES)..=pc).find(|start| memory.at(*start).is_some())?;
        let bytes = memory.at(start).filter(|bytes| bytes.len() as u64 > pc - start)?;
        Some((start, &bytes[..bytes.len().min((pc - start + CODE_BYTES) as usize)]))
    });
    report.code.extend(found.map(|(start, bytes)| Code {
        address: Address(start),
        bytes: bytes.to_vec().into(),
        ..Code::default()
    }));
    let Some(address) = report.crash.as_ref().and_then(|crash| crash.address) else { return };
    let info = dump.get_stream::<MinidumpMemoryInfoList<'_>>().ok();
    let Some(list) = UnifiedMemoryInfoList::new(info, dump.get_stream::<MinidumpLinuxMaps<'_>>().ok()) else { return };
    let all = list.iter().filter_map(|region| mapping(&region)).collect::<Vec<_>>();
    let (below, above): (Vec<Mapping>, Vec<Mapping>) = all.into_iter().partition(|mapping| mapping.start <= address);
    let below = below.into_iter().max_by_key(|mapping| mapping.start);
    let is_inside = below.as_ref().is_some_and(|mapping| mapping.contains(address) && mapping.protection & 7 != 0);
    let above = above.into_iter().min_by_key(|mapping| mapping.start).filter(|_| !is_inside);
    report.mappings.extend(below.into_iter().chain(above));
}

/// Converts a region of memory; `None` if nothing is mapped there.
fn mapping(region: &UnifiedMemoryInfo<'_>) -> Option<Mapping> {
    if let UnifiedMemoryInfo::Info(info) = region
        && info.state.contains(minidump::format::MemoryState::MEM_FREE)
    {
        return None;
    }
    let range = region.memory_range()?;
    let rights = [(region.is_executable(), 1), (region.is_writable(), 2), (region.is_readable(), 4)];
    Some(Mapping {
        start: Address(range.start),
        size: range.end.saturating_sub(range.start).saturating_add(1),
        protection: rights.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum(),
        ..Mapping::default()
    })
}

/// Returns the registers in the order used in reports.
fn general(context: &MinidumpContext) -> Option<Registers> {
    let get = |name: &str| context.get_register_always(name);
    Some(match &context.raw {
        MinidumpRawContext::Amd64(amd64) => {
            let gpr = coroner_process::registers::X86_64_NAMES.iter().map(|name| get(name));
            registers(Arch::X86_64, gpr.chain([amd64.rip, amd64.eflags.into()]).collect())
        }
        MinidumpRawContext::Arm64(arm64) => registers(
            Arch::Aarch64,
            arm64.iregs.iter().copied().chain([arm64.sp, arm64.pc, arm64.cpsr.into()]).collect(),
        ),
        MinidumpRawContext::OldArm64(arm64) => registers(
            Arch::Aarch64,
            arm64.iregs.iter().copied().chain([arm64.sp, arm64.pc, arm64.cpsr.into()]).collect(),
        ),
        MinidumpRawContext::X86(x86) => {
            let named = ExtraRegister::X86.map(|register| (register, get(&register.to_string())));
            let flags = (ExtraRegister::EFLAGS, x86.eflags.into());
            Registers { extra: named.into_iter().chain([flags]).collect(), ..Registers::default() }
        }
        MinidumpRawContext::Arm(arm) => {
            let general = arm.iregs.iter().map(|register| u64::from(*register)).collect();
            Registers { general, ..Registers::default() }
        }
        _ => return None,
    })
}
