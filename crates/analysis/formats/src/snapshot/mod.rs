//! A saved process, from a file or read from outside.
//!
//! It consists of registers, memory and images; its stacks are walked here.
//!
//! A reader builds a [`Report`] with the threads' registers and the images, collects the available
//! memory in a [`SavedMemory`], and calls [`walk_threads`] to add the frames.

pub mod elf_images;
pub mod target;
pub mod user_regs;

use coroner_process::futex_wait;
use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::Arch as Machine;
use coroner_report::Report;
use coroner_report::model::{Address, Frame, FutexWait, Image, Problem, Registers, StackMemory};
use coroner_report::wire::{AddressKind, FoundBy, WalkEnd};
use coroner_symbols::{Arch, ImageKey, Match, SnapshotImages, Symbolizer};
use coroner_unwind::{Aarch64, AddressRange, Architecture, Found, Options, RuleCache, Walker, X86_64};

/// Maximum number of a thread's frames; in an infinite recursion the first ones are kept.
const MAX_FRAMES: u32 = 4096;
/// Maximum number of memory reads in a walk.
const MAX_READS: u64 = 1 << 22;

/// Maximum number of non-matching files that are listed.
const MAX_LISTED_MISMATCHES: usize = 16;

/// Maximum bytes of one stack that are kept in the report, and of all stacks.
const MAX_KEPT_STACK_BYTES: usize = 64 << 10;
const MAX_KEPT_BYTES: usize = 32 << 20;

/// Saved memory in non-overlapping pieces.
#[derive(Debug, Default)]
pub struct SavedMemory<'b> {
    /// Sorted by address.
    ranges: Vec<(u64, &'b [u8])>,
}

impl<'b> SavedMemory<'b> {
    /// Creates saved memory from pieces, each an address and its bytes, and sorts them.
    pub fn new(mut ranges: Vec<(u64, &'b [u8])>) -> Self {
        ranges.retain(|(_, bytes)| !bytes.is_empty());
        ranges.sort_by_key(|(start, _)| *start);
        SavedMemory { ranges }
    }

    /// Returns the saved bytes from `address` to the end of its piece.
    pub fn at(&self, address: u64) -> Option<&'b [u8]> {
        let after = self.ranges.partition_point(|(start, _)| *start <= address);
        let (start, bytes) = self.ranges.get(after.checked_sub(1)?)?;
        bytes.get(usize::try_from(address - start).ok()?..).filter(|rest| !rest.is_empty())
    }

    /// Returns `length` bytes, which may span several pieces.
    pub fn bytes(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(length.min(1 << 20));
        while bytes.len() < length {
            let rest = self.at(address.checked_add(bytes.len() as u64)?)?;
            bytes.extend_from_slice(&rest[..rest.len().min(length - bytes.len())]);
        }
        Some(bytes)
    }
}

impl Memory for &SavedMemory<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let whole = self.at(address).and_then(|rest| rest.get(..into.len()));
        if let Some(whole) = whole {
            into.copy_from_slice(whole);
            return Ok(());
        }
        let parts = self.bytes(address, into.len()).ok_or(Unreadable { address })?;
        into.copy_from_slice(&parts);
        Ok(())
    }
}

/// Returns the stack memory that a report keeps for these threads, for use in a minidump.
///
/// It starts at their stack pointers.
pub fn kept_stacks(threads: impl Iterator<Item = (u32, Address)>, memory: &SavedMemory<'_>) -> Vec<StackMemory> {
    let mut all = 0;
    let stacks = threads.map_while(|(tid, sp)| {
        let bytes = memory.at(sp.0).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(MAX_KEPT_STACK_BYTES)];
        all += bytes.len();
        let piece =
            StackMemory { tid: tid.into(), address: sp, bytes: bytes.to_vec().into(), ..StackMemory::default() };
        (all <= MAX_KEPT_BYTES).then_some(piece)
    });
    stacks.filter(|piece| !piece.bytes.is_empty()).collect()
}

/// Walks all threads in `report` that have registers. `mapped` has the process's memory ranges, and
/// whether they were executable.
pub fn walk_threads(
    report: &mut Report,
    memory: &SavedMemory<'_>,
    mapped: impl IntoIterator<Item = (AddressRange, bool)>,
    symbolizer: &mut Symbolizer,
) {
    let arch = match report.header.arch {
        Some(Machine::X86_64) => Arch::X86_64,
        Some(Machine::Aarch64) => Arch::Aarch64,
        None => return,
    };
    let mut images = SnapshotImages::new();
    let loaded = report.images.iter().map(|image| {
        let start = image.load_address.0;
        AddressRange { start, end: start.saturating_add(image.size) }
    });
    images.add_memory(mapped, loaded);
    let mut without: Vec<String> = Vec::new();
    let mut others = Vec::new();
    for image in &report.images {
        let key = ImageKey::from_image(image, arch);
        let data = images.add(symbolizer.files(&key), image.load_address.0);
        if data.has_code || data.debug_frame || !image.path.starts_with('/') {
            continue;
        }
        match &symbolizer.status(&key).matched {
            Match::Mismatched { path, found } => others.push((describe_image(image), path.clone(), found.clone())),
            _ => without.push(describe_image(image)),
        }
    }
    for (image, path, found) in others.iter().take(MAX_LISTED_MISMATCHES) {
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let has = if found.is_empty() { "none".to_owned() } else { found.join(", ") };
        let what = format!(
            "`{}` is a different build than {image}: its build id is {has}, so its symbols and unwind data are not used",
            path.display()
        );
        report.problems.push(Problem { section: None, offset: 0, what });
    }
    if !without.is_empty() {
        let what = format!(
            "no file with the build id of {} was found; stacks through it are walked without unwind data",
            without.join(", ")
        );
        report.problems.push(Problem { section: None, offset: 0, what });
    }
    let mut cache = Box::new(RuleCache::new());
    for thread in &mut report.threads {
        let Some(registers) = &thread.registers else { continue };
        let walked = match (registers.x86_64(), registers.aarch64()) {
            (Some(registers), _) => walk::<X86_64>(&registers, memory, &images, &mut cache, None),
            (None, Some(registers)) => {
                walk::<Aarch64>(&registers, memory, &images, &mut cache, Some(AUTHENTICATION_MASK))
            }
            (None, None) => continue,
        };
        (thread.frames, thread.walk_end) = (walked.0, Some(walked.1));
    }
}

/// The bits of a user-space arm64 pointer that are not part of the address.
///
/// Assumes 48-bit addresses; neither format contains the mask.
pub(crate) const AUTHENTICATION_MASK: u64 = 0x007f_0000_0000_0000;

pub(crate) fn describe_image(image: &Image) -> String {
    match image.code_id() {
        Some(id) => format!("{} ({id})", image.name()),
        None => image.name().to_owned(),
    }
}

/// Walks a thread, by the same rules as the process itself.
fn walk<A: Architecture>(
    registers: &A::Registers,
    memory: &SavedMemory<'_>,
    images: &SnapshotImages,
    cache: &mut RuleCache,
    authentication_mask: Option<u64>,
) -> (Vec<Frame>, WalkEnd) {
    let options = Options { frames: MAX_FRAMES, reads: MAX_READS, authentication_mask, ..Options::default() };
    let mut walker = Walker::<A, _, _>::new(registers, images.memory(memory), images, cache, options);
    let mut frames = Vec::new();
    while let Some(frame) = walker.next_frame() {
        frames.push(to_report_frame(&frame));
    }
    (frames, walker.end().map_or(WalkEnd::NO_RULE, |end| WalkEnd(end.number())))
}

fn to_report_frame(frame: &coroner_unwind::Frame) -> Frame {
    let address_kind = match (frame.kind, frame.found) {
        (_, Found::SwiftAsync) => AddressKind::ASYNC_RESUME,
        (coroner_unwind::AddressKind::ReturnAddress, _) => AddressKind::RETURN,
        _ => AddressKind::INSTRUCTION,
    };
    Frame {
        address: Address(frame.pc),
        found_by: FoundBy(frame.found as u8),
        address_kind,
        sp: Some(Address(frame.sp)),
        cfa: frame.cfa.map(Address),
        ..Frame::default()
    }
}

/// Creates a report's registers from a thread's, in the architecture's order.
pub fn registers(arch: Machine, general: Vec<u64>) -> Registers {
    Registers { arch: Some(arch), general, ..Registers::default() }
}

/// Returns the futex that a thread waits for, if it is in that system call.
pub fn futex<M: Memory>(registers: &Registers, call: Option<i64>, mut memory: M) -> Option<FutexWait> {
    let wait = match registers.x86_64() {
        Some(registers) => futex_wait::FutexWait::of(&registers, call?, &mut memory),
        None => futex_wait::FutexWait::of(&registers.aarch64()?, call?, &mut memory),
    };
    wait.as_ref().map(FutexWait::from)
}
