//! Symbol names for the report's addresses, from the symbol tables of the process's own images: if
//! no server has the symbols of the system's libraries, these are the only names that their frames
//! will ever have.
//!
//! They are the last sections before the end, when everything else is on disk. Addresses are noted
//! while the stacks are walked, each once; then each image that contains some is scanned in one
//! pass ([`coroner_process::symtab`]), the crashed thread's images first.

use coroner_process::AddressRange;
use coroner_process::symtab::{Extent, LookupAddress};
use coroner_process::threads::monotonic_now;
use coroner_report::wire::{ReplacedImage, SectionKind, SymbolName};

use super::{SectionResult, write_fault};
use crate::limits::MAX_SYMBOLS;
use crate::os::symbol_source::Source;
use crate::recrash::RECRASH;
use crate::run::ReportWriter;
use crate::session::{CrashSession, guarded, memory};
use crate::workspace::symbol_names::Names;

/// Time in nanoseconds after which no further image is begun: the app's user is waiting for the
/// end.
const TIME_LIMIT_NS: u64 = 500_000_000;

/// Writes the names, one section per image: for all images if the app requests them, otherwise for
/// those whose files were replaced while the process ran, since the file at their path can't name
/// them later.
///
/// Not inlined, so that `xtask signal-safety` can identify its loop by name.
#[inline(never)]
pub(crate) fn write_all(session: &mut CrashSession<'_>) {
    let until = monotonic_now().saturating_add(TIME_LIMIT_NS);
    let mut first = 0_usize;
    while !RECRASH.is_expired() && monotonic_now() < until {
        // Resources that are open when the section is left because of a fault are released here.
        let mut source = Source::NONE;
        let mut more = true;
        let left = left(session);
        let whole = guarded(session, SectionKind::SYMBOL_NAMES, None, |session| {
            more = name_an_image(session, &mut first, &mut source) != SectionResult::Empty;
        });
        source.close();
        write_fault(session);
        // A fault before any address was taken would recur, and fill the report with faults.
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

/// Writes which images' files were replaced.
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

/// Returns the number of addresses that are still to be looked up.
fn left(session: &CrashSession<'_>) -> u64 {
    session.workspace.names.as_ref().map_or(0, |names| names.addresses.left())
}

/// Names the addresses in the image that contains the first one which wasn't looked up yet. Returns
/// `Empty` if there is none.
///
/// Addresses count as looked up before anything is read for them: if that faults, the next ones are
/// tried.
fn name_an_image(session: &mut CrashSession<'_>, first: &mut usize, source: &mut Source) -> SectionResult {
    let workspace = &mut *session.workspace;
    let Some(images) = &workspace.images else { return SectionResult::Empty };
    let Some(names) = &mut workspace.names else { return SectionResult::Empty };
    // Code that a compiler generated has its symbols in a file that only this process has.
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

/// Returns the image that contains an address. A separate function: the loop around it would
/// otherwise keep the address of the search in a register, and `cargo xtask signal-safety` can't
/// follow a call through a register.
#[inline(never)]
fn image_at(images: &coroner_walk::ImageList, address: u64) -> Option<&coroner_process::images::Image> {
    images.find(address)
}

/// Same as [`image_at`], for code that a compiler registered.
#[inline(never)]
fn jit_code_at(images: &coroner_walk::ImageList, address: u64) -> Option<coroner_walk::JitCode> {
    images.jit_code(address)
}
