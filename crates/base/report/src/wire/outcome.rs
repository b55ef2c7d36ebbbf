//! How writing the report went, and what was saved beside the main sections.

use super::encoder::{Encoder, optional_int, optional_text, optional_uint};
use super::keys::{annotations, app_memory, code, end, fault, mappings, stack_memory, zombies};
use super::numbers::{Phase, SectionKind};

/// A piece of a thread's memory: of its stack, of its shadow stack, or of what the crashed thread's registers point to.
#[derive(Clone, Copy, Debug, Default)]
pub struct StackMemory<'a> {
    /// The thread.
    pub tid: u64,
    /// Address of the first byte (avma).
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl StackMemory<'_> {
    /// Encodes one element of a stack memory section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.map(stack_memory::REQUIRED);
            encoder.uint_pair(stack_memory::TID, self.tid);
            encoder.uint_pair(stack_memory::ADDRESS, self.address);
            encoder.uint(stack_memory::BYTES);
            encoder.bytes(self.bytes);
        })
    }
}

/// A piece of the code that the crashed thread ran, as it was in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Code<'a> {
    /// Address of the first byte (avma).
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Code<'_> {
    /// Encodes one element of a code section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.map(code::REQUIRED);
            encoder.uint_pair(code::ADDRESS, self.address);
            encoder.uint(code::BYTES);
            encoder.bytes(self.bytes);
        })
    }
}

/// Memory that the app registered, as it was when it crashed, or what its crash callback wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppMemory<'a> {
    /// The app's name for it.
    pub name: &'a [u8],
    /// The bytes, as far as they could be read.
    pub bytes: &'a [u8],
    /// Address of the first byte (avma); `None` of the crash callback's.
    pub address: Option<u64>,
    /// How many bytes were registered.
    pub size: Option<u64>,
}

impl AppMemory<'_> {
    /// Encodes one element of an app memory section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.begin_map();
            encoder.text_pair(app_memory::NAME, self.name);
            encoder.uint(app_memory::BYTES);
            encoder.bytes(self.bytes);
            optional_uint(encoder, app_memory::ADDRESS, self.address);
            optional_uint(encoder, app_memory::SIZE, self.size);
            encoder.end();
        })
    }
}

/// An Objective-C object that was deallocated before the crash.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zombie<'a> {
    /// Where it was (avma).
    pub address: u64,
    /// Its class.
    pub class: &'a [u8],
    /// The register of the crashed thread that holds its address. `None` of the exception that was deallocated last.
    pub register: Option<&'a [u8]>,
    /// The message that was being sent to it, where the thread was in `objc_msgSend`.
    pub selector: Option<&'a [u8]>,
    /// The class of the object that is there now, empty where its name is not known. `None`: its memory is no object any more.
    pub class_now: Option<&'a [u8]>,
    /// Of an `NSException`: its name.
    pub name: Option<&'a [u8]>,
    /// Of an `NSException`: its reason.
    pub reason: Option<&'a [u8]>,
}

impl Zombie<'_> {
    /// Encodes one element of a zombies section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.begin_map();
            encoder.uint_pair(zombies::ADDRESS, self.address);
            encoder.text_pair(zombies::CLASS, self.class);
            optional_text(encoder, zombies::REGISTER, self.register);
            optional_text(encoder, zombies::SELECTOR, self.selector);
            optional_text(encoder, zombies::CLASS_NOW, self.class_now);
            optional_text(encoder, zombies::NAME, self.name);
            optional_text(encoder, zombies::REASON, self.reason);
            encoder.end();
        })
    }
}

/// A mapping of the process at the address of the fault, or next to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mapping<'a> {
    /// Address of its first byte (avma).
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// What is allowed: 1 execute, 2 write, 4 read; 8 it is shared with other processes.
    pub protection: u8,
    /// The path of its file, or what the system calls it; empty: nothing.
    pub name: &'a [u8],
    /// Where in its file it starts, bytes.
    pub file_offset: u64,
}

impl Mapping<'_> {
    /// Encodes one element of a mappings section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.begin_map();
            encoder.uint_pair(mappings::START, self.start);
            encoder.uint_pair(mappings::SIZE, self.size);
            encoder.uint_pair(mappings::PROTECTION, self.protection.into());
            optional_text(encoder, mappings::NAME, Some(self.name).filter(|name| !name.is_empty()));
            optional_uint(encoder, mappings::FILE_OFFSET, Some(self.file_offset).filter(|offset| *offset != 0));
            encoder.end();
        })
    }
}

/// A text that an image or the system left for a crash reporter: `__crash_info` on Darwin, Android's abort message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Annotation<'a> {
    /// Where it was found: the image's path, or a name such as `abort_message`.
    pub source: &'a [u8],
    /// The text.
    pub text: &'a [u8],
}

impl Annotation<'_> {
    /// Encodes one element of an annotations section; `false` (and nothing written) if it does not fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.map(annotations::REQUIRED);
            encoder.text_pair(annotations::SOURCE, self.source);
            encoder.text_pair(annotations::TEXT, self.text);
        })
    }
}

/// A section whose writing ended by a fault of the crash path itself. What it had until then is in the section before
/// this one, if it could be sealed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// The section that was being written.
    pub section: SectionKind,
    /// The signal (or Mach exception) of the fault.
    pub signal: i32,
    /// Its `si_code`.
    pub code: i32,
    /// The address that could not be used.
    pub address: Option<u64>,
    /// Where the crash path was (avma).
    pub pc: Option<u64>,
    /// The thread that was being read, where one was.
    pub tid: Option<u64>,
}

impl Fault {
    /// Encodes the payload of a fault section.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint_pair(fault::SECTION, self.section.0.into());
        optional_int(encoder, fault::SIGNAL, Some(self.signal.into()));
        optional_int(encoder, fault::CODE, Some(self.code.into()));
        optional_uint(encoder, fault::ADDRESS, self.address);
        optional_uint(encoder, fault::PC, self.pc);
        optional_uint(encoder, fault::TID, self.tid);
        encoder.end();
    }
}

/// How long a phase took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseDuration {
    /// The phase.
    pub phase: Phase,
    /// Nanoseconds by the monotonic clock.
    pub ns: u64,
}

/// How many elements of a kind of section were left out for want of room or time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The kind of section.
    pub section: SectionKind,
    /// Elements that are missing.
    pub count: u64,
}

/// The last section: everything before it was written as intended.
#[derive(Clone, Copy, Debug, Default)]
pub struct End<'a> {
    /// Whether the report holds everything that was asked for: nothing was dropped, no deadline passed, no section
    /// faulted.
    pub complete: bool,
    /// Nanoseconds from the fault to this section.
    pub total_ns: u64,
    /// How long each phase took.
    pub phases: &'a [PhaseDuration],
    /// What was left out.
    pub dropped: &'a [Dropped],
    /// Threads of the process.
    pub threads: u64,
    /// Threads whose registers are in the report.
    pub threads_captured: u64,
    /// Whether the deadline ended the report.
    pub deadline: bool,
}

impl End<'_> {
    /// Encodes the payload of an end section.
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        encoder.begin_map();
        encoder.uint(end::COMPLETE);
        encoder.bool(self.complete);
        optional_uint(encoder, end::TOTAL, Some(self.total_ns));
        optional_uint(encoder, end::THREADS, Some(self.threads));
        optional_uint(encoder, end::THREADS_CAPTURED, Some(self.threads_captured));
        encoder.element(|encoder| {
            encoder.uint(end::DEADLINE);
            encoder.bool(self.deadline);
        });
        encoder.element(|encoder| {
            encoder.uint(end::PHASES);
            encoder.map(self.phases.len());
            for phase in self.phases {
                encoder.uint(phase.phase.0.into());
                encoder.uint(phase.ns);
            }
        });
        encoder.element(|encoder| {
            encoder.uint(end::DROPPED);
            encoder.map(self.dropped.len());
            for dropped in self.dropped {
                encoder.uint(dropped.section.0.into());
                encoder.uint(dropped.count);
            }
        });
        encoder.end();
    }
}
