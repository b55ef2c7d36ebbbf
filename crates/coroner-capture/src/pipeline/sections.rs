//! The sections of a report, in the order of worth and risk.

use coroner_machine::memory::{LoadGuarded, Memory};
use coroner_machine::registers::Registers;
use coroner_machine::threads::monotonic_now;
use coroner_report::wire::{
    CaptureMethod, Crash, CrashFlags, Dropped, End, FORMAT_VERSION, Header, NotCaptured, Os, Phase, SectionKind,
    StackMemory, Thread, ThreadEncoder, ThreadFlags, ThreadState, WalkEnd,
};
use coroner_unwind::SwiftAsync;

use super::frames::{self, CRASHED, Depth, OTHER};
use super::names::{self, Addresses};
use super::scratch::Scratch;
use super::writer::{ROOM, Writer};
use super::{Task, guarded, scratch, seconds, stack_overflow};
use crate::monitor::exception::Ending;
use crate::os::images::Loaded;
use crate::os::others::{self, Description, Others};
use crate::os::{clock, process};

/// Writes the whole report.
pub(crate) fn write_all(task: &mut Task<'_>) {
    let global = task.global;
    {
        // SAFETY: this thread owns the latch.
        let scratch = unsafe { scratch(global) };
        scratch.expired = false;
        scratch.fault = None;
        scratch.point = coroner_machine::recovery::Point::new();
        scratch.names.addresses.clear();
    }
    let hangs = task.incident.hung.is_some();
    let mut others = if global.setup.all_threads || hangs { Others::begin(global, task.incident) } else { None };
    task.phases.end(Phase::ENTRY);
    guarded(task, SectionKind::CRASH, None, classify);
    guarded(task, SectionKind::HEADER, None, header);
    guarded(task, SectionKind::CRASH, None, crash);
    tell_fault(task);
    guarded(task, SectionKind::EXCEPTIONS, None, exceptions);
    tell_fault(task);
    guarded(task, SectionKind::IMAGES, None, list_images);
    match &mut others {
        Some(others) if hangs => {
            // It is one of the others, and must stand still before it is walked.
            others.stop(global);
            task.phases.end(Phase::STOP_THREADS);
            hung_thread(task, others);
        }
        None if hangs => {}
        _ => {
            guarded(task, SectionKind::THREADS, Some(task.incident.tid as u64), crashed_thread);
        }
    }
    tell_fault(task);
    task.phases.end(Phase::CRASHED_THREAD);
    guarded(task, SectionKind::IMAGES, None, images);
    tell_fault(task);
    #[cfg(target_vendor = "apple")]
    {
        guarded(task, SectionKind::ANNOTATIONS, None, annotations);
        tell_fault(task);
    }
    task.phases.end(Phase::IMAGES);
    if let Some(others) = &mut others {
        if !hangs {
            others.stop(global);
            task.phases.end(Phase::STOP_THREADS);
        }
        if global.setup.all_threads {
            other_threads(task, others);
            task.phases.end(Phase::OTHER_THREADS);
        }
    }
    global.seconds.close();
    if global.seconds.copy(&mut [NO_CRASH; seconds::PLACES], task.started) > task.seconds_told {
        guarded(task, SectionKind::CRASH, None, crash);
    }
    guarded(task, SectionKind::STACK_MEMORY, Some(task.incident.tid as u64), stack_memory);
    tell_fault(task);
    task.phases.end(Phase::STACK_MEMORY);
    if global.setup.symbol_names {
        names::write_all(task);
        task.phases.end(Phase::SYMBOL_NAMES);
    }
    guarded(task, SectionKind::END, None, end);
    task.writer.truncate();
    if let Some(others) = others {
        others.hold(global);
    }
}

const NO_CRASH: coroner_report::wire::SecondCrash =
    coroner_report::wire::SecondCrash { tid: 0, signal: 0, code: 0, address: None, after_ns: None };

/// Seals and writes the payload that was just encoded.
pub(super) fn write(task: &mut Task<'_>, kind: SectionKind, length: usize) -> bool {
    // SAFETY: this thread owns the latch; the encoder that borrowed the buffer is gone.
    let scratch = unsafe { scratch(task.global) };
    task.writer.section(&mut scratch.buffer, kind, length)
}

/// Writes down a fault of the crash path, if there was one.
pub(super) fn tell_fault(task: &mut Task<'_>) {
    // SAFETY: this thread owns the latch and no piece is running.
    let fault = unsafe { scratch(task.global) }.fault.take();
    let Some(fault) = fault else { return };
    guarded(task, SectionKind::FAULT, None, |task| {
        // SAFETY: as above.
        let mut encoder = Writer::payload(&mut unsafe { scratch(task.global) }.buffer);
        fault.encode(&mut encoder);
        let length = encoder.position();
        write(task, SectionKind::FAULT, length);
    });
}

/// Guarded reads, for the crash path.
pub(super) fn memory() -> LoadGuarded {
    // SAFETY: `displace` and the mask of `on_large_stack` hold for the whole report.
    unsafe { LoadGuarded::new() }
}

fn classify(task: &mut Task<'_>) {
    // SAFETY: this thread owns the latch.
    let mappings = &unsafe { scratch(task.global) }.images.mappings;
    task.is_overflow = stack_overflow::is_overflow(task.incident, mappings);
}

fn header(task: &mut Task<'_>) {
    let run = &task.global.run;
    let header = Header {
        format_version: FORMAT_VERSION,
        run_id: task.run_id,
        event_id: crate::run::random_id(),
        pid: task.incident.pid as u32,
        ppid: process::parent_pid() as u32,
        arch: coroner_machine::registers::Arch::NATIVE,
        os: Os::NATIVE,
        page_size: run.page_size,
        pointer_auth_mask: process::authentication_mask(),
        sdk_version: env!("CARGO_PKG_VERSION").as_bytes(),
        process_start_ns: run.process_start,
        process_name: run.name.as_bytes(),
    };
    // SAFETY: this thread owns the latch.
    let mut encoder = Writer::payload(&mut unsafe { scratch(task.global) }.buffer);
    header.encode(&mut encoder);
    let length = encoder.position();
    write(task, SectionKind::HEADER, length);
}

fn crash(task: &mut Task<'_>) {
    let incident = task.incident;
    let mut told = [NO_CRASH; seconds::PLACES];
    let count = task.global.seconds.copy(&mut told, task.started);
    task.seconds_told = count;
    let mut flags = CrashFlags::default();
    if task.is_overflow {
        flags = flags.with(CrashFlags::STACK_OVERFLOW);
    }
    if task.faults > 0 {
        flags = flags.with(CrashFlags::RECRASH);
    }
    if incident.pid != task.global.run.pid {
        flags = flags.with(CrashFlags::FORK_CHILD);
    }
    // A thread that hangs has yet to be stopped.
    if incident.hung.is_none() && memory().read_u64(incident.registers.sp()).is_err() {
        flags = flags.with(CrashFlags::BAD_STACK_POINTER);
    }
    if incident.ending() == Ending::GoesOn {
        flags = flags.with(CrashFlags::NOT_FATAL);
    }
    let uncaught = incident.uncaught.and_then(|uncaught| uncaught.exceptions.first());
    let crash = Crash {
        time_ns: clock::wall(),
        since_install_ns: task.started.saturating_sub(task.global.run.installed_at),
        monitor: incident.monitor,
        signal: incident.signal,
        mach: incident.mach,
        tid: incident.tid as u64,
        flags,
        access: incident.access,
        address: incident.address,
        second_crashes: told.get(..count).unwrap_or_default(),
        message: uncaught.and_then(|exception| exception.message),
        exception_type: uncaught.and_then(|exception| exception.type_name),
        location: uncaught.and_then(|exception| exception.location),
        hang: incident.hung.map(|hung| hung.hang),
    };
    // SAFETY: this thread owns the latch.
    let mut encoder = Writer::payload(&mut unsafe { scratch(task.global) }.buffer);
    crash.encode(&mut encoder);
    let length = encoder.position();
    write(task, SectionKind::CRASH, length);
}

/// The exceptions of a language behind the crash.
fn exceptions(task: &mut Task<'_>) {
    let Some(uncaught) = task.incident.uncaught.filter(|uncaught| !uncaught.exceptions.is_empty()) else { return };
    // SAFETY: this thread owns the latch.
    let mut encoder = Writer::payload(&mut unsafe { scratch(task.global) }.buffer);
    encoder.begin_array();
    for exception in uncaught.exceptions {
        encoder.element(|encoder| exception.encode(encoder));
    }
    encoder.end();
    let length = encoder.position();
    write(task, SectionKind::EXCEPTIONS, length);
}

/// Takes the list of images into the scratch.
fn list_images(task: &mut Task<'_>) {
    // SAFETY: this thread owns the latch.
    let scratch = unsafe { scratch(task.global) };
    scratch.images.take(&mut memory());
}

fn crashed_thread(task: &mut Task<'_>) {
    let incident = task.incident;
    let crashed = others::crashed(task.global, incident, &mut memory());
    let mut flags = ThreadFlags::CRASHED.with(ThreadFlags::CURRENT);
    if crashed.is_main {
        flags = flags.with(ThreadFlags::MAIN);
    }
    let registers = incident.registers;
    let thread = Thread {
        tid: incident.tid as u64,
        name: Some(crashed.name.as_bytes()),
        flags,
        state: Some(ThreadState::RUNNING),
        captured_by: Some(CaptureMethod::CRASH_CONTEXT),
        registers: Some(coroner_report::wire::Registers::from(&registers).with_extra(incident.extra())),
        queue: crashed.queue.as_ref().map(others::QueueName::as_bytes),
        cpu_time: crashed.cpu_time,
        ..Thread::default()
    };
    // SAFETY: this thread owns the latch; the fields are used apart from each other.
    let scratch = unsafe { scratch(task.global) };
    let Scratch { buffer, ring, images, cache, names, .. } = scratch;
    let mut encoder = Writer::payload(buffer);
    encoder.begin_array();
    let addresses = &mut names.addresses;
    walk(&mut encoder, &thread, &registers, CRASHED, ring, images, cache, addresses, crashed.swift_async);
    encoder.end();
    let length = encoder.position();
    write(task, SectionKind::THREADS, length);
}

/// Encodes a thread with its frames. False where it does not fit.
#[expect(clippy::too_many_arguments, reason = "fields of the scratch, which are borrowed apart from each other")]
fn walk(
    encoder: &mut coroner_report::wire::Encoder<'_>,
    thread: &Thread<'_>,
    registers: &Registers,
    depth: Depth,
    ring: &mut frames::Ring,
    images: &Loaded,
    cache: &mut coroner_unwind::RuleCache,
    names: &mut Addresses,
    swift_async: SwiftAsync,
) -> bool {
    let Some(mut thread) = ThreadEncoder::begin(encoder, thread) else { return false };
    let end = frames::encode(&mut thread, ring, registers, memory(), images, cache, names, depth, swift_async);
    thread.finish(end);
    true
}

fn images(task: &mut Task<'_>) {
    let mut done = 0;
    loop {
        // SAFETY: this thread owns the latch; the fields are used apart from each other.
        let scratch = unsafe { scratch(task.global) };
        let mut encoder = Writer::payload(&mut scratch.buffer);
        encoder.begin_array();
        let empty = encoder.position();
        let mut rest = scratch.images.iter().skip(done).peekable();
        if rest.peek().is_none() {
            break;
        }
        for image in rest {
            if encoder.remaining() < ROOM {
                break;
            }
            if !scratch.images.encode(image, &mut encoder) {
                if encoder.position() > empty {
                    break;
                }
                // One that is larger than the whole buffer.
                task.dropped_images = task.dropped_images.saturating_add(1);
            }
            done += 1;
        }
        encoder.end();
        let length = encoder.position();
        write(task, SectionKind::IMAGES, length);
    }
    // SAFETY: as above.
    task.dropped_images = task.dropped_images.saturating_add(unsafe { scratch(task.global) }.images.dropped as u64);
}

/// What the images themselves say of the death.
#[cfg(target_vendor = "apple")]
fn annotations(task: &mut Task<'_>) {
    // SAFETY: this thread owns the latch; the fields are used apart from each other.
    let scratch = unsafe { scratch(task.global) };
    let mut encoder = Writer::payload(&mut scratch.buffer);
    encoder.begin_array();
    let empty = encoder.position();
    scratch.images.annotate(&mut encoder);
    if encoder.position() > empty {
        encoder.end();
        let length = encoder.position();
        write(task, SectionKind::ANNOTATIONS, length);
    }
}

pub(super) fn expired(task: &Task<'_>) -> bool {
    // SAFETY: this thread owns the latch; the handler writes the flag on this thread.
    unsafe { (&raw const (*task.global.scratch.get()).expired).read_volatile() }
}

/// Whether that thread is the one that hangs.
fn is_hung(task: &Task<'_>, tid: u64) -> bool {
    task.incident.hung.is_some() && task.incident.tid as u64 == tid
}

/// Writes the thread that hangs, which stands still among the others.
fn hung_thread(task: &mut Task<'_>, others: &Others) {
    task.captured = 0;
    let Some(thread) = others.threads().find(|thread| is_hung(task, thread.tid())) else { return };
    // SAFETY: this thread owns the latch.
    let mut length = begin_batch(unsafe { scratch(task.global) });
    if !other_thread(task, &thread, &mut length) {
        task.dropped_threads = task.dropped_threads.saturating_add(1);
        return;
    }
    task.captured = u64::from(thread.is_captured());
    guarded(task, SectionKind::THREADS, Some(thread.tid()), |task| {
        // SAFETY: as above.
        let end = end_batch(unsafe { scratch(task.global) }, length);
        write(task, SectionKind::THREADS, end);
    });
}

/// Writes all other threads, in batches.
fn other_threads(task: &mut Task<'_>, others: &Others) {
    let incident = task.incident;
    let mut threads = others.threads().filter(|thread| incident.hung.is_none() || thread.tid() != incident.tid as u64);
    let mut pending = threads.next();
    while pending.is_some() {
        // SAFETY: this thread owns the latch.
        let mut length = begin_batch(unsafe { scratch(task.global) });
        let empty = length;
        while let Some(thread) = &pending {
            let fits = other_thread(task, thread, &mut length);
            if !fits && length > empty {
                break;
            }
            task.threads = task.threads.saturating_add(1);
            if !fits {
                task.dropped_threads = task.dropped_threads.saturating_add(1);
            } else if thread.is_captured() {
                task.captured = task.captured.saturating_add(1);
            }
            pending = threads.next();
        }
        guarded(task, SectionKind::THREADS, None, |task| {
            // SAFETY: as above.
            let end = end_batch(unsafe { scratch(task.global) }, length);
            write(task, SectionKind::THREADS, end);
        });
        tell_fault(task);
    }
    task.dropped_threads = task.dropped_threads.saturating_add(others.overflow() as u64);
    task.threads = task.threads.saturating_add(others.overflow() as u64);
}

/// Starts an array of threads; answers how long it is.
fn begin_batch(scratch: &mut Scratch) -> usize {
    let mut encoder = Writer::payload(&mut scratch.buffer);
    // The array stays open over the threads' own encoders: its first byte now, its last in `end_batch`.
    encoder.raw(&[0x9f]);
    encoder.position()
}

/// Ends the array after `length` bytes.
fn end_batch(scratch: &mut Scratch, length: usize) -> usize {
    if let Some(byte) = Writer::payload_bytes(&mut scratch.buffer).get_mut(length) {
        *byte = 0xff;
    }
    length.saturating_add(1)
}

/// Adds one thread to the batch that is `length` bytes long so far. False where it does not fit.
fn other_thread(task: &mut Task<'_>, thread: &others::Thread<'_>, length: &mut usize) -> bool {
    let tid = thread.tid();
    let start = *length;
    let mut encoded = None;
    let too_late = expired(task);
    let whole = guarded(task, SectionKind::THREADS, Some(tid), |task| {
        encoded = Some(encode_other(task, thread, start, too_late.then_some(NotCaptured::DEADLINE)));
    });
    if !whole {
        // The walk faulted: the thread is there, without frames. The fault is written after the batch, whose buffer is in use.
        encoded = Some(encode_other(task, thread, start, Some(NotCaptured::FAULT)));
    }
    match encoded {
        Some(Some(end)) => {
            *length = end;
            true
        }
        _ => false,
    }
}

/// Encodes one thread at `start` of the payload; answers where it ends, or nothing where it does not fit.
fn encode_other(
    task: &mut Task<'_>,
    thread: &others::Thread<'_>,
    start: usize,
    given_up: Option<NotCaptured>,
) -> Option<usize> {
    let global = task.global;
    let Description {
        name,
        mut flags,
        is_main,
        state,
        syscall,
        queue,
        cpu_time,
        captured_by,
        not_captured,
        registers,
        swift_async,
    } = thread.describe(global, task.incident, given_up, &mut memory());
    if is_main {
        flags = flags.with(ThreadFlags::MAIN);
    }
    let is_hung = is_hung(task, thread.tid());
    if is_hung || global.seconds.has(thread.tid()) {
        flags = flags.with(ThreadFlags::CRASHED);
    }
    let wire = Thread {
        tid: thread.tid(),
        name: name.as_ref().map(others::ThreadName::as_bytes),
        flags,
        state,
        syscall,
        captured_by,
        not_captured,
        registers: registers.as_ref().map(coroner_report::wire::Registers::from),
        queue: queue.as_ref().map(others::QueueName::as_bytes),
        cpu_time,
        ..Thread::default()
    };
    // SAFETY: this thread owns the latch; the fields are used apart from each other.
    let scratch = unsafe { scratch(global) };
    // The last byte of the payload closes the batch.
    let bytes = Writer::payload_bytes(&mut scratch.buffer).get_mut(start..).unwrap_or_default();
    let room = bytes.len().saturating_sub(1);
    if room < ROOM && start > 1 {
        return None;
    }
    let mut encoder = coroner_report::wire::Encoder::new(bytes.get_mut(..room).unwrap_or_default());
    let fits = match &registers {
        Some(registers) => {
            let Scratch { ring, images, cache, names, .. } = scratch;
            let depth = if is_hung { CRASHED } else { OTHER };
            walk(&mut encoder, &wire, registers, depth, ring, images, cache, &mut names.addresses, swift_async)
        }
        None => wire.encode(&mut encoder, &[], WalkEnd::default()),
    };
    fits.then(|| start.saturating_add(encoder.position()))
}

/// The crashed thread's stack from its stack pointer upwards.
fn stack_memory(task: &mut Task<'_>) {
    let wanted = task.global.setup.stack_memory as usize;
    if wanted == 0 || expired(task) || task.incident.hung.is_some() {
        return;
    }
    let address = task.incident.registers.sp() & !15;
    // SAFETY: this thread owns the latch; the fields are used apart from each other.
    let scratch = unsafe { scratch(task.global) };
    let limit = scratch.stack_memory.len();
    let into = scratch.stack_memory.get_mut(..wanted.min(limit)).unwrap_or_default();
    // As far as it is readable, in steps: the stack may end before.
    let mut filled = 0;
    for step in into.chunks_mut(256) {
        if memory().read(address.wrapping_add(filled as u64), step).is_err() {
            break;
        }
        filled += step.len();
    }
    if filled == 0 {
        return;
    }
    let bytes = scratch.stack_memory.get(..filled).unwrap_or_default();
    let mut encoder = Writer::payload(&mut scratch.buffer);
    encoder.begin_array();
    StackMemory { tid: task.incident.tid as u64, address, bytes }.encode(&mut encoder);
    encoder.end();
    let length = encoder.position();
    write(task, SectionKind::STACK_MEMORY, length);
}

fn end(task: &mut Task<'_>) {
    let late = expired(task);
    let dropped = [
        Dropped { section: SectionKind::THREADS, count: task.dropped_threads },
        Dropped { section: SectionKind::IMAGES, count: task.dropped_images },
        Dropped { section: SectionKind::SYMBOL_NAMES, count: task.dropped_names },
    ];
    let some = dropped.iter().any(|dropped| dropped.count > 0);
    let end = End {
        complete: !late && !some && task.faults == 0 && task.writer.error.is_none(),
        total_ns: monotonic_now().saturating_sub(task.started),
        phases: task.phases.all(),
        dropped: if some { &dropped } else { &[] },
        threads: task.threads,
        threads_captured: task.captured,
        deadline: late,
    };
    // SAFETY: this thread owns the latch.
    let mut encoder = Writer::payload(&mut unsafe { scratch(task.global) }.buffer);
    end.encode(&mut encoder);
    let length = encoder.position();
    write(task, SectionKind::END, length);
}
