//! Where the bytes of instructions come from.

use coroner_process::memory::{Memory, Unreadable};
use coroner_process::registers::Arch as Machine;
use coroner_report::Report;
use coroner_report::model::{Address, ImageIndex};
use coroner_symbols::{Arch, ImageKey, Match, SnapshotImages, Symbolizer};

/// The code of a process that is dead.
pub trait CodeSource {
    /// Up to `length` bytes of the code at `address`: fewer where what is known ends, `None` if nothing is known there.
    fn code(&self, address: Address, length: usize) -> Option<Code>;
}

/// Bytes of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Code {
    /// The bytes, at least one.
    pub bytes: Vec<u8>,
    /// Whether they are known to be of the file that ran. Otherwise nothing that is said by them is certain.
    pub is_verified: bool,
}

/// No code: an explanation by signal, address and registers alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCode;

impl CodeSource for NoCode {
    fn code(&self, _: Address, _: usize) -> Option<Code> {
        None
    }
}

/// The code that the report has, which is what ran; where it has none, that of another source.
pub(crate) struct RanCode<'a> {
    pub(crate) report: &'a Report,
    pub(crate) otherwise: &'a dyn CodeSource,
}

impl RanCode<'_> {
    /// Bytes of the report at `address`: of pieces that follow each other as of one.
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
}

/// Code from the files of the images that the crashed thread's innermost frames are in.
///
/// It is what was loaded: a breakpoint or a hook that was written into the code later is not in it.
#[derive(Debug, Default)]
pub struct ImageFiles {
    images: SnapshotImages,
    /// Code of images without a build id, which a file of the same path may have or not.
    unverified: Vec<(u64, u64)>,
}

/// Innermost frames whose images are opened: the one that crashed, and who called it.
const FRAMES: usize = 4;

impl ImageFiles {
    /// Finds the files by the build ids of the images, as `symbolizer` finds them.
    pub fn of(report: &Report, symbolizer: &mut Symbolizer) -> Self {
        let mut files = Self::default();
        let arch = match report.header.arch {
            Some(Machine::X86_64) => Arch::X86_64,
            Some(Machine::Aarch64) => Arch::Aarch64,
            None => return files,
        };
        let Some(thread) = report.crashed_thread() else { return files };
        let index = ImageIndex::new(&report.images);
        let pc = thread.registers.as_ref().and_then(|registers| registers.pc());
        let addresses = thread.frames.iter().take(FRAMES).map(coroner_report::model::Frame::lookup_address);
        let mut places: Vec<usize> = pc.into_iter().chain(addresses).filter_map(|at| index.find(at)).collect();
        places.sort_unstable();
        places.dedup();
        for image in places.into_iter().filter_map(|place| report.images.get(place)) {
            let key = ImageKey::of_image(image, arch);
            files.images.add(symbolizer.files(&key), image.load_address.0);
            if image.build_id.is_empty() || symbolizer.status(&key).matched == Match::Unverified {
                files.unverified.push((image.load_address.0, image.load_address.0.saturating_add(image.size)));
            }
        }
        files
    }
}

impl CodeSource for ImageFiles {
    fn code(&self, address: Address, length: usize) -> Option<Code> {
        let mut memory = self.images.memory(Nothing);
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let mut byte = [0];
            let Some(next) = address.0.checked_add(bytes.len() as u64) else { break };
            if memory.read(next, &mut byte).is_err() {
                break;
            }
            bytes.extend(byte);
        }
        let is_verified = !self.unverified.iter().any(|(start, end)| (*start..*end).contains(&address.0));
        (!bytes.is_empty()).then_some(Code { bytes, is_verified })
    }
}

/// No memory was saved that code could be read from.
struct Nothing;

impl Memory for Nothing {
    fn read(&mut self, address: u64, _: &mut [u8]) -> Result<(), Unreadable> {
        Err(Unreadable { address })
    }
}
