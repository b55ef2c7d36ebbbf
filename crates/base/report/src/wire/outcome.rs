//! Memory and other data saved beside the main sections, and how writing the report went.

use super::encoder::{Encoder, optional_int, optional_text, optional_uint};
use super::keys::{annotations, app_memory, code, end, fault, mappings, stack_memory, zombies};
use super::numbers::{Phase, SectionKind};

/// A piece of a thread's memory.
///
/// From its stack, its shadow stack, or the memory that the crashed thread's registers point to.
#[derive(Clone, Copy, Debug, Default)]
pub struct StackMemory<'a> {
    /// The thread that the memory belongs to.
    pub tid: u64,
    /// Address of the first byte (avma).
    pub address: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl StackMemory<'_> {
    /// Encodes one element of a stack memory section; `false` (and nothing written) if it does not
    /// fit.
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

/// Memory that the app registered, as it was at the crash, or output of the app's crash callback.
#[derive(Clone, Copy, Debug, Default)]
pub struct AppMemory<'a> {
    /// The app's name for the memory.
    pub name: &'a [u8],
    /// The bytes, as far as they could be read.
    pub bytes: &'a [u8],
    /// Address of the first byte (avma); `None` for the crash callback's output.
    pub address: Option<u64>,
    /// Number of registered bytes.
    pub size: Option<u64>,
}

impl AppMemory<'_> {
    /// Encodes one element of an app memory section; `false` (and nothing written) if it does not
    /// fit.
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
    /// Address of the object (avma).
    pub address: u64,
    /// Class of the object.
    pub class: &'a [u8],
    /// The crashed thread's register that holds the object's address.
    ///
    /// `None` for the exception that was deallocated last.
    pub register: Option<&'a [u8]>,
    /// The message that was being sent to the object, if the thread was in `objc_msgSend`.
    pub selector: Option<&'a [u8]>,
    /// The class of the object now at the address, empty if its name is not known.
    ///
    /// `None` if the memory no longer holds an object.
    pub class_now: Option<&'a [u8]>,
    /// Name of the `NSException`.
    pub name: Option<&'a [u8]>,
    /// Reason of the `NSException`.
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
    /// Address of the first byte (avma).
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Flags: 1 execute, 2 write, 4 read, 8 shared with other processes.
    pub protection: u8,
    /// The path of the mapped file, or the system's name for the mapping; empty if it has none.
    pub name: &'a [u8],
    /// Offset in the mapped file, in bytes.
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

/// A text that an image or the system left for a crash reporter: `__crash_info` on Darwin,
/// Android's abort message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Annotation<'a> {
    /// Place where the text was found: the image's path, or a name such as `abort_message`.
    pub source: &'a [u8],
    /// The text.
    pub text: &'a [u8],
}

impl Annotation<'_> {
    /// Encodes one element of an annotations section; `false` (and nothing written) if it does not
    /// fit.
    pub fn encode(&self, encoder: &mut Encoder<'_>) -> bool {
        encoder.element(|encoder| {
            encoder.map(annotations::REQUIRED);
            encoder.text_pair(annotations::SOURCE, self.source);
            encoder.text_pair(annotations::TEXT, self.text);
        })
    }
}

/// A fault of the crash path that ended the writing of a section.
///
/// The bytes written until then are in the section before this one, if it could be sealed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// The section that was being written.
    pub section: SectionKind,
    /// The signal (or Mach exception) of the fault.
    pub signal: i32,
    /// `si_code` of the signal.
    pub code: i32,
    /// The address that could not be accessed.
    pub address: Option<u64>,
    /// Program counter of the crash path (avma).
    pub pc: Option<u64>,
    /// The thread whose data was being read, if any.
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

/// Duration of a phase of the crash path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseDuration {
    /// The phase.
    pub phase: Phase,
    /// Duration in nanoseconds by the monotonic clock.
    pub ns: u64,
}

/// Number of elements of a section kind that were left out because of lack of space or time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The section kind.
    pub section: SectionKind,
    /// Number of missing elements.
    pub count: u64,
}

/// The last section: everything before it was written as intended.
#[derive(Clone, Copy, Debug, Default)]
pub struct End<'a> {
    /// Whether the report contains everything that was requested.
    ///
    /// Nothing was dropped, no deadline passed, no section faulted.
    pub complete: bool,
    /// Nanoseconds from the fault to this section.
    pub total_ns: u64,
    /// Duration of each phase.
    pub phases: &'a [PhaseDuration],
    /// Elements that were left out, by section kind.
    pub dropped: &'a [Dropped],
    /// Number of threads in the process.
    pub threads: u64,
    /// Number of threads whose registers are in the report.
    pub threads_captured: u64,
    /// Whether the deadline cut the report short.
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
