//! The report at the next launch: plain, owned data.
//!
//! All code that runs at the next launch works on [`Report`]: the reader creates it, the
//! symbolicator fills in names, the store stitches in the [`RunFacts`], sinks and the command line
//! show it. Its serde form is the JSON form ([`Report::to_json`]), whose field names are stable.
//!
//! Data that a later format version added is kept: unknown keys in each part's `extra`, unknown
//! sections in [`Report::unknown_sections`], unknown numbers as numbers.

mod address;
mod cause;
mod crash;
mod explanation;
mod fault_kind;
mod frame;
mod image;
mod in_app;
mod lock_wait;
mod names;
mod own_code;
mod profile;
mod run;
mod runtime;
mod scrub;
mod stitch;
mod system_calls;
mod termination;
mod thread;
mod timestamp;
mod value;

pub use address::{Address, Bytes, BytesError, Id, IdError, RelativeAddress};
pub(crate) use cause::GENERAL_PROTECTION_FAULT;
pub use cause::PURE_VIRTUAL_CALL;
pub use crash::{
    Annotation, ConcurrentCrash, Crash, CrashFlag, End, Exception, Fault, Hang, Header, Mach, PhaseDuration,
    SectionCount, Signal,
};
pub use explanation::{
    BadOperand, BitFlip, Certainty, CodeChange, CodeChangeKind, Explanation, Index, Instruction, LastSet, MemoryAccess,
    OverwrittenReturn, Recursion, SourceValue,
};
pub use fault_kind::FaultKind;
pub use frame::{Frame, InlinedFrame, Skipped};
pub use image::{
    AppMemory, Code, Image, ImageIndex, Mapping, Segment, StackMemory, SymbolName, TextRange, UnwindSection, Zombie,
};
pub use in_app::{Function, InApp, InAppRules};
pub use lock_wait::{LockWait, OwnerIs, WaitKind};
pub use names::{mach_code_name, mach_exception_name, signal_code_name, signal_name};
pub use profile::{Profile, ProfileEnd, ProfileNode};
pub use run::{
    AppFacts, Attachment, Breadcrumb, CrashRecord, DeviceFacts, DeviceState, Lifecycle, OsFacts, ProcessIdentity,
    Processing, RunFacts, Session,
};
pub use runtime::{is_panic_function, is_runtime_code, is_runtime_function, is_runtime_source};
pub use scrub::{Scrub, hide_home, hide_secrets};
pub use system_calls::system_call_name;
pub use termination::{Termination, TerminationCertainty, TerminationReason, Vitals};
pub use thread::{CpuTime, FutexWait, Registers, Thread};
pub use timestamp::{Timestamp, TimestampError};
pub use value::{Extra, Value};

use crate::wire::{FoundBy, SectionKind};
use serde::{Deserialize, Serialize};

/// A report of one crash, handled error or hang.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Report {
    /// Whether the report is finished and undamaged, and its writer left nothing out.
    pub complete: bool,
    /// Missing or damaged parts, in file order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<Problem>,
    /// The report's identity. All zero if the section is missing, which is also a problem.
    pub header: Header,
    /// The crash itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crash: Option<Crash>,
    /// Why the process died; `None` until the crate `coroner-explain` computes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
    /// Language exceptions behind the crash: the uncaught one first, then its causes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<Exception>,
    /// The threads in the order in which they were written, the crashed one first.
    pub threads: Vec<Thread>,
    /// The loaded images.
    pub images: Vec<Image>,
    /// Pieces of stacks, and of memory that the crashed thread's registers point to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack_memory: Vec<StackMemory>,
    /// The code that the crashed thread ran, as it was in memory.
    ///
    /// Covers the bytes before and after the program counter or, if that is not in code, the bytes
    /// before the return address of the innermost call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<Code>,
    /// The mapping that contains the address of the fault, or the nearest ones below and above.
    ///
    /// If that mapping allows no access, its neighbours are included, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<Mapping>,
    /// Memory that the app registered, and output of its crash callback.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub app_memory: Vec<AppMemory>,
    /// Deallocated Objective-C objects that the crashed thread's registers lead to.
    ///
    /// Includes the `NSException` that was deallocated last. Present only if the app enabled it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zombies: Vec<Zombie>,
    /// Names found by the process itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub symbol_names: Vec<SymbolName>,
    /// Texts that images or the system left for a crash reporter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<Annotation>,
    /// Faults in the crash path itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
    /// The profile of the hung thread while the hang lasted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Outcome of writing the report; `None` if it was not finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
    /// Data that the app recorded in the run state, outside a signal handler.
    ///
    /// Present if the report file contains it as a section. Otherwise the holder of both files
    /// stitches them together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunFacts>,
    /// Sections of a kind that this version doesn't know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown_sections: Vec<UnknownSection>,
}

/// Something that is missing or damaged in a report file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The affected section, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section: Option<SectionKind>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The problem, in a sentence.
    pub what: String,
}

impl core::fmt::Display for Problem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.section {
            Some(section) => write!(f, "section {section} at byte {}: {}", self.offset, self.what),
            None => write!(f, "at byte {}: {}", self.offset, self.what),
        }
    }
}

/// A section of a later format version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UnknownSection {
    /// Section kind.
    pub kind: SectionKind,
    /// Version of the section's layout.
    pub version: u16,
    /// Content of the section.
    pub value: Value,
}

impl Report {
    /// Fills in the names of numbers on the report's system, which JSON and this crate's texts use.
    pub(crate) fn name_numbers(&mut self) {
        let (os, arch) = (self.header.os, self.header.arch);
        for thread in &mut self.threads {
            thread.syscall_name = thread.syscall.zip(arch).and_then(|(call, arch)| system_call_name(os, arch, call));
        }
        self.profile.iter_mut().for_each(|profile| profile.name_calls(os, arch));
        if let Some(crash) = &mut self.crash {
            crash.signal.iter_mut().for_each(|signal| signal.name_for(os, arch));
            crash.mach.iter_mut().for_each(Mach::name);
            crash.concurrent_crashes.iter_mut().for_each(|other| other.name = signal_name(os, other.signal));
        }
        self.faults.iter_mut().for_each(|fault| fault.name = signal_name(os, fault.signal));
    }

    /// The thread that crashed; if several did, the one that the report is about.
    pub fn crashed_thread(&self) -> Option<&Thread> {
        let tid = self.crash.as_ref().map(|crash| crash.tid);
        self.threads
            .iter()
            .find(|thread| thread.crashed && Some(thread.tid) == tid)
            .or_else(|| self.threads.iter().find(|thread| thread.crashed))
    }

    /// The crashed thread's frames that the crash is about.
    ///
    /// These are all of them, except if the program's own handler of a fault signal sent that
    /// signal again after reporting. Then they are the frames that the handler interrupted.
    pub fn crashed_frames(&self) -> &[Frame] {
        let frames = self.crashed_thread().map(|thread| thread.frames.as_slice()).unwrap_or_default();
        let signal = self.crash.as_ref().and_then(|crash| crash.signal.as_ref());
        let sent = signal.is_some_and(|signal| {
            let is_fault =
                matches!(signal.name, Some("SIGSEGV" | "SIGBUS" | "SIGILL" | "SIGFPE" | "SIGTRAP" | "SIGSYS"));
            is_fault
                && signal.code <= 0
                && !signal.unknown_code
                && signal.sender_pid.is_none_or(|pid| pid == self.header.pid)
        });
        let interrupted = frames.iter().position(|frame| frame.found_by == FoundBy::SIGNAL_FRAME);
        interrupted.filter(|_| sent).and_then(|at| frames.get(at..)).unwrap_or(frames)
    }

    /// The event's id or, if that is missing, the run's.
    pub fn event_id(&self) -> Id {
        let of_run = self.run.as_ref().map_or(Id::default(), |run| run.run_id);
        let ids = [self.header.event_id, self.header.run_id, of_run];
        ids.into_iter().find(|id| !id.is_nil()).unwrap_or_default()
    }

    /// The reason for an abort, from the C library or another image.
    ///
    /// Such as a failed assertion, a corrupt heap or a smashed stack. `None` for other crashes
    /// (there the text is an ordinary annotation) and for a crash that has its own message.
    pub fn abort_message(&self) -> Option<&str> {
        let crash = self.crash.as_ref().filter(|crash| crash.message.is_none())?;
        let aborts = crash.signal.as_ref().is_some_and(|signal| signal.name == Some("SIGABRT"));
        // Other sources are notes of the system, from a tombstone or ART.
        let of_library = |source: &str| source.rsplit('/').next().is_some_and(|name| name.starts_with("lib"));
        let mut said = self.annotations.iter().filter(|annotation| aborts && of_library(&annotation.source));
        let said = said.next().filter(|annotation| self.is_of_this_abort(&annotation.source))?;
        Some(said.text.trim())
    }

    /// Turns an unrelated panic into an annotation.
    ///
    /// A panic that was caught within a second before an abort didn't lead to it if the C library
    /// gives another reason (a corrupt heap, a failed assertion).
    pub(crate) fn put_unrelated_panic_aside(&mut self) {
        let is_before = |thrown: &Exception| thrown.type_name.as_deref() == Some("panic shortly before the abort");
        let Some(place) = self.exceptions.iter().position(is_before) else { return };
        let message = self.exceptions[place].message.as_deref().unwrap_or_default();
        // On Android the runtime passes on the panic's own message.
        if self.abort_message().is_none_or(|said| said.contains(message)) {
            return;
        }
        let text = format!("a panic was caught less than a second before: {message}");
        self.exceptions.remove(place);
        self.annotations.push(Annotation { source: "panic".to_owned(), text, ..Annotation::default() });
    }

    /// Whether glibc itself called `abort`, as it does when it has a message.
    ///
    /// Otherwise its message may belong to an earlier abort that the program survived. True if the
    /// stack doesn't show the caller, and for other libraries.
    fn is_of_this_abort(&self, source: &str) -> bool {
        const GLIBC: &str = "libc.so.6";
        let is_glibc = |path: &str| path.rsplit('/').next() == Some(GLIBC);
        let frames = self.crashed_thread().map(|thread| thread.frames.as_slice()).unwrap_or_default();
        // glibc's debug information has the name that it uses internally.
        let is_abort = |frame: &Frame| matches!(frame.function.as_deref(), Some("abort" | "__GI_abort"));
        let abort = frames.iter().position(is_abort);
        let caller = abort.and_then(|at| frames.get(at + 1)).and_then(|frame| frame.module.as_deref());
        !is_glibc(source) || caller.is_none_or(is_glibc)
    }

    /// The image whose memory contains `address`. For many addresses, use an [`ImageIndex`].
    pub fn image_at(&self, address: Address) -> Option<&Image> {
        self.images.iter().filter(|image| image.contains(address)).max_by_key(|image| image.load_address)
    }

    /// Returns every frame of the threads, of the exceptions' throws and of the profile.
    pub fn frames_mut(&mut self) -> impl Iterator<Item = &mut Frame> {
        let threads = self.threads.iter_mut().flat_map(|thread| thread.frames.iter_mut());
        let exceptions = self.exceptions.iter_mut().flat_map(|exception| exception.frames.iter_mut());
        let profile = self.profile.iter_mut().flat_map(|profile| profile.nodes.iter_mut().map(|node| &mut node.frame));
        threads.chain(exceptions).chain(profile)
    }

    /// Copies function names, files and lines from `other`, the same report symbolicated earlier.
    ///
    /// Applies to frames that have no line here, and a line or at least a name there. Returns the
    /// number of frames that were changed.
    pub fn take_names(&mut self, other: &Report) -> usize {
        fn take<'f>(
            frames: impl IntoIterator<Item = &'f mut Frame>,
            named: impl IntoIterator<Item = &'f Frame>,
        ) -> usize {
            let mut taken = 0;
            for (frame, named) in frames.into_iter().zip(named) {
                let worth = |frame: &Frame| match (frame.line, &frame.function) {
                    (Some(_), _) => 3,
                    (None, Some(_)) if !frame.named_in_process => 2,
                    (None, Some(_)) => 1,
                    (None, None) => 0,
                };
                if frame.address == named.address && worth(frame) < worth(named) {
                    // The file's own data take precedence for the frame's location and how it was
                    // found.
                    *frame = Frame { found_by: frame.found_by, sp: frame.sp, cfa: frame.cfa, ..named.clone() };
                    taken += 1;
                }
            }
            taken
        }
        let by_tid: std::collections::HashMap<u64, &Thread> =
            other.threads.iter().map(|thread| (thread.tid, thread)).collect();
        let mut taken = 0;
        for thread in &mut self.threads {
            taken += by_tid.get(&thread.tid).map_or(0, |named| take(&mut thread.frames, &named.frames));
        }
        for (exception, named) in self.exceptions.iter_mut().zip(&other.exceptions) {
            taken += take(&mut exception.frames, &named.frames);
        }
        for (profile, named) in self.profile.iter_mut().zip(&other.profile) {
            let frames = profile.nodes.iter_mut().map(|node| &mut node.frame);
            taken += take(frames, named.nodes.iter().map(|node| &node.frame));
        }
        taken
    }

    /// Fills in each frame's image and offset, and the function name that the process itself found.
    ///
    /// A name or image that a symbolicator has already filled in is kept.
    pub fn attribute_frames(&mut self) {
        let index = ImageIndex::new(&self.images);
        let names: std::collections::HashMap<u64, &SymbolName> =
            self.symbol_names.iter().map(|name| (name.address.0, name)).collect();
        let threads = self.threads.iter_mut().flat_map(|thread| thread.frames.iter_mut());
        let exceptions = self.exceptions.iter_mut().flat_map(|exception| exception.frames.iter_mut());
        let profile = self.profile.iter_mut().flat_map(|profile| profile.nodes.iter_mut().map(|node| &mut node.frame));
        for frame in threads.chain(exceptions).chain(profile) {
            if let Some(image) = index.find(frame.lookup_address()).and_then(|image| self.images.get(image)) {
                frame.module.get_or_insert_with(|| image.path.clone());
                frame.module_offset = Some(RelativeAddress(frame.address.0.wrapping_sub(image.load_address.0)));
            }
            if frame.function.is_none()
                && frame.raw_function.is_none()
                && let Some(name) = names.get(&frame.address.0)
            {
                frame.raw_function = Some(name.name.clone());
                frame.named_in_process = true;
                frame.symbol_address = frame.symbol_address.or(name.symbol_address);
            }
        }
    }
}
