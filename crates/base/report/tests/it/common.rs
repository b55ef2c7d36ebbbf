//! Report files for tests, created with the crash path's own types.
#![allow(unreachable_pub)]

use coroner_process::futex_wait::FutexWait;
use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::{Aarch64Registers, Arch, X86_64Registers};
use coroner_report::wire::{
    self, Access, AddressKind, Annotation, AppMemory, CaptureMethod, Code, ConcurrentCrash, Crash, CrashFlags, Dropped,
    Encoder, End, Exception, ExtraRegister, FORMAT_VERSION, Fault, FoundBy, Frame, Hang, Header, Image, ImageKind,
    Language, Mach, Mapping, Monitor, NotCaptured, Os, Phase, PhaseDuration, Profile, ProfileEnd, ProfileNode,
    Registers, ReplacedImage, SectionKind, Segment, Signal, StackMemory, SymbolName, Thread, ThreadEncoder,
    ThreadFlags, ThreadState, UnwindKind, UnwindSection, WalkEnd, Zombie,
};

/// A report file under construction.
pub struct File {
    pub bytes: Vec<u8>,
    /// Offset of the end of each section, with its kind.
    pub ends: Vec<(usize, SectionKind)>,
}

impl File {
    pub fn new() -> Self {
        File { bytes: wire::FILE_PREFIX.to_vec(), ends: Vec::new() }
    }

    /// Adds a section whose payload `write` encodes.
    pub fn section(&mut self, kind: SectionKind, write: impl FnOnce(&mut Encoder<'_>)) -> &mut Self {
        let mut buffer = vec![0; 64 << 10];
        let mut encoder = Encoder::new(&mut buffer[wire::FRAME_HEADER_LEN..]);
        write(&mut encoder);
        assert!(!encoder.overflowed());
        let len = encoder.position();
        let total = wire::seal(&mut buffer, kind, len).expect("fits");
        self.bytes.extend_from_slice(&buffer[..total]);
        self.ends.push((self.bytes.len(), kind));
        self
    }

    /// Adds a section that is a list.
    pub fn list(&mut self, kind: SectionKind, write: impl FnOnce(&mut Encoder<'_>)) -> &mut Self {
        self.section(kind, |encoder| {
            encoder.begin_array();
            write(encoder);
            encoder.end();
        })
    }
}

pub const RUN_ID: [u8; 16] = [0x10; 16];
pub const EVENT_ID: [u8; 16] = [0xE1; 16];

pub fn header() -> Header<'static> {
    Header {
        format_version: FORMAT_VERSION,
        run_id: RUN_ID,
        event_id: EVENT_ID,
        pid: 4321,
        ppid: 1,
        arch: Some(Arch::X86_64),
        os: Os::LINUX,
        page_size: 4096,
        pointer_auth_mask: 0,
        sdk_version: b"0.1.0",
        process_start_ns: 1_790_000_000_000_000_000,
        process_name: b"victim",
    }
}

pub const CONCURRENT_CRASHES: &[ConcurrentCrash] =
    &[ConcurrentCrash { tid: 4323, signal: 7, code: 2, address: Some(0x7F00_0000_1000), after_ns: Some(1500) }];

pub fn crash() -> Crash<'static> {
    Crash {
        time_ns: 1_790_000_012_345_678_901,
        since_install_ns: 12_000_000_000,
        monitor: Monitor::SIGNAL,
        signal: Some(Signal {
            number: 11,
            code: 1,
            errno: 0,
            address: Some(0x18),
            sender_pid: Some(77),
            sender_uid: Some(1000),
            trap_number: Some(14),
            error_code: Some(6),
            syscall: Some(59),
            syscall_arch: None,
        }),
        mach: Some(Mach { exception: 1, code: 1, subcode: -24 }),
        tid: 4322,
        flags: CrashFlags::STACK_OVERFLOW.with(CrashFlags::RECRASH),
        access: Some(Access::WRITE),
        address: Some(0x18),
        concurrent_crashes: CONCURRENT_CRASHES,
        message: Some(b"assertion failed: \xFFnot UTF-8\nsecond line"),
        exception_type: Some(b"std::runtime_error"),
        location: Some(b"src/main.rs:12:5"),
        hang: Some(Hang { number: 2, lasted_ns: 2_125_000_000 }),
    }
}

pub fn frames() -> [Frame; 4] {
    [
        Frame {
            pc: 0x5555_0000_1234,
            found_by: FoundBy::CONTEXT,
            address_kind: AddressKind::INSTRUCTION,
            sp: Some(0x7FFF_0000_1000),
            cfa: Some(0x7FFF_0000_1040),
        },
        Frame {
            pc: 0x5555_0000_2345,
            found_by: FoundBy::CFI,
            address_kind: AddressKind::RETURN,
            sp: Some(0x7FFF_0000_1040),
            cfa: Some(0x7FFF_0000_1100),
        },
        // Another stack (a signal's), without a CFA.
        Frame {
            pc: 0x7F12_0000_0010,
            found_by: FoundBy::FRAME_POINTER,
            address_kind: AddressKind::RETURN,
            sp: Some(0x1000),
            cfa: None,
        },
        Frame {
            pc: 0x7F12_0000_0020,
            found_by: FoundBy::SCAN,
            address_kind: AddressKind::RETURN,
            sp: None,
            cfa: Some(0xFFFF_FFFF_FFFF_FFF0),
        },
    ]
}

pub fn x86_64_registers() -> X86_64Registers {
    X86_64Registers { gpr: std::array::from_fn(|i| 0x1111 * i as u64), pc: 0x5555_0000_1234, flags: 0x10246 }
}

pub fn aarch64_registers() -> Aarch64Registers {
    Aarch64Registers {
        x: std::array::from_fn(|i| u64::MAX - i as u64),
        sp: 0x1_6FDF_0000,
        pc: 0x1_0000_4000,
        pstate: 0x6000_1000,
    }
}

pub const EXTRA_REGISTERS: &[(ExtraRegister, u64)] =
    &[(ExtraRegister::FS_BASE, 0x7F00_1234_5000), (ExtraRegister::CR2, 0x18)];

pub const SHADOW_STACK: u64 = 0x7F80_0000_1FE8;

pub fn image() -> Image<'static> {
    Image {
        kind: ImageKind::ELF,
        path: b"/opt/app/victim",
        load_address: 0x5555_0000_0000,
        slide: 0x5555_0000_0000,
        size: 0x9000,
        text: (0x5555_0000_1000, 0x4000),
        build_id: &[0xAB; 20],
        segments: &[
            Segment { address: 0x5555_0000_0000, size: 0x1000, file_offset: 0, protection: 4 },
            Segment { address: 0x5555_0000_1000, size: 0x4000, file_offset: 0x1000, protection: 5 },
        ],
        unwind: &[UnwindSection { kind: UnwindKind::EH_FRAME_HDR, address: 0x5555_0000_6000, size: 0x200 }],
        is_main: true,
        version: Some(b"1.2.3"),
        cpu: Some((0x0100_0007, -3)),
    }
}

/// A wait for a mutex at 0x7F00_0000_2010, and memory whose bytes count from 0.
pub fn futex() -> FutexWait {
    struct Counting;
    impl Memory for Counting {
        fn read(&mut self, _: u64, into: &mut [u8]) -> Result<(), Unreadable> {
            (0..).zip(into).for_each(|(value, byte)| *byte = value);
            Ok(())
        }
    }
    let mut registers = X86_64Registers { gpr: [0; 16], pc: 0, flags: 0 };
    // rdi, rsi (FUTEX_WAIT | FUTEX_PRIVATE_FLAG), rdx, r10.
    for (register, value) in [(5, 0x7F00_0000_2010), (4, 128), (1, 2), (10, 1)] {
        registers.gpr[register] = value;
    }
    FutexWait::of(&registers, 202, &mut Counting).expect("a wait")
}

/// A report with a section of every kind and every field set.
pub fn full_report() -> File {
    let mut file = File::new();
    file.section(SectionKind::HEADER, |encoder| header().encode(encoder))
        .section(SectionKind::CRASH, |encoder| crash().encode(encoder))
        .list(SectionKind::EXCEPTIONS, |encoder| {
            let exception = Exception {
                language: Language::CPP,
                type_name: Some(b"std::runtime_error"),
                message: Some(b"out of cheese"),
                tid: 4322,
                location: Some(b"cheese.cc:3:1"),
                frames: &frames(),
                user_info: Some(b"{}"),
            };
            exception.encode(encoder);
        })
        .list(SectionKind::THREADS, |encoder| {
            let registers = x86_64_registers();
            let thread = Thread {
                tid: 4322,
                name: Some(b"worker"),
                flags: ThreadFlags::CRASHED.with(ThreadFlags::CURRENT),
                state: Some(ThreadState::RUNNING),
                syscall: Some(-1),
                futex: Some(&futex()),
                captured_by: Some(CaptureMethod::CRASH_CONTEXT),
                not_captured: None,
                registers: Some(
                    Registers::from(&registers).with_extra(EXTRA_REGISTERS).with_shadow_stack(Some(SHADOW_STACK)),
                ),
                stack: Some((0x7FFF_0000_0000, 0x7FFF_0080_0000)),
                queue: Some(b"com.example.work"),
                cpu_time: Some((1_500_000_000, 20_000_000)),
                port: Some(0x1203),
            };
            let mut thread = ThreadEncoder::begin(encoder, &thread).expect("fits");
            for frame in &frames()[..2] {
                assert!(thread.frame(frame));
            }
            thread.skip(99_000);
            for frame in &frames()[2..] {
                assert!(thread.frame(frame));
            }
            thread.finish(WalkEnd::ROOT);
        })
        .list(SectionKind::IMAGES, |encoder| assert!(image().encode(encoder)))
        .list(SectionKind::THREADS, |encoder| {
            let registers = aarch64_registers();
            let second = Thread {
                tid: 4321,
                flags: ThreadFlags::MAIN,
                state: Some(ThreadState::BLOCKED),
                captured_by: Some(CaptureMethod::SIGNAL),
                registers: Some(Registers::from(&registers)),
                ..Thread::default()
            };
            assert!(second.encode(encoder, &frames()[..1], WalkEnd::NO_RULE));
            let third = Thread { tid: 4323, not_captured: Some(NotCaptured::NO_ANSWER), ..Thread::default() };
            assert!(third.encode(encoder, &[], WalkEnd(0)));
        })
        .list(SectionKind::STACK_MEMORY, |encoder| {
            let memory = StackMemory { tid: 4322, address: 0x7FFF_0000_1000, bytes: &[0, 1, 2, 3] };
            assert!(memory.encode(encoder));
        })
        .list(SectionKind::SYMBOL_NAMES, |encoder| {
            for (address, name) in [(0x5555_0000_1234, &b"_ZN6victim4mainE"[..]), (0x7F12_0000_0010, b"read")] {
                assert!(SymbolName { address, name, symbol_address: Some(address - 0x14) }.encode(encoder));
            }
        })
        .section(SectionKind::PROFILE, |encoder| {
            let node = |parent, address| ProfileNode { parent, address, kind: AddressKind::RETURN };
            let end = |node, state, syscall| ProfileEnd { node, state, syscall, samples: 3, weight_ns: 150_000_000 };
            let profile = Profile {
                tid: 4322,
                samples: 6,
                sampled_ns: 300_000_000,
                nodes: &[node(0, 0x5555_0000_2345), node(1, 0x7F12_0000_0010), node(1, 0x5555_0000_1234)],
                ends: &[end(2, ThreadState::BLOCKED, Some(0)), end(3, ThreadState::RUNNING, None)],
                failed: 1,
            };
            profile.encode(encoder);
        })
        .list(SectionKind::CODE, |encoder| {
            assert!(Code { address: 0x5555_0000_1234, bytes: &[0x8b, 0x40, 0x10, 0xc3] }.encode(encoder));
        })
        .list(SectionKind::MAPPINGS, |encoder| {
            let mapping =
                Mapping { start: 0x1_0000, size: 0x4000, protection: 5, name: b"/opt/data", file_offset: 0x1000 };
            assert!(mapping.encode(encoder));
        })
        .list(SectionKind::REPLACED_IMAGES, |encoder| {
            assert!(ReplacedImage { load_address: 0x5555_0000_0000 }.encode(encoder));
        })
        .list(SectionKind::APP_MEMORY, |encoder| {
            let log = AppMemory { name: b"log", bytes: b"one\ntwo\n", address: Some(0x5555_0000), size: Some(4096) };
            assert!(log.encode(encoder));
        })
        .list(SectionKind::ZOMBIES, |encoder| {
            let sent = Zombie {
                address: 0x6000_0123_4560,
                class: b"ShopOrder",
                register: Some(b"rdi"),
                selector: Some(b"total"),
                ..Zombie::default()
            };
            assert!(sent.encode(encoder));
        })
        .list(SectionKind::ANNOTATIONS, |encoder| {
            assert!(Annotation { source: b"libsystem_c.dylib", text: b"abort() called" }.encode(encoder));
        })
        .section(SectionKind::FAULT, |encoder| {
            let fault = Fault {
                section: SectionKind::STACK_MEMORY,
                signal: 7,
                code: 2,
                address: Some(0x6000),
                pc: Some(0x5555_0000_3000),
                tid: Some(4323),
            };
            fault.encode(encoder);
        })
        .section(SectionKind::END, |encoder| {
            let end = End {
                complete: true,
                total_ns: 345_678,
                phases: &[
                    PhaseDuration { phase: Phase::ENTRY, ns: 1000 },
                    PhaseDuration { phase: Phase::OTHER_THREADS, ns: 200_000 },
                ],
                dropped: &[Dropped { section: SectionKind::STACK_MEMORY, count: 2 }],
                threads: 3,
                threads_captured: 2,
                deadline: false,
            };
            end.encode(encoder);
        });
    file
}

/// Numbers that look random, the same on every run (xorshift64*, Vigna 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }
}

/// Number of cases (offsets, rounds) per tested one.
///
/// The test command runs arm64 in an emulator, where the reader's own code, the same as elsewhere,
/// would take minutes for all cases.
pub const ONE_OF: usize = if cfg!(target_arch = "aarch64") { 17 } else { 1 };
