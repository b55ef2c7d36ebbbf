//! The allocation-free scan finds the same names as the tables at the next launch, and takes
//! bounded time on malicious files.

use std::collections::HashMap;

use crate::common::{Random, fixture};
use coroner_process::memory::{Memory, Snapshot, SnapshotRange, Unreadable};
use coroner_process::symtab::{Extent, NameScan};
use coroner_symbols::{LookupAddress, SymbolFile};
use object::{Object as _, ObjectSection as _};

const AT: u64 = 0x7000_0000;

/// Returns the scan's results: name and start for each address that has one.
fn scan_elf(bytes: &[u8], addresses: &[u64], build_id: Option<&[u8]>) -> HashMap<u64, (String, u64)> {
    let ranges = [SnapshotRange { address: AT, bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    let file = Extent { address: AT, size: bytes.len() as u64 };
    let mut found = HashMap::new();
    let mut scan = Box::new(NameScan::<256>::new());
    for part in addresses.chunks(256) {
        scan.clear();
        for (tag, &address) in part.iter().enumerate() {
            assert!(scan.push(LookupAddress::of_instruction(address), tag as u32));
        }
        scan.elf_file(&mut memory, file, build_id, u32::MAX).unwrap();
        scan.for_each_name(&mut memory, &mut [0; 4096], |named| {
            let name = String::from_utf8(named.name.to_vec()).unwrap();
            found.insert(part[named.tag as usize], (name, named.symbol_svma));
        });
    }
    found
}

#[cfg(target_os = "linux")]
#[test]
fn an_elf_scan_agrees_with_the_index() {
    let path = std::env::current_exe().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = &SymbolFile::open(&path).unwrap()[0];
    let mut random = Random::new(3);
    // Code only: in data the scan also finds assembly labels, the index only data symbols.
    let parsed = object::File::parse(&*bytes).unwrap();
    let is_code = |section: &object::Section<'_, '_>| section.kind() == object::SectionKind::Text;
    let code: Vec<(u64, u64)> = parsed.sections().filter(is_code).map(|text| (text.address(), text.size())).collect();
    let size: u64 = code.iter().map(|(_, size)| size).sum();
    let addresses: Vec<u64> = (0..4000)
        .map(|_| {
            let mut offset = random.below(size);
            let section = code.iter().find(|(_, size)| {
                offset < *size || {
                    offset -= size;
                    false
                }
            });
            section.unwrap().0 + offset
        })
        .collect();
    let found = scan_elf(&bytes, &addresses, file.debug_id().map(coroner_symbols::DebugId::as_bytes));
    let mut named = 0;
    for &address in &addresses {
        let index = file.symbol(LookupAddress::of_instruction(address));
        let scanned = found.get(&address).cloned();
        named += usize::from(scanned.is_some());
        match (index, scanned) {
            // If an address has several names, the two may choose different ones of the same
            // symbol.
            (Some((_, start)), Some((_, scanned_start))) => assert_eq!(start, scanned_start, "{address:#x}"),
            // The index also contains data, PLT stubs and dynamic symbols.
            (Some(_) | None, None) => {}
            (None, Some(scanned)) => panic!("{address:#x}: only the scan finds {scanned:?}"),
        }
    }
    assert!(named > 500, "only {named} of {} addresses were named", addresses.len());
}

#[cfg(target_os = "linux")]
#[test]
fn exports_are_named_in_a_loaded_image() {
    // This process's C library, as mapped.
    let address = libc_function() as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let images: Vec<(u64, u64, &str)> = maps
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let path = words.nth(4)?;
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, path))
        })
        .collect();
    let path = images.iter().find(|&&(start, end, _)| (start..end).contains(&address)).unwrap().2;
    let start = images.iter().filter(|image| image.2 == path).map(|image| image.0).min().unwrap();
    let end = images.iter().filter(|image| image.2 == path).map(|image| image.1).max().unwrap();
    let mut memory = coroner_process::memory::KernelCopy::new().unwrap();
    let image = coroner_process::symtab::ElfLoaded { load_address: start, slide: start, size: end - start };
    let mut scan = Box::new(NameScan::<4>::new());
    scan.push(LookupAddress::of_return_address(address - start + 3), 0);
    scan.elf_loaded(&mut memory, image, 100_000).unwrap();
    let mut names = vec![];
    scan.for_each_name(&mut memory, &mut [0; 64], |named| {
        names.push((String::from_utf8(named.name.to_vec()).unwrap(), named.symbol_svma));
    });
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].1, address - start);
    assert!(names[0].0.contains("qsort"), "{names:?}");
}

#[cfg(target_os = "linux")]
fn libc_function() -> usize {
    unsafe extern "C" {
        fn qsort(base: *mut u8, count: usize, size: usize, compare: usize);
    }
    qsort as *const () as usize
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_from_another_build_is_refused() {
    let bytes = std::fs::read(fixture("cpp.elf")).unwrap();
    let ranges = [SnapshotRange { address: AT, bytes: &bytes }];
    let mut memory = Snapshot { ranges: &ranges };
    let file = Extent { address: AT, size: bytes.len() as u64 };
    let mut scan = Box::new(NameScan::<4>::new());
    scan.push(LookupAddress::of_instruction(0x1941), 0);
    let error = scan.elf_file(&mut memory, file, Some(&[1; 20]), u32::MAX).unwrap_err();
    assert_eq!(error.problem, coroner_process::symtab::Problem::OtherId);
    let mut names = 0;
    scan.for_each_name(&mut memory, &mut [0; 64], |_| names += 1);
    assert_eq!(names, 0, "a file from another build is not used");
}

/// Memory with unreadable pages, like a file that was truncated after it was mapped.
struct Holes<'a> {
    bytes: &'a [u8],
    unreadable: std::ops::Range<u64>,
    reads: usize,
}

impl Memory for Holes<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.reads += 1;
        let end = address + into.len() as u64;
        if address < self.unreadable.end && end > self.unreadable.start {
            return Err(Unreadable { address });
        }
        let at = (address - AT) as usize;
        into.copy_from_slice(self.bytes.get(at..at + into.len()).ok_or(Unreadable { address })?);
        Ok(())
    }
}

#[test]
fn damaged_files_cause_errors_and_bounded_work() {
    let original = std::fs::read(fixture("cpp.elf")).unwrap();
    let mut random = Random::new(11);
    let mut scan = Box::new(NameScan::<64>::new());
    for round in 0..3000 {
        let mut bytes = original.clone();
        let mut unreadable = 0..0;
        match round % 3 {
            0 => bytes.truncate(random.below(original.len() as u64) as usize),
            1 => {
                for _ in 0..=random.below(20) {
                    // A changed byte has the greatest effect in the header and in the section
                    // headers at the end.
                    let at = match random.below(3) {
                        0 => random.below(64),
                        1 => original.len() as u64 - 1 - random.below(2048),
                        _ => random.below(original.len() as u64),
                    };
                    bytes[at as usize] = random.next() as u8;
                }
            }
            _ => {
                let page = AT + (random.below(original.len() as u64) & !0xfff);
                unreadable = page..page + 0x1000;
            }
        }
        let size = bytes.len() as u64;
        let mut memory = Holes { bytes: &bytes, unreadable, reads: 0 };
        scan.clear();
        for tag in 0..64 {
            scan.push(LookupAddress::of_instruction(random.below(0x4000)), tag);
        }
        let _ = scan.elf_file(&mut memory, Extent { address: AT, size }, None, 10_000);
        scan.for_each_name(&mut memory, &mut [0; 128], |named| assert!(named.name.len() <= 128));
        assert!(memory.reads < 60_000, "{} reads in round {round}", memory.reads);
    }
}
