//! Minidumps as other writers make them, built by `minidump-synth`.

use coroner_formats::dump::{DumpError, read};
use coroner_report::model::{Bytes, CrashFlag, Report, Value};
use coroner_report::wire::{AddressKind, FoundBy, Os};
use coroner_symbols::{Options, Symbolizer};
use minidump::format::{MINIDUMP_STREAM_TYPE, PlatformId, ProcessorArchitecture};
use minidump_synth::{
    CrashpadInfo, DumpString, Exception, Memory, Module, ModuleCrashpadInfo, SynthMinidump, SystemInfo, Thread,
    amd64_context, x86_context,
};
use test_assembler::{Endian, Section};

const LITTLE: Endian = Endian::Little;
const AMD64: ProcessorArchitecture = ProcessorArchitecture::PROCESSOR_ARCHITECTURE_AMD64;
const X86: ProcessorArchitecture = ProcessorArchitecture::PROCESSOR_ARCHITECTURE_INTEL;
const TID: u32 = 0x1234;
const STACK: u64 = 0x7fff_0000_1000;
const BASE: u64 = 0x5555_0000_0000;

/// A dump of one thread; its program counter is at offset 0x1010 of the module at [`BASE`].
struct Dump {
    arch: ProcessorArchitecture,
    platform: PlatformId,
    pc: u64,
    stack: Vec<u64>,
    /// The module's CodeView record.
    code_view: Vec<u8>,
    /// Code, signal code, address, parameters.
    exception: Option<(u32, u32, u64, Vec<u64>)>,
}

impl Default for Dump {
    fn default() -> Self {
        let exception = Some((11, 1, 0, Vec::new()));
        let (arch, platform, pc) = (AMD64, PlatformId::Linux, BASE + 0x1010);
        Dump { arch, platform, pc, stack: vec![0; 8], code_view: build_id(), exception }
    }
}

/// `BpEL` and a build id.
fn build_id() -> Vec<u8> {
    [&b"LEpB"[..], &(0x10..0x24).collect::<Vec<u8>>()].concat()
}

/// `RSDS`, a GUID, an age, and a file's name.
fn rsds(age: u32) -> Vec<u8> {
    [&b"RSDS"[..], &(0x10..0x20).collect::<Vec<u8>>(), &age.to_le_bytes(), b"app.pdb\0"].concat()
}

impl Dump {
    fn build(self, add: impl FnOnce(SynthMinidump) -> SynthMinidump) -> Vec<u8> {
        let (is_x86, stack_at) =
            (self.arch as u16 == X86 as u16, STACK & if self.arch as u16 == X86 as u16 { 0xffff } else { !0 });
        let context = match is_x86 {
            true => x86_context(LITTLE, self.pc as u32, stack_at as u32),
            false => amd64_context(LITTLE, self.pc, stack_at),
        };
        let words: Vec<u8> = match is_x86 {
            true => self.stack.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect(),
            false => self.stack.iter().flat_map(|word| word.to_le_bytes()).collect(),
        };
        let stack = Memory::with_section(Section::with_endian(LITTLE).append_bytes(&words), stack_at);
        let name = DumpString::new("/opt/app", LITTLE);
        let record = Section::with_endian(LITTLE).append_bytes(&self.code_view);
        let base = if is_x86 { 0x40_0000 } else { BASE };
        let mut module = Module::new(LITTLE, base, 0x4000, &name, 0, 0, None);
        if !self.code_view.is_empty() {
            module = module.cv_record(&record);
        }
        let mut dump = SynthMinidump::with_endian(LITTLE)
            .add_thread(Thread::new(LITTLE, TID, &stack, &context))
            .add_system_info(
                SystemInfo::new(LITTLE)
                    .set_processor_architecture(self.arch as u16)
                    .set_platform_id(self.platform as u32),
            )
            .add_module(module)
            .add(name)
            .add(record)
            .add(context)
            .add_memory(stack);
        if let Some((code, flags, address, parameters)) = self.exception {
            let mut exception = Exception::new(LITTLE);
            exception.thread_id = TID;
            let record = &mut exception.exception_record;
            (record.exception_code, record.exception_flags, record.exception_address) = (code, flags, address);
            record.number_parameters = parameters.len() as u32;
            record.exception_information[..parameters.len()].copy_from_slice(&parameters);
            dump = dump.add_exception(exception);
        }
        let mut bytes = add(dump).finish().unwrap();
        share_context(&mut bytes);
        bytes
    }

    fn read(self) -> Report {
        self.read_with(|dump| dump, "")
    }

    /// Reads the dump with a symbol file.
    fn read_with(self, add: impl FnOnce(SynthMinidump) -> SynthMinidump, symbols: &str) -> Report {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("app.sym"), symbols).unwrap();
        let search = if symbols.is_empty() { Vec::new() } else { vec![folder.path().to_owned()] };
        let mut symbolizer = Symbolizer::new(Options { search, ..Options::default() });
        read(&self.build(add), None, &mut symbolizer).unwrap()
    }
}

/// Sets the exception's registers to the thread's, as writers do.
fn share_context(bytes: &mut [u8]) {
    /// Offset of the context's location in the exception stream.
    const CONTEXT: usize = 160;
    let dump = minidump::Minidump::read(bytes.to_vec()).unwrap();
    let stream = dump.all_streams().find(|stream| stream.stream_type == MINIDUMP_STREAM_TYPE::ExceptionStream as u32);
    let Some(at) = stream.map(|stream| stream.location.rva as usize + CONTEXT) else { return };
    let threads: minidump::MinidumpThreadList = dump.get_stream().unwrap();
    let context = threads.threads[0].raw.thread_context;
    bytes[at..at + 8].copy_from_slice(&[context.data_size.to_le_bytes(), context.rva.to_le_bytes()].concat());
}

fn addresses(report: &Report) -> Vec<(u64, FoundBy)> {
    report.threads[0].frames.iter().map(|frame| (frame.address.0, frame.found_by)).collect()
}

#[test]
fn a_signal_without_a_code_has_its_address_and_no_sender() {
    let report = Dump { exception: Some((11, 0, 0x10, Vec::new())), ..Dump::default() }.read();
    let crash = report.crash.unwrap();
    let signal = crash.signal.unwrap();
    assert_eq!((signal.name, signal.code_text(), signal.unknown_code), (Some("SIGSEGV"), None, true));
    assert_eq!(crash.address.map(|address| address.0), Some(0x10));
    // The name isn't invented when the JSON is read.
    let report = Dump { exception: Some((11, 0, 0x10, Vec::new())), ..Dump::default() }.read();
    let again = Report::from_json(&report.to_json()).unwrap();
    assert_eq!(again.crash.unwrap().signal.unwrap().code_text(), None);
    // The address of another signal would be its sender.
    let crash = Dump { exception: Some((6, 0, 0x3e8, Vec::new())), ..Dump::default() }.read().crash.unwrap();
    assert_eq!((crash.address, crash.signal.unwrap().code_name), (None, None));
}

#[test]
fn the_address_of_a_signal_without_a_code_is_one_that_its_instruction_accesses() {
    // mov dword ptr [rax], 1, with rax = 0.
    let code = [0xc7, 0, 1, 0, 0, 0, 0x90, 0x90];
    for (address, expected) in [(0, Some(0)), (0x3e8_0000_1234, None)] {
        let dump = Dump { exception: Some((11, 0, address, Vec::new())), ..Dump::default() };
        let memory = Memory::with_section(Section::with_endian(LITTLE).append_bytes(&code), BASE + 0x1010);
        let report = dump.read_with(|dump| dump.add_memory(memory), "");
        assert_eq!(report.crash.unwrap().address.map(|address| address.0), expected);
        assert_eq!((report.code[0].address.0, &*report.code[0].bytes.0), (BASE + 0x1010, &code[..]));
    }
}

#[test]
fn a_mach_exception_in_exc_crash_is_the_one_that_it_contains() {
    // Crashpad: the fields are decoded, the parameters are not.
    let exception = Some((1, 2, 0x10, vec![10, 0xb10_0001, 0]));
    let report = Dump { platform: PlatformId::MacOs, exception, ..Dump::default() }.read();
    let mach = report.crash.unwrap().mach.unwrap();
    assert_eq!(
        (mach.name, mach.code_name, mach.subcode),
        (Some("EXC_BAD_ACCESS"), Some("KERN_PROTECTION_FAILURE"), 0x10)
    );
    let exception = Some((1, 1, 0x10, vec![1, 0x1_0000_0001, 0x7_0000_0010]));
    let report = Dump { platform: PlatformId::MacOs, exception, ..Dump::default() }.read();
    let mach = report.crash.unwrap().mach.unwrap();
    assert_eq!((mach.code, mach.subcode), (0x1_0000_0001, 0x7_0000_0010));
}

#[test]
fn a_requested_dump_is_not_a_crash() {
    let rows = [
        (PlatformId::Linux, Some(0xffff_ffff)),
        (PlatformId::MacOs, Some(0x4350_7378)),
        (PlatformId::MacOs, Some(0)),
        (PlatformId::VER_PLATFORM_WIN32_NT, Some(0x0517_a7ed)),
        (PlatformId::Linux, None),
    ];
    for (platform, code) in rows {
        let exception = code.map(|code| (code, 0, 0, Vec::new()));
        let report = Dump { platform, exception, ..Dump::default() }.read();
        let crash = report.crash.unwrap();
        assert!(crash.has(CrashFlag::NotFatal) && crash.signal.is_none() && crash.mach.is_none(), "{code:x?}");
        assert!(!report.threads[0].crashed, "{code:x?}");
    }
}

#[test]
fn an_elf_image_has_the_id_that_the_dump_contains() {
    let guid: Vec<u8> = (0x10..0x20).collect();
    let rows = [
        (build_id(), (0x10..0x24).collect()),
        (rsds(0), guid),
        (Vec::new(), Vec::new()),
        ([&b"LEpB"[..], &[0; 20]].concat(), Vec::new()),
    ];
    for (code_view, expected) in rows {
        let report = Dump { code_view, ..Dump::default() }.read();
        assert_eq!(report.images[0].build_id, Bytes(expected));
    }
    // Without a time stamp, the size of a PE image identifies nothing.
    let platform = PlatformId::VER_PLATFORM_WIN32_NT;
    let report = Dump { platform, code_view: Vec::new(), ..Dump::default() }.read();
    assert_eq!(report.images[0].build_id, Bytes::default());
}

#[test]
fn crashpads_annotations_are_not_the_cause() {
    let module = ModuleCrashpadInfo::new(0, LITTLE).add_simple_annotation("channel", "beta");
    let info = CrashpadInfo::new(LITTLE).add_simple_annotation("guid", "1234").add_module(module);
    let report = Dump::default().read_with(|dump| dump.add_crashpad_info(info), "");
    let extra = &report.run.as_ref().unwrap().extra;
    assert_eq!(extra.get("guid"), Some(&Value::Text("1234".into())));
    assert_eq!(extra.get("channel"), Some(&Value::Text("beta".into())));
    assert!(report.annotations.is_empty());
    assert_eq!(report.cause().as_deref(), Some("SEGV_MAPERR: at 0x0"));
}

#[test]
fn the_process_id_is_that_of_proc_status() {
    let report = Dump::default().read_with(|dump| dump.set_linux_proc_status(b"Name:\tapp\nPid:\t4711\n"), "");
    assert_eq!(report.header.pid, 4711);
}

#[test]
fn a_stack_is_walked_by_the_call_frame_information_of_a_symbol_file() {
    let symbols = "MODULE Linux x86_64 131211101514171618191A1B1C1D1E1F0 app\n\
        INFO CODE_ID 101112131415161718191A1B1C1D1E1F20212223 app\n\
        FUNC 1000 100 0 inner\nFUNC 1100 100 0 outer\n\
        STACK CFI INIT 1000 100 .cfa: $rsp 32 + .ra: .cfa 8 - ^\n\
        STACK CFI INIT 1100 100 .cfa: $rsp 16 + .ra: .cfa 8 - ^\n";
    // A word of the inner frame looks like a return address.
    let stack = vec![BASE + 0x1150, 0, 0, BASE + 0x1120, 0, 0, 0, 0];
    let report = Dump { stack, ..Dump::default() }.read_with(|dump| dump, symbols);
    assert_eq!(addresses(&report), [(BASE + 0x1010, FoundBy::CONTEXT), (BASE + 0x1120, FoundBy::CFI)]);
    let names: Vec<_> = report.threads[0].frames.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names, ["inner", "outer"]);
    assert_eq!(report.threads[0].frames[1].address_kind, AddressKind::RETURN);
    assert!(report.complete, "{:?}", report.problems);
}

#[test]
fn a_scanned_frame_is_a_guess() {
    let stack = vec![7, BASE + 0x1120, 0, 0, 0, 0, 0, 0];
    let report = Dump { stack: stack.clone(), ..Dump::default() }.read();
    assert_eq!(addresses(&report), [(BASE + 0x1010, FoundBy::CONTEXT), (BASE + 0x1120, FoundBy::SCAN)]);
    assert!(report.problems[0].what.contains("walked without unwind data"), "{:?}", report.problems);
    // After a call to nowhere, the return address is at the stack pointer.
    let report = Dump { pc: 0, stack: stack[1..].to_vec(), ..Dump::default() }.read();
    assert_eq!(addresses(&report), [(0, FoundBy::CONTEXT), (BASE + 0x1120, FoundBy::STACK_TOP)]);
}

#[test]
fn a_32_bit_windows_process_is_walked_by_stack_win_records() {
    let symbols = "MODULE windows x86 131211101514171618191A1B1C1D1E1F1 app.pdb\n\
        FUNC 1000 100 0 inner\nFUNC 1100 100 0 outer\n\
        STACK WIN 4 1000 100 0 0 0 0 8 0 1 $T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =\n";
    let stack = vec![7, 7, 0x40_1120, 0, 0, 0, 0, 0];
    let dump = Dump {
        arch: X86,
        platform: PlatformId::VER_PLATFORM_WIN32_NT,
        pc: 0x40_1010,
        stack,
        code_view: rsds(1),
        exception: Some((0xc000_0005, 0, 0x40_1010, vec![1, 0xffff_ffff_9000_0000])),
    };
    let report = dump.read_with(|dump| dump, symbols);
    assert_eq!(addresses(&report)[..2], [(0x40_1010, FoundBy::CONTEXT), (0x40_1120, FoundBy::CFI)]);
    let names: Vec<_> = report.threads[0].frames.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names[..2], ["inner", "outer"]);
    // The system sign-extends addresses.
    assert_eq!(report.crash.as_ref().unwrap().address.map(|address| address.0), Some(0x9000_0000));
    assert_eq!(report.header.os, Os::WINDOWS);
    let json = report.to_json();
    assert!(json.contains(r#""eip": "0x401010""#) || json.contains(r#""eip":"0x401010""#), "{json}");
    assert_eq!(report.run.unwrap().device.arch.as_deref(), Some("x86"));
}

#[test]
fn a_damaged_minidump_is_refused_by_the_part_that_is_damaged() {
    let mut symbolizer = Symbolizer::new(Options::default());
    let mut error = |bytes: &[u8]| match read(bytes, None, &mut symbolizer) {
        Err(error @ (DumpError::Damaged { .. } | DumpError::System(_))) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(error(b"MDMP").starts_with("invalid minidump header at byte 0: "));
    let empty = SynthMinidump::with_endian(LITTLE).finish().unwrap();
    assert_eq!(error(&empty), "the minidump has no system information");
    let system =
        || SystemInfo::new(LITTLE).set_processor_architecture(AMD64 as u16).set_platform_id(PlatformId::Linux as u32);
    let without_threads = SynthMinidump::with_endian(LITTLE).add_system_info(system()).finish().unwrap();
    assert_eq!(error(&without_threads), "the minidump has no thread list");
    let other = SynthMinidump::with_endian(LITTLE).add_system_info(system().set_platform_id(PlatformId::Ps3 as u32));
    let whole = Dump::default().build(|dump| dump);
    let context = amd64_context(LITTLE, 0, 0);
    let stack = Memory::with_section(Section::with_endian(LITTLE).append_repeated(0, 8), STACK);
    let other = other.add_thread(Thread::new(LITTLE, TID, &stack, &context)).add(context).add_memory(stack);
    assert!(error(&other.finish().unwrap()).starts_with("a minidump of a PS3 process: only "));
    // No cut or changed file ends the process.
    for length in (0..whole.len()).step_by(7) {
        let _ = read(&whole[..length], None, &mut symbolizer);
    }
    for at in (0..whole.len()).step_by(3) {
        for value in [0, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let _ = read(&bytes, None, &mut symbolizer);
        }
    }
}
