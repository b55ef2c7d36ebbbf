//! Writes a crash's report section by section into the mapped file.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use coroner_process::registers::Arch;
use coroner_report::wire::{
    AddressKind, CaptureMethod, Code, Crash, CrashFlags, Encoder, End, FILE_PREFIX, FORMAT_VERSION, FRAME_HEADER_LEN,
    Fault, Header, Monitor, Os, Registers, SectionKind, Signal, StackMemory, Thread, ThreadEncoder, ThreadFlags, seal,
};
use memmap2::MmapMut;

use super::stack::{self, AlignedContext, Frames};
use super::{
    Armed, NUMBER, OWNER, POINTERS, SOFTWARE_ORIGINATE, STATUS_STACK_OVERFLOW, STEP, TIME, dump, fault, locks,
    mappings, memory, modules,
};

/// Maximum bytes of stack memory that are kept.
const MAX_STACK: usize = 16 << 10;
/// Bytes of code that are kept before and after the program counter.
const CODE: usize = 64;

/// The file that a report is written to, and the working memory for it.
pub(super) struct Target {
    file: UnsafeCell<&'static mut MmapMut>,
    room: UnsafeCell<Box<Room>>,
}

struct Room {
    context: AlignedContext,
    frames: Frames,
    modules: modules::Room,
    stack: [u8; MAX_STACK],
    code: [u8; 2 * CODE],
}

/// Number of bytes of the file that are written.
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// The fault of the first writing thread.
static FAULT_CODE: AtomicI32 = AtomicI32::new(0);
static FAULT_ADDRESS: AtomicU64 = AtomicU64::new(NOWHERE);
static FAULT_PC: AtomicU64 = AtomicU64::new(0);
const NOWHERE: u64 = u64::MAX;

pub(super) fn note_fault(code: i32, address: Option<u64>, pc: u64) {
    FAULT_CODE.store(code, Ordering::Release);
    FAULT_ADDRESS.store(address.unwrap_or(NOWHERE), Ordering::Release);
    FAULT_PC.store(pc, Ordering::Release);
}

impl Target {
    pub(super) fn new(file: &'static mut MmapMut) -> Self {
        let room = Room {
            context: AlignedContext::default(),
            frames: Frames::new(),
            modules: modules::Room::new(),
            stack: [0; MAX_STACK],
            code: [0; 2 * CODE],
        };
        LENGTH.store(0, Ordering::Release);
        Self { file: UnsafeCell::new(file), room: UnsafeCell::new(Box::new(room)) }
    }

    /// Discards what was written.
    pub(super) fn wipe(&self) {
        // SAFETY: the crash's owner calls it when no thread writes.
        unsafe { &mut **self.file.get() }.fill(0);
        LENGTH.store(0, Ordering::Release);
        STEP.store(0, Ordering::Release);
        FAULT_CODE.store(0, Ordering::Release);
    }
}

/// A report that is being written.
struct Sections<'a> {
    file: &'a mut [u8],
    /// Whether a section contains less than it could.
    is_cut: bool,
}

impl Sections<'_> {
    fn add(&mut self, kind: SectionKind, write: impl FnOnce(&mut Encoder<'_>)) {
        let at = LENGTH.load(Ordering::Acquire);
        let length = self.file.get_mut(at..).and_then(|rest| {
            let mut encoder = Encoder::new(rest.get_mut(FRAME_HEADER_LEN..)?);
            write(&mut encoder);
            self.is_cut |= encoder.overflowed();
            let length = encoder.position();
            seal(rest, kind, length)
        });
        match length {
            Some(length) => LENGTH.store(at + length, Ordering::Release),
            None => self.is_cut = true,
        }
    }
}

const HEADER: u32 = 1;
const CRASH: u32 = 2;
const THREADS: u32 = 3;
const IMAGES: u32 = 4;
const STACK: u32 = 5;
const CODE_STEP: u32 = 6;
const MAPPINGS: u32 = 7;
const END: u32 = 8;
const DUMP: u32 = 9;

fn section_of(step: u32) -> SectionKind {
    match step {
        CRASH => SectionKind::CRASH,
        THREADS => SectionKind::THREADS,
        IMAGES => SectionKind::IMAGES,
        STACK => SectionKind::STACK_MEMORY,
        CODE_STEP => SectionKind::CODE,
        MAPPINGS => SectionKind::MAPPINGS,
        END => SectionKind::END,
        _ => SectionKind::HEADER,
    }
}

/// Writes the report and then the minidump. The second writing thread continues where the first one
/// stopped.
pub(super) fn write(armed: &Armed, writer: usize) {
    let began = Instant::now();
    let pointers = POINTERS.load(Ordering::Acquire);
    // SAFETY: one thread writes at a time: the first until it is done or faults, after which it
    // stops for good.
    let (file, room) = unsafe { (&mut *armed.target.file.get(), &mut *armed.target.room.get()) };
    let mut sections = Sections { file: &mut file[..], is_cut: false };
    let failed = STEP.load(Ordering::Acquire);
    if writer == 0 {
        if let Some(prefix) = sections.file.first_chunk_mut::<3>() {
            *prefix = FILE_PREFIX;
            LENGTH.store(prefix.len(), Ordering::Release);
        }
        // SAFETY: the crashed thread waits, and the target is in its stack.
        room.context.0 = unsafe { *(*pointers).ContextRecord };
    } else {
        if let Some(rest) = sections.file.get_mut(LENGTH.load(Ordering::Acquire)..) {
            // The section that the first thread did not finish.
            rest.fill(0);
        }
        sections.is_cut = true;
        if failed < DUMP {
            note(&mut sections, failed);
        }
        if failed == THREADS {
            thread(&mut sections, room);
        }
    }
    let first = if writer == 0 { HEADER } else { failed + 1 };
    for step in first..=END {
        STEP.store(step, Ordering::Release);
        // SAFETY: as above.
        let exception = unsafe { &*(*pointers).ExceptionRecord };
        match step {
            HEADER => header(&mut sections, armed),
            CRASH => crash(&mut sections, armed, exception),
            THREADS => {
                let Room { context, frames, .. } = room.as_mut();
                let is_call = exception.ExceptionFlags & SOFTWARE_ORIGINATE != 0;
                frames.walk(&mut { *context }, if is_call { AddressKind::RETURN } else { AddressKind::INSTRUCTION });
                thread(&mut sections, room);
            }
            IMAGES => {
                let mut is_whole = true;
                sections.add(SectionKind::IMAGES, |encoder| {
                    encoder.begin_array();
                    is_whole = modules::encode(encoder, &mut room.modules);
                    encoder.end();
                });
                sections.is_cut |= !is_whole;
            }
            STACK => stack_memory(&mut sections, room, armed.stack_memory),
            CODE_STEP => {
                let is_jump = fault(exception).1 == Some(room.context.0.Rip);
                code(&mut sections, room, is_jump);
            }
            MAPPINGS => {
                let address = fault(exception).1.unwrap_or(room.context.0.Rip);
                sections.add(SectionKind::MAPPINGS, |encoder| {
                    encoder.begin_array();
                    mappings::encode_around(encoder, address);
                    encoder.end();
                });
            }
            _ => {
                let total_ns = began.elapsed().as_nanos() as u64;
                let complete = !sections.is_cut;
                let end = End { complete, total_ns, threads: 1, threads_captured: 1, ..End::default() };
                sections.add(SectionKind::END, |encoder| end.encode(encoder));
            }
        }
    }
    // SAFETY: mapped forever.
    let _ = unsafe { &*armed.target.file.get() }.flush_async();
    if writer == 0
        && let Some(file) = armed.dump
        && locks::are_free()
    {
        STEP.store(DUMP, Ordering::Release);
        dump::write(file, OWNER.load(Ordering::Acquire), pointers);
    }
}

fn header(sections: &mut Sections<'_>, armed: &Armed) {
    let run = armed.run;
    let header = Header {
        format_version: FORMAT_VERSION,
        run_id: run.id,
        event_id: armed.event_id,
        pid: run.pid as u32,
        ppid: 0,
        arch: Arch::OF_THIS_PROCESS,
        os: Os::NATIVE,
        page_size: 4096,
        pointer_auth_mask: 0,
        sdk_version: env!("CARGO_PKG_VERSION").as_bytes(),
        process_start_ns: run.process_start,
        process_name: run.process_name.as_bytes(),
    };
    sections.add(SectionKind::HEADER, |encoder| header.encode(encoder));
}

fn crash(
    sections: &mut Sections<'_>,
    armed: &Armed,
    exception: &windows_sys::Win32::System::Diagnostics::Debug::EXCEPTION_RECORD,
) {
    let number = NUMBER.load(Ordering::Acquire);
    let (access, address) = fault(exception);
    let is_overflow = number == STATUS_STACK_OVERFLOW;
    let crash = Crash {
        time_ns: TIME.load(Ordering::Acquire),
        since_install_ns: armed.run.age().as_nanos() as u64,
        monitor: Monitor::SEH,
        signal: Some(Signal { number, ..Signal::default() }),
        tid: OWNER.load(Ordering::Acquire),
        flags: if is_overflow { CrashFlags::STACK_OVERFLOW } else { CrashFlags::default() },
        access,
        address,
        ..Crash::default()
    };
    sections.add(SectionKind::CRASH, |encoder| crash.encode(encoder));
}

/// Writes the crashed thread, with the part of its stack that is known.
fn thread(sections: &mut Sections<'_>, room: &Room) {
    let registers = stack::registers(&room.context.0);
    let thread = Thread {
        tid: OWNER.load(Ordering::Acquire),
        flags: ThreadFlags::CRASHED,
        captured_by: Some(CaptureMethod::CRASH_CONTEXT),
        registers: Some(Registers::from(&registers)),
        ..Thread::default()
    };
    sections.add(SectionKind::THREADS, |encoder| {
        encoder.begin_array();
        if let Some(mut thread) = ThreadEncoder::begin(encoder, &thread) {
            room.frames.each(|left_out, frame| {
                thread.skip(left_out);
                thread.frame(frame);
            });
            thread.finish(room.frames.end);
        }
        encoder.end();
    });
}

fn stack_memory(sections: &mut Sections<'_>, room: &mut Room, wanted: u32) {
    let size = room.stack.len().min(wanted as usize);
    let sp = room.context.0.Rsp;
    // Near the start of a stack there is less.
    let sizes = [size, 2048, 512, 128];
    let size = sizes.into_iter().find(|part| {
        *part <= size && *part > 0 && room.stack.get_mut(..*part).is_some_and(|bytes| memory::read(sp, bytes))
    });
    let Some(bytes) = size.and_then(|size| room.stack.get(..size)) else { return };
    sections.add(SectionKind::STACK_MEMORY, |encoder| {
        encoder.begin_array();
        StackMemory { tid: OWNER.load(Ordering::Acquire), address: sp, bytes }.encode(encoder);
        encoder.end();
    });
}

fn code(sections: &mut Sections<'_>, room: &mut Room, is_jump: bool) {
    let pc = room.context.0.Rip;
    // After a jump to an address without code (`is_jump`), the return address is on top of the
    // stack.
    let caller = memory::u64_at(room.context.0.Rsp).unwrap_or(pc);
    let around = |at: u64| [(at.wrapping_sub(CODE as u64), 2 * CODE), (at, CODE), (at, 16)];
    let found = if is_jump { [around(caller), around(pc)] } else { [around(pc), around(caller)] };
    let found = found
        .into_iter()
        .flatten()
        .find(|(start, size)| room.code.get_mut(..*size).is_some_and(|bytes| memory::read(*start, bytes)));
    let Some((address, bytes)) = found.and_then(|(start, size)| Some((start, room.code.get(..size)?))) else { return };
    sections.add(SectionKind::CODE, |encoder| {
        encoder.begin_array();
        Code { address, bytes }.encode(encoder);
        encoder.end();
    });
}

/// Records that a section ended with a fault.
fn note(sections: &mut Sections<'_>, step: u32) {
    let address = Some(FAULT_ADDRESS.load(Ordering::Acquire)).filter(|address| *address != NOWHERE);
    let fault = Fault {
        section: section_of(step),
        signal: FAULT_CODE.load(Ordering::Acquire),
        address,
        pc: Some(FAULT_PC.load(Ordering::Acquire)),
        tid: (step == THREADS).then(|| OWNER.load(Ordering::Acquire)),
        ..Fault::default()
    };
    sections.add(SectionKind::FAULT, |encoder| fault.encode(encoder));
}
