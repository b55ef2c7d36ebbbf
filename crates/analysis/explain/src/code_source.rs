//! Sources of instruction bytes.

use crate::before_handler::before_handler;
use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::Arch as Machine;
use coroner_report::Report;
use coroner_report::model::{Address, ImageIndex};
use coroner_symbols::{
    Arch, FunctionVariables, ImageKey, LookupAddress, Match, Part, Pointee, SnapshotImages, SymbolFile, Symbolizer,
    TypeId,
};

/// The code of a crashed process, with information about it. If only [`Self::code`] is implemented,
/// explanations don't include where a register was set, nor variables.
pub trait CodeSource {
    /// Returns up to `length` bytes of the code at `address`; `None` if nothing is known there.
    ///
    /// Returns fewer bytes at the end of known code.
    fn code(&self, address: Address, length: usize) -> Option<Code>;

    /// Returns the start and end of the function that contains `address`.
    fn function(&self, _address: Address) -> Option<(Address, Address)> {
        None
    }

    /// Returns the variables of the function that contains `address`, from debug information.
    ///
    /// Addresses in the result are those of [`Self::svma`].
    fn variables(&self, _address: Address) -> Option<FunctionVariables> {
        None
    }

    /// Converts an address to the one in the image's own file.
    fn svma(&self, _address: Address) -> Option<u64> {
        None
    }

    /// Returns the target of a pointer type.
    fn pointee(&self, _of: TypeId) -> Option<Pointee> {
        None
    }

    /// Returns the part at an offset in a value of the type.
    ///
    /// `None` unless a single part contains all `width` bytes there.
    fn part(&self, _of: TypeId, _offset: u64, _width: Option<u64>) -> Option<Part> {
        None
    }

    /// Returns the size of the type's values, in bytes.
    fn size_of(&self, _of: TypeId) -> Option<u64> {
        None
    }

    /// Returns an instruction's file and line.
    fn line(&self, _address: Address) -> Option<(String, u32)> {
        None
    }

    /// Returns the name of the function that starts at an address.
    fn name(&self, _address: Address) -> Option<String> {
        None
    }
}

/// Bytes of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// The bytes, at least one.
    pub bytes: Vec<u8>,
    /// Whether the bytes are known to be from the file that ran. Otherwise conclusions from them
    /// are not certain.
    pub is_verified: bool,
}

/// A source without code, for explanations from signal, address and registers only.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCode;

impl CodeSource for NoCode {
    fn code(&self, _: Address, _: usize) -> Option<Code> {
        None
    }
}

/// The code in the report, which is what ran; where the report has none, code from another source.
pub(crate) struct RanCode<'a> {
    pub(crate) report: &'a Report,
    pub(crate) otherwise: &'a dyn CodeSource,
}

impl RanCode<'_> {
    /// Returns bytes from the report at `address`; adjacent pieces are joined.
    fn recorded(&self, address: Address, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let Some(at) = address.0.checked_add(bytes.len() as u64) else { break };
            let rest = self.report.code.iter().find_map(|piece| {
                let from = usize::try_from(at.checked_sub(piece.address.0)?).ok()?;
                piece.bytes.0.get(from..).filter(|rest| !rest.is_empty())
            });
            let Some(rest) = rest else { break };
            bytes.extend(rest.iter().take(length - bytes.len()));
        }
        bytes
    }
}

impl CodeSource for RanCode<'_> {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let bytes = self.recorded(address, length);
        if bytes.len() == length {
            return Some(Code { bytes, is_verified: true });
        }
        let recorded = (!bytes.is_empty()).then_some(Code { bytes, is_verified: true });
        match self.otherwise.code(address, length) {
            Some(other) if recorded.as_ref().is_none_or(|known| known.bytes.len() < other.bytes.len()) => Some(other),
            _ => recorded,
        }
    }

    fn function(&self, address: Address) -> Option<(Address, Address)> {
        self.otherwise.function(address)
    }

    fn variables(&self, address: Address) -> Option<FunctionVariables> {
        self.otherwise.variables(address)
    }

    fn svma(&self, address: Address) -> Option<u64> {
        self.otherwise.svma(address)
    }

    fn pointee(&self, type_id: TypeId) -> Option<Pointee> {
        self.otherwise.pointee(type_id)
    }

    fn part(&self, type_id: TypeId, offset: u64, width: Option<u64>) -> Option<Part> {
        self.otherwise.part(type_id, offset, width)
    }

    fn size_of(&self, type_id: TypeId) -> Option<u64> {
        self.otherwise.size_of(type_id)
    }

    fn line(&self, address: Address) -> Option<(String, u32)> {
        self.otherwise.line(address)
    }

    fn name(&self, address: Address) -> Option<String> {
        self.otherwise.name(address)
    }
}

/// Code from the files of the images in the crashed thread's innermost frames.
///
/// It is the code that was loaded: breakpoints or hooks written into it later are not included.
#[derive(Debug, Default)]
pub struct ImageFiles<'s> {
    images: SnapshotImages,
    /// Code ranges of images without a build id, which the file at the same path may not match.
    unverified: Vec<(u64, u64)>,
    /// The image for lookups of functions, variables and lines.
    ///
    /// It contains the instruction that crashed, or that jumped to an address without code.
    crashed: Option<Crashed<'s>>,
}

/// An image with the symbol files for it.
#[derive(Debug)]
struct Crashed<'s> {
    load_address: u64,
    size: u64,
    files: &'s [SymbolFile],
}

impl Crashed<'_> {
    fn offset(&self, address: Address) -> Option<u64> {
        address.0.checked_sub(self.load_address).filter(|offset| *offset < self.size)
    }

    /// Returns the first file's result that isn't `None`. Addresses are converted to the file's
    /// own.
    fn ask<T>(&self, address: Address, ask: impl Fn(&SymbolFile, u64) -> Option<T>) -> Option<T> {
        let offset = self.offset(address)?;
        self.files.iter().find_map(|file| ask(file, file.base_svma().checked_add(offset)?))
    }

    fn with_debug_information(&self) -> Option<&SymbolFile> {
        self.files.iter().find(|file| file.has_debug_information())
    }
}

/// Number of innermost frames whose images are opened: the crashed one and its callers.
const FRAMES: usize = 6;

impl<'s> ImageFiles<'s> {
    /// Finds the images' files by their build ids with `symbolizer`.
    pub fn for_report(report: &Report, symbolizer: &'s mut Symbolizer) -> Self {
        let mut files = Self::default();
        let arch = match report.header.arch {
            Some(Machine::X86_64) => Arch::X86_64,
            Some(Machine::Aarch64) => Arch::Aarch64,
            None => return files,
        };
        let before = before_handler(report);
        let report = before.as_ref().unwrap_or(report);
        let Some(thread) = report.crashed_thread() else { return files };
        let index = ImageIndex::new(&report.images);
        let pc = thread.registers.as_ref().and_then(|registers| registers.pc());
        let addresses = thread.frames.iter().take(FRAMES).map(coroner_report::model::Frame::lookup_address);
        let mut places: Vec<usize> = pc.into_iter().chain(addresses).filter_map(|at| index.find(at)).collect();
        coroner_process::heap_sort(&mut places, |first, second| first < second);
        places.dedup();
        for image in places.into_iter().filter_map(|place| report.images.get(place)) {
            let key = ImageKey::from_image(image, arch);
            files.images.add(symbolizer.files(&key), image.load_address.0);
            if image.build_id.is_empty() || symbolizer.status(&key).matched == Match::Unverified {
                files.unverified.push((image.load_address.0, image.load_address.0.saturating_add(image.size)));
            }
        }
        let caller = || thread.frames.get(1).map(coroner_report::model::Frame::lookup_address);
        let place = pc.and_then(|pc| index.find(pc)).or_else(|| index.find(caller()?));
        if let Some(image) = place.and_then(|place| report.images.get(place)) {
            let of_image = symbolizer.files(&ImageKey::from_image(image, arch));
            files.crashed = Some(Crashed { load_address: image.load_address.0, size: image.size, files: of_image });
        }
        files
    }
}

/// Maximum number of bytes of code read at once.
const MAX_CODE: usize = 1 << 20;

impl CodeSource for ImageFiles<'_> {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let mut memory = self.images.memory(Nothing);
        let length = length.min(MAX_CODE);
        let mut bytes = vec![0; length];
        if memory.read(address.0, &mut bytes).is_err() {
            // Read byte by byte up to the first unreadable one.
            bytes.clear();
            while bytes.len() < length {
                let mut byte = [0];
                let Some(next) = address.0.checked_add(bytes.len() as u64) else { break };
                if memory.read(next, &mut byte).is_err() {
                    break;
                }
                bytes.extend(byte);
            }
        }
        let is_verified = !self.unverified.iter().any(|(start, end)| (*start..*end).contains(&address.0));
        (!bytes.is_empty()).then_some(Code { bytes, is_verified })
    }

    fn function(&self, address: Address) -> Option<(Address, Address)> {
        let crashed = self.crashed.as_ref()?;
        let start = address.0.checked_sub(crashed.offset(address)?)?;
        let (first, end) = crashed.ask(address, |file, svma| {
            let (first, end) = file.function_extent(svma)?;
            let base = file.base_svma();
            Some((first.checked_sub(base)?, end.checked_sub(base)?))
        })?;
        Some((Address(start.checked_add(first)?), Address(start.checked_add(end)?)))
    }

    fn variables(&self, address: Address) -> Option<FunctionVariables> {
        let crashed = self.crashed.as_ref()?;
        let file = crashed.with_debug_information()?;
        file.variables(file.base_svma().checked_add(crashed.offset(address)?)?)
    }

    fn svma(&self, address: Address) -> Option<u64> {
        let crashed = self.crashed.as_ref()?;
        crashed.with_debug_information()?.base_svma().checked_add(crashed.offset(address)?)
    }

    fn pointee(&self, type_id: TypeId) -> Option<Pointee> {
        self.crashed.as_ref()?.with_debug_information()?.pointee(type_id)
    }

    fn part(&self, type_id: TypeId, offset: u64, width: Option<u64>) -> Option<Part> {
        self.crashed.as_ref()?.with_debug_information()?.part(type_id, offset, width)
    }

    fn size_of(&self, type_id: TypeId) -> Option<u64> {
        self.crashed.as_ref()?.with_debug_information()?.size_of(type_id)
    }

    fn line(&self, address: Address) -> Option<(String, u32)> {
        self.crashed.as_ref()?.ask(address, |file, svma| {
            let calls = file.calls(LookupAddress::of_instruction(svma));
            let first = calls.into_iter().next()?;
            first.file.zip(first.line)
        })
    }

    fn name(&self, address: Address) -> Option<String> {
        self.crashed.as_ref()?.ask(address, |file, svma| {
            let (name, start) = file.symbol(LookupAddress::of_instruction(svma))?;
            (start == svma).then(|| coroner_symbols::demangle(&name).name)
        })
    }
}

/// Saved memory that contains no code.
struct Nothing;

impl Memory for Nothing {
    fn read(&mut self, address: u64, _: &mut [u8]) -> Result<(), Unreadable> {
        Err(Unreadable { address })
    }
}
