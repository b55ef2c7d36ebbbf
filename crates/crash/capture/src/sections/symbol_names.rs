//! Names for the addresses of the report, from the symbol tables of the process's own images: where no server has the symbols
//! of the system's libraries, these are the only names that their frames will ever have.
//!
//! It is the last thing before the end, when everything else is on disk. Addresses are noted while the stacks are walked,
//! each once; then each image that has some is scanned in one pass ([`coroner_process::symtab`]), the crashed thread's images first.

use coroner_process::AddressRange;
use coroner_process::symtab::{Extent, LookupAddress, NameScan};
use coroner_process::threads::monotonic_now;
use coroner_report::wire::{AddressKind, Frame, ReplacedImage, SectionKind, SymbolName};

use super::{SectionResult, write_fault};
use crate::os::names::{Paths, Source};
use crate::recrash::RECRASH;
use crate::run::ReportWriter;
use crate::session::{CrashSession, guarded, memory};

/// Addresses of one report that can be named. A thousand threads that wait in the same function have one there.
const CAPACITY: usize = 4096;

/// Places to find an address at again: twice as many, a power of two, so that what is looked for is near.
const PLACES: usize = 2 * CAPACITY;

/// Addresses that one pass over an image's symbols names.
pub(crate) const AT_ONCE: usize = 128;

/// Bytes of a name that are kept.
const MAX_LENGTH: usize = 1024;

/// Symbols that are looked at in one image. A program of a gigabyte has as many; they are read in tens of milliseconds.
pub(crate) const MAX_SYMBOLS: u32 = 2_000_000;

/// No further image is begun after that time: the app's user waits for the end.
const TIME_LIMIT_NS: u64 = 500_000_000;

/// The address is behind a call, and the call is what is named.
const BEHIND_CALL: u8 = 1;
const ASKED: u8 = 2;

/// The addresses of the report's frames, each once. All zero is a valid value: none.
#[derive(Debug)]
pub(crate) struct Addresses {
    addresses: [u64; CAPACITY],
    states: [u8; CAPACITY],
    /// The number of an address, from 1, at or behind the place that its hash says.
    places: [u16; PLACES],
    used: usize,
    /// Whether places may have numbers.
    is_used: bool,
    /// Frames whose address found no room.
    dropped: u64,
}

impl Addresses {
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Addresses {
            addresses: [0; CAPACITY],
            states: [0; CAPACITY],
            places: [0; PLACES],
            used: 0,
            is_used: false,
            dropped: 0,
        }
    }

    /// Forgets all: another report begins. What was never used needs nothing: it is zeros, which are cold at the first crash.
    pub(crate) fn clear(&mut self) {
        if self.is_used {
            self.places.fill(0);
        }
        self.is_used = false;
        self.used = 0;
        self.dropped = 0;
    }

    /// Notes a frame's address. What it is (behind a call or not) is what it was the first time.
    #[inline]
    pub(super) fn note(&mut self, frame: &Frame) {
        let address = frame.pc;
        self.is_used = true;
        let mut at = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % PLACES;
        // Half of the places are free at least.
        let place = loop {
            let Some(place) = self.places.get_mut(at) else { return };
            if *place == 0 {
                break place;
            }
            if self.addresses.get(usize::from(*place).wrapping_sub(1)) == Some(&address) {
                return;
            }
            at = at.wrapping_add(1) % PLACES;
        };
        let (Some(to), Some(state)) = (self.addresses.get_mut(self.used), self.states.get_mut(self.used)) else {
            self.dropped = self.dropped.saturating_add(1);
            return;
        };
        *to = address;
        *state = if frame.address_kind == AddressKind::INSTRUCTION { 0 } else { BEHIND_CALL };
        self.used = self.used.wrapping_add(1);
        *place = self.used as u16;
    }

    /// The address to look number `index` up with, if it wasn't asked for yet.
    fn unasked(&self, index: usize) -> Option<u64> {
        let (address, state) = (self.addresses.get(index)?, self.states.get(index)?);
        if index >= self.used || state & ASKED != 0 {
            return None;
        }
        Some(if state & BEHIND_CALL != 0 { address.wrapping_sub(1) } else { *address })
    }

    /// The return address of that number, of those that were noted first.
    pub(super) fn return_address(&self, number: usize) -> Option<u64> {
        // The program counter is the first of all.
        let index = number.wrapping_add(1);
        let is_one = index < self.used && self.states.get(index).is_some_and(|state| state & BEHIND_CALL != 0);
        self.addresses.get(index).copied().filter(|_| is_one)
    }

    fn set_asked(&mut self, index: usize) {
        if let Some(state) = self.states.get_mut(index) {
            *state |= ASKED;
        }
    }

    /// How many are left to ask for.
    pub(super) fn left(&self) -> u64 {
        let states = self.states.iter().take(self.used);
        states.filter(|state| **state & ASKED == 0).count() as u64
    }
}

/// Images of one report of which it can be said that their files were replaced.
const REPLACED: usize = 64;

/// The load addresses of images whose files are not what is mapped any more. All zero is a valid value: none.
#[derive(Debug)]
struct Replaced {
    images: [u64; REPLACED],
    count: usize,
}

impl Replaced {
    /// Notes an image, once.
    fn note(&mut self, address: u64) {
        if self.iter().any(|noted| noted == address) {
            return;
        }
        if let Some(to) = self.images.get_mut(self.count) {
            *to = address;
            self.count = self.count.wrapping_add(1);
        }
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        self.images.iter().take(self.count).copied()
    }
}

/// What naming works with.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) addresses: Addresses,
    replaced: Replaced,
    scan: NameScan<AT_ONCE>,
    buffer: [u8; MAX_LENGTH],
    paths: Paths,
}

impl Names {
    /// Touches what every report's addresses need, at install: of the rest only a report of many threads needs more, or one that has
    /// something to name.
    pub(crate) fn touch(&mut self) {
        self.addresses.is_used = true;
        self.clear();
        let addresses = &mut self.addresses;
        if let Some(place) = addresses.addresses.first_mut() {
            *place = 0;
        }
        if let Some(state) = addresses.states.first_mut() {
            *state = 0;
        }
    }

    /// Forgets all: another report begins.
    pub(crate) fn clear(&mut self) {
        self.addresses.clear();
        self.replaced.count = 0;
    }
}

/// Writes the names, a section for each image: of all images where the app wants it, else of those whose files were replaced while the
/// process ran, which nobody can name later by the file at their path.
///
/// Not inlined, so that `xtask signal-safety` knows its loop by name.
#[inline(never)]
pub(super) fn write_all(session: &mut CrashSession<'_>) {
    let until = monotonic_now().saturating_add(TIME_LIMIT_NS);
    let mut first = 0_usize;
    while !RECRASH.is_expired() && monotonic_now() < until {
        // What is open when the section is left by a fault is given back here.
        let mut source = Source::NONE;
        let mut more = true;
        let left = left(session);
        let whole = guarded(session, SectionKind::SYMBOL_NAMES, None, |session| {
            more = name_an_image(session, &mut first, &mut source) != SectionResult::Empty;
        });
        source.close();
        write_fault(session);
        // A fault before any address was taken would come again, and fill the report with faults.
        if !more || (!whole && self::left(session) == left) {
            break;
        }
    }
    guarded(session, SectionKind::REPLACED_IMAGES, None, |session| {
        write_replaced(session);
    });
    let Some(Names { addresses, .. }) = session.workspace.names.as_deref() else { return };
    if !session.installed.options.symbol_names {
        return;
    }
    let counts = &mut session.counts;
    counts.dropped_names = counts.dropped_names.saturating_add(addresses.left()).saturating_add(addresses.dropped);
}

/// Says which images' files were replaced.
fn write_replaced(session: &mut CrashSession<'_>) -> SectionResult {
    let workspace = &mut *session.workspace;
    let Some(replaced) = workspace.names.as_ref().map(|names| &names.replaced).filter(|replaced| replaced.count > 0)
    else {
        return SectionResult::Empty;
    };
    let mut encoder = ReportWriter::payload(&mut workspace.buffer);
    encoder.begin_array();
    for load_address in replaced.iter() {
        ReplacedImage { load_address }.encode(&mut encoder);
    }
    encoder.end();
    let length = encoder.position();
    session.seal(SectionKind::REPLACED_IMAGES, length)
}

/// Addresses that are left to ask for.
fn left(session: &CrashSession<'_>) -> u64 {
    session.workspace.names.as_ref().map_or(0, |names| names.addresses.left())
}

/// Names the addresses of the image that holds the first one which wasn't asked for yet. `Empty` if there is none.
///
/// Addresses count as asked for before anything is read for them: if that faults, the next ones are tried.
fn name_an_image(session: &mut CrashSession<'_>, first: &mut usize, source: &mut Source) -> SectionResult {
    let workspace = &mut *session.workspace;
    let Some(images) = &workspace.images else { return SectionResult::Empty };
    let Some(names) = &mut workspace.names else { return SectionResult::Empty };
    // Code that a compiler made has its symbols in a file that only this process has.
    let (source_of, range, slide) = loop {
        if *first >= names.addresses.used {
            return SectionResult::Empty;
        }
        if let Some(lookup) = names.addresses.unasked(*first) {
            if let Some(image) = image_at(images, lookup) {
                break (Ok(image), image.range, image.slide);
            }
            if let Some(code) = jit_code_at(images, lookup) {
                break (Err(code.file), code.unwind.text, code.symbol_slide);
            }
            names.addresses.set_asked(*first);
        }
        *first = first.wrapping_add(1);
    };
    let is_replaced = source_of.is_ok_and(|image| source.is_replaced(images, image, &mut names.paths));
    if is_replaced {
        names.replaced.note(range.start);
    } else if source_of.is_ok() && !session.installed.options.symbol_names {
        for index in *first..names.addresses.used {
            if names.addresses.unasked(index).is_some_and(|lookup| range.contains(lookup)) {
                names.addresses.set_asked(index);
            }
        }
        return SectionResult::Written;
    }
    names.scan.clear();
    for index in *first..names.addresses.used {
        let Some(lookup) = names.addresses.unasked(index).filter(|lookup| range.contains(*lookup)) else { continue };
        if !names.scan.push(LookupAddress::of_instruction(lookup.wrapping_sub(slide)), index as u32) {
            // The rest of them in another pass.
            break;
        }
        names.addresses.set_asked(index);
    }
    let scanned = match source_of {
        Ok(image) => source.scan(images, image, is_replaced, &mut names.paths, &mut names.scan, &mut memory()),
        Err(AddressRange { start: address, end }) => {
            let file = Extent { address, size: end.saturating_sub(address) };
            names.scan.elf_file(&mut memory(), file, None, MAX_SYMBOLS)
        }
    };
    if scanned.is_err() {
        return SectionResult::Written;
    }
    let mut encoder = ReportWriter::payload(&mut workspace.buffer);
    encoder.begin_array();
    let empty = encoder.position();
    let addresses = &names.addresses;
    let mut dropped = 0_u64;
    names.scan.for_each_name(&mut memory(), &mut names.buffer, |named| {
        let Some(address) = addresses.addresses.get(named.tag as usize) else { return };
        let symbol_address = Some(named.symbol_svma.wrapping_add(slide));
        if !(SymbolName { address: *address, name: named.name, symbol_address }.encode(&mut encoder)) {
            dropped = dropped.saturating_add(1);
        }
    });
    let any = encoder.position() > empty;
    encoder.end();
    let length = encoder.position();
    session.counts.dropped_names = session.counts.dropped_names.saturating_add(dropped);
    if any { session.seal(SectionKind::SYMBOL_NAMES, length) } else { SectionResult::Written }
}

/// The image that holds an address. A function of its own: the loop around it would otherwise keep the address of the search in a
/// register, and a call through a register is what `cargo xtask signal-safety` can't follow.
#[inline(never)]
fn image_at(images: &coroner_walk::ImageList, address: u64) -> Option<&coroner_process::images::Image> {
    images.find(address)
}

/// As [`image_at`], of code that a compiler registered.
#[inline(never)]
fn jit_code_at(images: &coroner_walk::ImageList, address: u64) -> Option<coroner_walk::JitCode> {
    images.jit_code(address)
}

#[cfg(test)]
mod tests;
