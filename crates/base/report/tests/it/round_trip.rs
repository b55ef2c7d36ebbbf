//! The next launch reads what the crash path writes.

use crate::common::*;
use coroner_report::model::{Address, Bytes, CpuTime, CrashFlag, Id, RelativeAddress, Skipped, Timestamp, Value};
use coroner_report::wire::{
    Access, AddressKind, CaptureMethod, Encoder, ExtraRegister, FoundBy, Frame, ImageKind, Language, Monitor,
    NotCaptured, Os, Phase, Registers, SectionKind, Thread, ThreadEncoder, ThreadState, WalkEnd,
};
use coroner_report::{ReadError, Report};

#[test]
fn every_field_is_read_back() {
    let report = Report::read(&full_report().bytes).expect("whole");
    assert_eq!(report.problems, []);
    assert!(report.complete);
    assert_eq!(report.unknown_sections, []);

    let header = &report.header;
    assert_eq!(header.format_version, 1);
    assert_eq!((header.run_id, header.event_id), (Id(RUN_ID), Id(EVENT_ID)));
    assert_eq!((header.pid, header.ppid, header.page_size), (4321, 1, 4096));
    assert_eq!(header.arch.map(coroner_process::registers::Arch::name), Some("x86_64"));
    assert_eq!((header.os, header.pointer_auth_mask), (Os::LINUX, Address(0)));
    assert_eq!((header.sdk_version.as_str(), header.process_name.as_str()), ("0.1.0", "victim"));
    assert_eq!(header.process_start, Timestamp(1_790_000_000_000_000_000));

    let crash = report.crash.as_ref().expect("there");
    assert_eq!(crash.time, Timestamp(1_790_000_012_345_678_901));
    assert_eq!((crash.since_install_ns, crash.monitor, crash.tid), (12_000_000_000, Monitor::SIGNAL, 4322));
    assert_eq!(crash.flags, [CrashFlag::StackOverflow, CrashFlag::Recrash]);
    assert_eq!((crash.access, crash.address), (Some(Access::WRITE), Some(Address(0x18))));
    assert_eq!(crash.message.as_deref(), Some("assertion failed: \u{FFFD}not UTF-8\nsecond line"));
    assert_eq!(crash.exception_type.as_deref(), Some("std::runtime_error"));
    assert_eq!(crash.location.as_deref(), Some("src/main.rs:12:5"));
    let signal = crash.signal.as_ref().expect("there");
    assert_eq!((signal.number, signal.code, signal.errno), (11, 1, 0));
    assert_eq!((signal.name, signal.code_name), (Some("SIGSEGV"), Some("SEGV_MAPERR")));
    assert_eq!((signal.sender_pid, signal.sender_uid, signal.address), (Some(77), Some(1000), Some(Address(0x18))));
    assert_eq!((signal.trap_number, signal.error_code, signal.syscall), (Some(14), Some(6), Some(59)));
    let mach = crash.mach.as_ref().expect("there");
    assert_eq!((mach.exception, mach.code, mach.subcode), (1, 1, -24));
    assert_eq!((mach.name, mach.code_name), (Some("EXC_BAD_ACCESS"), Some("KERN_INVALID_ADDRESS")));
    let [concurrent] = crash.concurrent_crashes.as_slice() else { panic!("one") };
    assert_eq!((concurrent.tid, concurrent.signal, concurrent.name, concurrent.code), (4323, 7, Some("SIGBUS"), 2));
    assert_eq!((concurrent.address, concurrent.after_ns), (Some(Address(0x7F00_0000_1000)), Some(1500)));

    let [exception] = report.exceptions.as_slice() else { panic!("one") };
    assert_eq!((exception.language, exception.tid, exception.frames.len()), (Language::CPP, 4322, 4));
    assert_eq!(exception.type_name.as_deref(), Some("std::runtime_error"));
    assert_eq!(exception.message.as_deref(), Some("out of cheese"));
    assert_eq!(exception.location.as_deref(), Some("cheese.cc:3:1"));
    assert_eq!(exception.user_info.as_deref(), Some("{}"));

    let [first, second, third] = report.threads.as_slice() else { panic!("three") };
    assert_eq!(report.crashed_thread().map(|thread| thread.tid), Some(4322));
    assert_eq!(
        (first.tid, first.name.as_deref(), first.queue.as_deref()),
        (4322, Some("worker"), Some("com.example.work"))
    );
    assert_eq!(first.cpu_time, Some(CpuTime { user_ns: 1_500_000_000, system_ns: 20_000_000 }));
    assert_eq!((first.crashed, first.current, first.main), (true, true, false));
    assert_eq!((first.state, first.syscall), (Some(ThreadState::RUNNING), Some(-1)));
    let profile = report.profile.as_ref().expect("a profile");
    assert_eq!((profile.tid, profile.samples, profile.sampled_ns, profile.failed), (4322, 6, 300_000_000, 1));
    assert_eq!(profile.nodes.iter().map(|node| node.parent).collect::<Vec<_>>(), [None, Some(0), Some(0)]);
    assert_eq!(profile.weights(), [300_000_000, 150_000_000, 150_000_000]);
    assert_eq!(profile.nodes[1].frame.raw_function.as_deref(), Some("read"), "named as all frames are");
    assert_eq!((profile.ends[0].syscall_name, profile.ends[1].syscall), (Some("read"), None));
    let futex = first.futex.as_ref().expect("a wait");
    assert_eq!((futex.address.0, futex.operation, futex.expected, futex.timed), (0x7F00_0000_2010, 128, 2, true));
    assert_eq!((futex.start.0, futex.bytes.0.len(), futex.word()), (0x7F00_0000_2000, 48, Some(0x1312_1110)));
    assert_eq!((futex.at(-16), futex.at(28), futex.at(29)), (Some(0x0302_0100), Some(0x2f2e_2d2c), None));
    assert_eq!(first.captured_by, Some(CaptureMethod::CRASH_CONTEXT));
    assert_eq!(first.stack, Some((Address(0x7FFF_0000_0000), Address(0x7FFF_0080_0000))));
    assert_eq!((first.walk_end, first.not_captured), (Some(WalkEnd::ROOT), None));
    assert_eq!(first.skipped, [Skipped { after: 2, count: 99_000 }]);
    for (read, written) in first.frames.iter().zip(frames()) {
        assert_eq!(read.address, Address(written.pc));
        assert_eq!((read.found_by, read.address_kind), (written.found_by, written.address_kind));
        assert_eq!((read.sp, read.cfa), (written.sp.map(Address), written.cfa.map(Address)));
    }
    assert_eq!(first.frames.len(), 4);
    let registers = first.registers.as_ref().expect("there");
    assert_eq!(registers.x86_64(), Some(x86_64_registers()));
    assert_eq!(registers.aarch64(), None);
    assert_eq!(registers.extra, [EXTRA_REGISTERS, &[(ExtraRegister::SHADOW_STACK, SHADOW_STACK)]].concat());
    assert_eq!((registers.pc(), registers.sp()), (Some(Address(0x5555_0000_1234)), Some(Address(0x1111 * 7))));

    assert!(second.main && !second.crashed);
    assert_eq!(
        second.registers.as_ref().and_then(coroner_report::model::Registers::aarch64),
        Some(aarch64_registers())
    );
    assert_eq!((third.tid, third.not_captured), (4323, Some(NotCaptured::NO_ANSWER)));
    assert_eq!((third.frames.len(), third.registers.clone()), (0, None));

    let [image] = report.images.as_slice() else { panic!("one") };
    assert_eq!((image.kind, image.path.as_str(), image.is_main), (ImageKind::ELF, "/opt/app/victim", true));
    assert_eq!(
        (image.load_address, image.slide, image.size),
        (Address(0x5555_0000_0000), Address(0x5555_0000_0000), 0x9000)
    );
    assert_eq!((image.text.address, image.text.size), (Address(0x5555_0000_1000), 0x4000));
    assert_eq!(image.build_id, Bytes(vec![0xAB; 20]));
    assert_eq!((image.segments.len(), image.segments[1].protection, image.segments[1].file_offset), (2, 5, 0x1000));
    assert_eq!((image.unwind.len(), image.unwind[0].size), (1, 0x200));
    assert_eq!((image.version.as_deref(), image.cpu), (Some("1.2.3"), Some((0x0100_0007, -3))));

    assert_eq!(report.stack_memory[0].bytes.0, [0, 1, 2, 3]);
    assert_eq!((report.stack_memory[0].tid, report.stack_memory[0].address), (4322, Address(0x7FFF_0000_1000)));
    assert_eq!(
        (report.code[0].address, &report.code[0].bytes.0[..]),
        (Address(0x5555_0000_1234), &[0x8b, 0x40, 0x10, 0xc3][..])
    );
    let mapping = &report.mappings[0];
    assert_eq!((mapping.start, mapping.size, mapping.protection), (Address(0x1_0000), 0x4000, 5));
    assert_eq!((mapping.name.as_deref(), mapping.file_offset), (Some("/opt/data"), Some(0x1000)));
    assert_eq!(report.symbol_names[1].name, "read");
    assert_eq!(report.annotations[0].text, "abort() called");
    assert_eq!(report.annotations[0].source, "libsystem_c.dylib");
    let fault = &report.faults[0];
    assert_eq!(
        (fault.section, fault.signal, fault.name, fault.code),
        (SectionKind::STACK_MEMORY, 7, Some("SIGBUS"), 2)
    );
    assert_eq!(
        (fault.address, fault.pc, fault.tid),
        (Some(Address(0x6000)), Some(Address(0x5555_0000_3000)), Some(4323))
    );
    let end = report.end.as_ref().expect("there");
    assert_eq!((end.total_ns, end.threads, end.threads_captured, end.deadline), (345_678, 3, 2, false));
    assert_eq!(
        end.phases.iter().map(|phase| (phase.phase, phase.ns)).collect::<Vec<_>>(),
        [(Phase::ENTRY, 1000), (Phase::OTHER_THREADS, 200_000)]
    );
    assert_eq!((end.dropped[0].section, end.dropped[0].count), (SectionKind::STACK_MEMORY, 2));
}

#[test]
fn frames_are_attributed_and_return_addresses_looked_up_before_the_return() {
    let report = Report::read(&full_report().bytes).expect("whole");
    let frame = &report.threads[0].frames[0];
    assert_eq!(frame.lookup_address(), frame.address);
    assert_eq!(frame.module.as_deref(), Some("/opt/app/victim"));
    assert_eq!(frame.module_offset, Some(RelativeAddress(0x1234)));
    assert_eq!(frame.raw_function.as_deref(), Some("_ZN6victim4mainE"));
    assert_eq!(frame.symbol_address, Some(Address(0x5555_0000_1220)));
    let caller = &report.threads[0].frames[1];
    assert_eq!(caller.lookup_address(), Address(caller.address.0 - 1));
    let outside = &report.threads[0].frames[2];
    assert_eq!((outside.module.as_deref(), outside.raw_function.as_deref()), (None, Some("read")));
}

#[test]
fn a_call_at_the_end_of_an_image_belongs_to_it() {
    // The return address is the first byte after the image: the call before it is the image's last
    // instruction.
    let mut file = full_report();
    file.list(SectionKind::THREADS, |encoder| {
        let frame = Frame {
            pc: 0x5555_0000_5000,
            found_by: FoundBy::CFI,
            address_kind: AddressKind::RETURN,
            ..Frame::default()
        };
        assert!(Thread { tid: 9, ..Thread::default() }.encode(encoder, &[frame], WalkEnd::ROOT));
    });
    let report = Report::read(&file.bytes).expect("whole");
    assert_eq!(report.threads[3].frames[0].module.as_deref(), Some("/opt/app/victim"));
}

#[test]
fn additions_of_later_versions_are_kept() {
    let mut file = File::new();
    file.section(SectionKind::HEADER, |encoder| header().encode(encoder))
        .section(SectionKind::CRASH, |encoder| {
            encoder.map(3);
            encoder.uint(5);
            encoder.uint(77);
            encoder.uint(2);
            encoder.uint(200); // A monitor that this version has no name for.
            encoder.uint(999);
            encoder.map(1);
            encoder.text(b"deep");
            encoder.bool(true);
        })
        .section(SectionKind(500), |encoder| encoder.text(b"from the future"));
    let report = Report::read(&file.bytes).expect("readable");
    let crash = report.crash.expect("there");
    assert_eq!((crash.tid, crash.monitor), (77, Monitor(200)));
    assert_eq!(crash.extra[&999], Value::Map(vec![(Value::from("deep"), Value::Bool(true))]));
    let [unknown] = report.unknown_sections.as_slice() else { panic!("one") };
    assert_eq!((unknown.kind, &unknown.value), (SectionKind(500), &Value::from("from the future")));
    let json = serde_json::to_string(&unknown).expect("JSON");
    assert_eq!(json, r#"{"kind":500,"version":0,"value":"from the future"}"#);
}

#[test]
fn a_later_format_version_is_rejected() {
    let mut file = File::new();
    let mut later = header();
    later.format_version = 2;
    file.section(SectionKind::HEADER, |encoder| later.encode(encoder));
    assert!(matches!(Report::read(&file.bytes), Err(ReadError::Newer { version: 2, offset: 3 })));
}

#[test]
fn a_thousand_threads_of_sixteen_frames_take_less_than_a_kibibyte_each() {
    let registers = x86_64_registers();
    let mut buffer = vec![0; 2 << 20];
    let mut encoder = Encoder::new(&mut buffer);
    encoder.begin_array();
    for tid in 0..1000 {
        let thread = Thread {
            tid: 70_000 + tid,
            name: Some(b"worker-thread-1"),
            state: Some(ThreadState::BLOCKED),
            syscall: Some(202),
            captured_by: Some(CaptureMethod::SIGNAL),
            registers: Some(Registers::from(&registers).with_extra(EXTRA_REGISTERS)),
            stack: Some((0x7F00_0000_0000, 0x7F00_0080_0000)),
            ..Thread::default()
        };
        let mut thread = ThreadEncoder::begin(&mut encoder, &thread).expect("fits");
        for frame in 0..16 {
            let sp = 0x7F00_0010_0000 + frame * 96;
            thread.frame(&Frame {
                pc: 0x7F12_3456_7890 + frame,
                found_by: FoundBy::CFI,
                address_kind: AddressKind::RETURN,
                sp: Some(sp),
                cfa: Some(sp + 96),
            });
        }
        thread.finish(WalkEnd::ROOT);
    }
    encoder.end();
    let each = encoder.position() / 1000;
    println!("{each} bytes a thread");
    assert!(each <= 512, "{each} bytes a thread");
}

#[test]
fn frames_that_do_not_fit_are_counted() {
    let written = frames();
    let frames: Vec<Frame> = (0..100).map(|i| Frame { pc: 0x1000 + i, ..written[0] }).collect();
    let mut fitted = 0;
    for size in 0..2500 {
        let mut buffer = vec![0; size];
        let mut encoder = Encoder::new(&mut buffer);
        encoder.begin_array();
        if encoder.overflowed() {
            continue;
        }
        let thread = Thread { tid: 5, name: Some(b"narrow"), ..Thread::default() };
        let begun = thread.encode(&mut encoder, &frames, WalkEnd::ROOT);
        assert!(!encoder.overflowed());
        encoder.end();
        let payload = encoder.written().to_vec();
        let mut file = File::new();
        file.section(SectionKind::THREADS, |encoder| encoder.raw(&payload));
        let report = Report::read(&file.bytes).expect("readable");
        assert!(report.problems.iter().all(|problem| problem.what == "missing"), "{size}: {:?}", report.problems);
        assert_eq!(report.threads.len(), usize::from(begun));
        if let Some(thread) = report.threads.first() {
            let skipped: u64 = thread.skipped.iter().map(|skipped| skipped.count).sum();
            assert_eq!(thread.frames.len() as u64 + skipped, 100, "in {size} bytes");
            let limited = skipped > 0;
            assert_eq!(thread.walk_end, Some(if limited { WalkEnd::LIMIT } else { WalkEnd::ROOT }));
            assert!(thread.frames.len() >= fitted, "more room, fewer frames");
            fitted = thread.frames.len();
        }
    }
    assert_eq!(fitted, 100);
}
