//! Symbol files of every format: whole files, as the next launch reads them, and the scan that
//! names addresses at crash time.

use std::path::Path;

use coroner_process::symtab::{ElfLoaded, Extent, MachO, NameScan, Placement};
use coroner_symbols::{LookupAddress, SymbolFile, demangle};

use crate::case::Ranges;

/// Makes every query that a symbol file supports. An error must report its offset.
fn exercise(input: &[u8]) {
    let files = match SymbolFile::from_bytes(Path::new("input"), input.to_vec()) {
        Ok(files) => files,
        Err(error) => {
            assert!(error.offset().is_some_and(|offset| offset <= input.len() as u64), "{error}");
            return;
        }
    };
    for file in &files {
        let _ = (file.can_name(), file.sources(), file.has_lines());
        // Addresses that are inside small images.
        let mut address = 0x40;
        if input.len().is_multiple_of(2) {
            let all: Vec<_> = (0..24).map(|index| LookupAddress::of_return_address(address + index * 0x97)).collect();
            file.look_up(&all);
        }
        for _ in 0..24 {
            let lookup = LookupAddress::of_return_address(address);
            let first = file.calls(lookup);
            assert_eq!(first, file.calls(lookup), "different answers for the same address");
            if let Some((_, start)) = file.linker_symbol(lookup) {
                assert!(start < address, "the symbol starts after the address");
            }
            variables(file, address);
            address += 0x97;
        }
        let _ = file.take_problems();
    }
}

/// Queries debug information for the function at an address: its variables, and the parts of each
/// one's type.
fn variables(file: &SymbolFile, address: u64) {
    let _ = file.function_extent(address);
    let Some(function) = file.variables(address) else { return };
    for variable in function.variables.iter().take(32) {
        let _ = variable.places_at(address).count();
        let Some(type_id) = variable.type_id else { continue };
        let _ = (file.size_of(type_id), file.part(type_id, 0, None), file.part(type_id, 8, Some(8)));
        if let Some(pointee) = file.pointee(type_id) {
            let _ = (file.size_of(pointee.type_id), file.part(pointee.type_id, 16, Some(4)));
        }
    }
}

/// An ELF file: symbol tables, PLT, mini debug info.
pub fn elf_file(input: &[u8]) {
    if input.starts_with(b"\x7fELF") {
        exercise(input);
    }
}

/// An ELF or Mach-O file with DWARF.
pub fn dwarf(input: &[u8]) {
    exercise(input);
}

/// A Mach-O file, thin or fat: nlist, function starts, export trie, Objective-C metadata.
pub fn macho_file(input: &[u8]) {
    if !input.starts_with(b"\x7fELF") && !input.starts_with(b"MODULE") {
        exercise(input);
    }
}

/// A Breakpad symbol file without its first line.
pub fn breakpad(input: &[u8]) {
    let mut text = b"MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\n".to_vec();
    text.extend_from_slice(input);
    exercise(&text);
}

/// Names to demangle, one a line.
pub fn demangling(input: &[u8]) {
    for line in String::from_utf8_lossy(input).lines().take(64) {
        let name = demangle(line).name;
        assert!(name.len() <= line.len().max(64 << 10), "a name of {} bytes of {}", name.len(), line.len());
    }
}

/// Address of the scan's input.
const AT: u64 = 0x1000;

fn scan(input: &[u8], run: impl Fn(&mut NameScan<32>, &mut Ranges<'_>)) {
    let ranges = [(AT, input)];
    let mut memory = Ranges(&ranges);
    let mut scan = Box::new(NameScan::<32>::new());
    for tag in 0..32 {
        scan.push(LookupAddress::of_instruction(u64::from(tag) * 0x97), tag);
    }
    run(&mut scan, &mut memory);
    scan.for_each_name(&mut memory, &mut [0; 64], |named| {
        assert!(named.tag < 32 && !named.name.is_empty() && named.name.len() <= 64);
        assert!(named.symbol_svma <= u64::from(named.tag) * 0x97, "the symbol starts after the address");
    });
}

/// The crash-time scan of an ELF file and of the same bytes as a loaded image.
pub fn scan_elf(input: &[u8]) {
    let size = input.len() as u64;
    scan(input, |scan, memory| {
        let _ = scan.elf_file(memory, Extent { address: AT, size }, None, 10_000);
    });
    scan(input, |scan, memory| {
        let _ = scan.elf_loaded(memory, ElfLoaded { load_address: AT, slide: AT, size }, 10_000);
    });
}

/// The crash-time scan of a Mach-O file and of the same bytes as a loaded image.
pub fn scan_macho(input: &[u8]) {
    for placement in [Placement::File { size: input.len() as u64 }, Placement::Loaded] {
        scan(input, |scan, memory| {
            if let Ok(image) = MachO::read(memory, AT, placement) {
                let _ = scan.macho(memory, &image, 10_000);
            }
        });
    }
}
