//! Local symbols in a synthetic dyld shared cache.

use std::path::Path;

use coroner_symbols::{Arch, DebugId, FileKind, ImageKey, LookupAddress, Match, Options, Symbolizer};

/// Creates a cache with two images, of which the second has two local symbols, inside the cache or
/// in a separate file.
fn build_cache(wide: bool) -> (Vec<u8>, Vec<u8>) {
    let mappings = if wide { 0x200u32 } else { 0x100 };
    let mut cache = vec![0; mappings as usize];
    cache[..15].copy_from_slice(b"dyld_v1  arm64e");
    cache[16..20].copy_from_slice(&mappings.to_le_bytes());
    cache[20..24].copy_from_slice(&1u32.to_le_bytes());
    cache.extend(0x1_8000_0000u64.to_le_bytes());
    cache.extend([0; 24]);
    let images = cache.len() as u64;
    cache[136..144].copy_from_slice(&images.to_le_bytes());
    cache[144..152].copy_from_slice(&2u64.to_le_bytes());
    for (uuid, address) in [([1u8; 16], 0x1_8000_4000u64), ([2; 16], 0x1_8000_8000)] {
        cache.extend(uuid);
        cache.extend(address.to_le_bytes());
        cache.extend([0; 8]);
    }
    let strings = b"\0_first_local\0__ZL6secondv\0";
    let mut chunk: Vec<u8> = vec![];
    let nlists = 24u32;
    let entries = nlists + 3 * 16 + strings.len() as u32;
    for field in [nlists, 3, nlists + 48, strings.len() as u32, entries, 1] {
        chunk.extend(field.to_le_bytes());
    }
    for (name, kind, value) in [(1u32, 0x0eu8, 0x1_8000_9000u64), (14, 0x0e, 0x1_8000_9100), (1, 0x64, 7)] {
        chunk.extend(name.to_le_bytes());
        chunk.extend([kind, 1, 0, 0]);
        chunk.extend(value.to_le_bytes());
    }
    chunk.extend(strings);
    if wide {
        chunk.extend(0x8000u64.to_le_bytes());
    } else {
        chunk.extend(0x8000u32.to_le_bytes());
    }
    chunk.extend([0u32, 3].iter().flat_map(|field| field.to_le_bytes()));
    let mut symbols = if wide { cache[..mappings as usize].to_vec() } else { cache.clone() };
    let at = symbols.len() as u64;
    symbols[72..80].copy_from_slice(&at.to_le_bytes());
    symbols[80..88].copy_from_slice(&(chunk.len() as u64).to_le_bytes());
    symbols.extend(chunk);
    if wide { (cache, symbols) } else { (symbols, vec![]) }
}

fn key(id: [u8; 16]) -> ImageKey {
    ImageKey {
        path: "/usr/lib/libobjc.A.dylib".into(),
        debug_id: DebugId::new(&id),
        kind: FileKind::MachO,
        arch: Arch::Aarch64,
        base_svma: 0x1_8000_8000,
        replaced: false,
    }
}

fn symbolizer(folder: &Path) -> Symbolizer {
    Symbolizer::new(Options { search: vec![folder.into()], ..Options::default() })
}

/// Returns the function at an address in the image with that id.
fn named(symbolizer: &mut Symbolizer, id: [u8; 16], svma: u64) -> Option<String> {
    symbolizer.symbolicate(&key(id), LookupAddress::of_return_address(svma + 1)).pop()?.function
}

#[test]
fn local_symbols_are_found_by_image() {
    for wide in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (cache, symbols) = build_cache(wide);
        std::fs::write(folder.path().join("dyld_shared_cache_arm64e"), &cache).unwrap();
        if wide {
            std::fs::write(folder.path().join("dyld_shared_cache_arm64e.symbols"), symbols).unwrap();
        }
        let mut symbolizer = symbolizer(folder.path());
        assert_eq!(named(&mut symbolizer, [2; 16], 0x1_8000_90ff).as_deref(), Some("first_local"));
        assert_eq!(named(&mut symbolizer, [2; 16], 0x1_8000_9100).as_deref(), Some("second()"));
        assert_eq!(named(&mut symbolizer, [1; 16], 0x1_8000_9100), None, "an image without an entry");
        assert_eq!(symbolizer.status(&key([2; 16])).matched, Match::Matched);
        assert_eq!(symbolizer.status(&key([1; 16])).matched, Match::NoSymbols);
        assert_eq!(symbolizer.status(&key([3; 16])).matched, Match::Missing);
    }
}

/// Returns whether a cache with these bytes names the address, and whether it has errors.
fn read(folder: &Path, bytes: &[u8]) -> (bool, bool) {
    std::fs::write(folder.join("cache"), bytes).unwrap();
    let mut symbolizer = symbolizer(folder);
    let found = named(&mut symbolizer, [2; 16], 0x1_8000_9100).is_some();
    let problems = !symbolizer.search_problems().is_empty() || !symbolizer.status(&key([2; 16])).problems.is_empty();
    (found, problems)
}

#[test]
fn truncated_and_damaged_caches_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, _) = build_cache(false);
    assert_eq!(read(folder.path(), &whole), (true, false));
    for length in 8..whole.len() {
        assert_eq!(read(folder.path(), &whole[..length]), (false, true), "truncated to {length} of {}", whole.len());
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        read(folder.path(), &bytes);
    }
}
