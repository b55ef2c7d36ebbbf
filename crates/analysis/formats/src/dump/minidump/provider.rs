//! Unwind data for `minidump-unwind`: Breakpad's symbol files, and the images' own files.
//!
//! Symbol files come first, as in `minidump-stackwalk`. An image's file, found by its id, is used
//! by Coroner's own walker (ELF and Mach-O), or by its `.pdata` (PE, x86_64). What remains is left
//! to `minidump-unwind`'s frame pointers and scan.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use coroner_process::registers::{AARCH64_NAMES, Aarch64Registers, Arch as Machine, X86_64_NAMES, X86_64Registers};
use coroner_report::Report;
use coroner_report::wire::{AddressKind, FoundBy, WalkEnd};
use coroner_symbols::{Arch, ImageKey, SnapshotImages, Symbolizer};
use coroner_unwind::{Aarch64, Architecture, End, Found, Options, RuleCache, Walker, X86_64, follows_call};
use minidump::Module;
use minidump_unwind::{FileError, FileKind, FillSymbolError, FrameSymbolizer, FrameWalker, SymbolFile, SymbolProvider};

use super::pdata;
use crate::snapshot::{AUTHENTICATION_MASK, SavedMemory};

/// Maximum number of a thread's frames; in an infinite recursion the first ones are kept.
pub(super) const MAX_FRAMES: usize = 4096;
/// Maximum number of memory reads in one step.
const MAX_READS: u64 = 1 << 16;

/// A Breakpad symbol file's text, parsed when the walk reaches its module.
struct Text {
    bytes: Box<dyn Deref<Target = [u8]> + Send + Sync>,
    parsed: OnceLock<Option<SymbolFile>>,
}

impl Text {
    fn parsed(&self) -> Option<&SymbolFile> {
        self.parsed.get_or_init(|| SymbolFile::from_bytes(&self.bytes).ok()).as_ref()
    }
}

/// The result of one of this module's walks for a frame.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// The frame was found from the one below it.
    Found(FoundBy, AddressKind),
    /// The frame is the last one.
    End(WalkEnd),
}

pub(super) struct Provider<'s> {
    /// By load address.
    texts: HashMap<u64, Text>,
    /// The load addresses of images whose files were found.
    with_code: Vec<u64>,
    files: SnapshotImages,
    memory: &'s SavedMemory<'s>,
    arch: Option<Machine>,
    is_windows: bool,
    walk: Mutex<Walk>,
}

struct Walk {
    cache: Box<RuleCache>,
    /// Number of the current thread's frames.
    frames: usize,
    /// By stack pointer and program counter.
    steps: HashMap<(u64, u64), Step>,
}

impl<'s> Provider<'s> {
    pub(super) fn new(report: &Report, arch: Arch, memory: &'s SavedMemory<'s>, symbolizer: &mut Symbolizer) -> Self {
        let (mut texts, mut with_code) = (HashMap::new(), Vec::new());
        let mut files = SnapshotImages::new();
        for image in &report.images {
            let found = symbolizer.files(&ImageKey::from_image(image, arch));
            let base = image.load_address.0;
            if let Some(bytes) = found.iter().find_map(coroner_symbols::SymbolFile::breakpad_text) {
                texts.insert(base, Text { bytes: Box::new(bytes), parsed: OnceLock::new() });
            }
            let data = files.add(found, base);
            if data.has_code || data.debug_frame {
                with_code.push(base);
            }
        }
        let walk = Walk { cache: Box::new(RuleCache::new()), frames: 0, steps: HashMap::new() };
        let is_windows = report.header.os == coroner_report::wire::Os::WINDOWS;
        Self { texts, with_code, files, memory, arch: report.header.arch, is_windows, walk: Mutex::new(walk) }
    }

    /// Returns how the frame with this stack pointer and program counter was found, or that it is
    /// the last one; `None` if `minidump-unwind` determined it.
    pub(super) fn step(&self, sp: u64, pc: u64) -> Option<Step> {
        self.lock().steps.get(&(sp, pc)).copied()
    }

    /// Whether the image at a load address has unwind data.
    pub(super) fn has_data(&self, base: u64) -> bool {
        self.with_code.contains(&base) || self.texts.get(&base).is_some_and(|text| text.parsed().is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Walk> {
        self.walk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn follows_call(&self, address: u64) -> Option<bool> {
        let mut memory = self.files.memory(self.memory);
        match self.arch? {
            Machine::X86_64 => follows_call::<X86_64, _>(&mut memory, address),
            Machine::Aarch64 => follows_call::<Aarch64, _>(&mut memory, address),
        }
    }

    /// Steps to the caller with the image's own file.
    fn step_by_file(&self, base: u64, walker: &mut dyn FrameWalker) -> Option<()> {
        let get = |name: &str| walker.get_callee_register(name);
        match self.arch? {
            Machine::X86_64 => {
                let (pc, mut gpr) = (get("rip")?, [0; 16]);
                get("rsp")?;
                for (value, name) in gpr.iter_mut().zip(X86_64_NAMES) {
                    *value = get(name).unwrap_or_default();
                }
                let registers = X86_64Registers { gpr, pc, flags: 0 };
                match self.is_windows {
                    true => self.step_by_pdata(base, &registers, walker),
                    false => self.step_by_walker::<X86_64>(&registers, &X86_64_NAMES, (registers.sp(), pc), walker),
                }
            }
            Machine::Aarch64 => {
                let (pc, sp, mut x) = (get("pc")?, get("sp")?, [0; 31]);
                for (value, name) in x.iter_mut().zip(AARCH64_NAMES) {
                    *value = get(name).unwrap_or_default();
                }
                let registers = Aarch64Registers { x, sp, pc, pstate: 0 };
                self.step_by_walker::<Aarch64>(&registers, &AARCH64_NAMES, (sp, pc), walker)
            }
        }
    }

    fn step_by_walker<A: Architecture>(
        &self,
        registers: &A::Registers,
        names: &[&str],
        at: (u64, u64),
        walker: &mut dyn FrameWalker,
    ) -> Option<()> {
        let mut walk = self.lock();
        let Walk { cache, steps, .. } = &mut *walk;
        let mask = (A::ARCH == Machine::Aarch64).then_some(AUTHENTICATION_MASK);
        let options = Options { reads: MAX_READS, scan_words: 0, authentication_mask: mask, ..Options::default() };
        let memory = self.files.memory(self.memory);
        let mut own = Walker::<A, _, _>::new(registers, memory, &self.files, cache, options);
        if is_return(steps, at, walker) {
            own = own.from_return_address();
        }
        if let Err(end) = own.step() {
            // A scan of a stack that is known to end, or not to be saved, would only find chance
            // values.
            let is_end = matches!(end, End::EndOfStack | End::Unreadable { .. });
            return is_end.then(|| self::end(walker, steps, at, WalkEnd(end.number())))?;
        }
        let frame = own.frame();
        if matches!(frame.found, Found::FramePointer | Found::LinkRegister | Found::StackTop | Found::Scan) {
            return None;
        }
        let registers = own.registers();
        for (number, name) in (0..).zip(names) {
            match registers.certain(number).filter(|_| A::PRESERVED >> number & 1 != 0) {
                Some(value) => walker.set_caller_register(name, value)?,
                None => walker.clear_caller_register(name),
            }
        }
        let kind = match frame.kind {
            coroner_unwind::AddressKind::ReturnAddress => AddressKind::RETURN,
            _ => AddressKind::INSTRUCTION,
        };
        steps.insert((frame.sp, frame.pc), Step::Found(FoundBy(frame.found as u8), kind));
        walker.set_cfa(frame.sp)?;
        walker.set_ra(frame.pc)
    }

    fn step_by_pdata(&self, base: u64, registers: &X86_64Registers, walker: &mut dyn FrameWalker) -> Option<()> {
        let is_return = is_return(&self.lock().steps, (registers.sp(), registers.pc), walker);
        let mut memory = self.files.memory(self.memory);
        let (caller, kind) = pdata::step(registers, is_return, base, &mut memory)?;
        for (name, value) in X86_64_NAMES.iter().zip(caller.gpr) {
            match matches!(*name, "rbx" | "rbp" | "rsi" | "rdi" | "r12" | "r13" | "r14" | "r15") {
                true => walker.set_caller_register(name, value)?,
                false => walker.clear_caller_register(name),
            }
        }
        let at = (caller.sp(), caller.pc);
        self.lock().steps.insert(at, Step::Found(FoundBy::CFI, kind));
        walker.set_cfa(at.0)?;
        walker.set_ra(at.1)
    }
}

/// Whether a frame's program counter is a return address. A frame that an exception or a signal
/// interrupted isn't, even if it isn't the first.
fn is_return(steps: &HashMap<(u64, u64), Step>, at: (u64, u64), walker: &dyn FrameWalker) -> bool {
    match steps.get(&at) {
        Some(Step::Found(_, kind)) => *kind == AddressKind::RETURN,
        _ => walker.has_grand_callee(),
    }
}

/// Ends the walk: no caller is at address 0.
fn end(
    walker: &mut dyn FrameWalker,
    steps: &mut HashMap<(u64, u64), Step>,
    at: (u64, u64),
    end: WalkEnd,
) -> Option<()> {
    steps.insert(at, Step::End(end));
    walker.set_cfa(at.0)?;
    walker.set_ra(0)
}

#[async_trait]
impl SymbolProvider for Provider<'_> {
    async fn fill_symbol(
        &self,
        module: &(dyn Module + Sync),
        frame: &mut (dyn FrameSymbolizer + Send),
    ) -> Result<(), FillSymbolError> {
        if let Some(file) = self.texts.get(&module.base_address()).and_then(Text::parsed) {
            file.fill_symbol(module, frame);
            return Ok(());
        }
        // A scan accepts addresses with a name: those that follow a call. The given address is the
        // byte before a return address.
        match self.follows_call(frame.get_instruction().wrapping_add(1)) {
            Some(true) => frame.set_function("?", frame.get_instruction(), 0),
            Some(false) => {}
            None => return Err(FillSymbolError {}),
        }
        Ok(())
    }

    async fn walk_frame(&self, module: &(dyn Module + Sync), walker: &mut (dyn FrameWalker + Send)) -> Option<()> {
        let is_over = {
            let mut walk = self.lock();
            walk.frames = if walker.has_grand_callee() { walk.frames + 1 } else { 1 };
            walk.frames >= MAX_FRAMES
        };
        if is_over {
            walker.set_cfa(0)?;
            return walker.set_ra(0);
        }
        let base = module.base_address();
        let text = self.texts.get(&base).and_then(Text::parsed);
        if text.is_some_and(|file| file.walk_frame(module, walker).is_some()) {
            return Some(());
        }
        // On Windows a dump of all memory has `.pdata`, too.
        (self.is_windows || self.with_code.contains(&base)).then(|| self.step_by_file(base, walker))?
    }

    async fn get_file_path(&self, _: &(dyn Module + Sync), _: FileKind) -> Result<PathBuf, FileError> {
        Err(FileError::NotFound)
    }
}
