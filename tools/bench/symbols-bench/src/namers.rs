//! The namers: ours, and common alternatives.
//!
//! Each gets a path and addresses, and starts from nothing.

use std::{fs::File, path::Path, sync::Mutex, time::Instant};

use coroner_process::memory::{Memory, Unreadable};
use coroner_process::symtab::{Extent, NameScan};
use coroner_symbols::{ImageKey, LookupAddress, Options, SymbolFile, Symbolizer};
use memmap2::Mmap;
use object::Object;
use symbolic_debuginfo::Archive;
use symbolic_symcache::{SymCache, SymCacheConverter};

use crate::counting;

/// The cost of naming, if the answers were copied for the check outside the measured time.
pub(crate) struct Spent {
    pub(crate) seconds: f64,
    pub(crate) allocations: usize,
}

/// Reports the linker's name of the address with this index.
///
/// `None` if the whole call is to be measured.
type Name = fn(&Path, &[u64], &mut dyn FnMut(usize, &str)) -> Option<Spent>;

pub(crate) struct Namer {
    pub(crate) name_of: &'static str,
    pub(crate) name: Name,
}

/// The namers that use only symbol tables.
pub(crate) fn by_symbols() -> Vec<Namer> {
    vec![
        Namer { name_of: "coroner scan", name: scan },
        Namer { name_of: "coroner scan, kernel copies", name: scan_by_kernel_copies },
        Namer { name_of: "coroner index", name: index },
        Namer { name_of: "object symbol_map", name: object_symbol_map },
        Namer { name_of: "addr2line find_symbol", name: addr2line_symbol },
        Namer { name_of: "symbolic SymCache", name: sym_cache },
        Namer { name_of: "blazesym", name: blazesym_symbols },
    ]
}

/// The namers that return file, line and inlined calls.
pub(crate) fn by_lines() -> Vec<Namer> {
    vec![
        Namer { name_of: "coroner symbolizer", name: symbolizer },
        Namer { name_of: "addr2line find_frames", name: addr2line_frames },
        Namer { name_of: "symbolic SymCache", name: sym_cache },
        Namer { name_of: "blazesym", name: blazesym_lines },
    ]
}

fn map(path: &Path) -> Mmap {
    let file = File::open(path).expect("the file opens");
    // SAFETY: nothing changes the file during the benchmark.
    unsafe { Mmap::map(&file) }.expect("the file maps")
}

/// The plain loads of a guarded load, without the signal handler that guards it.
struct PlainLoads;

impl Memory for PlainLoads {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        // SAFETY: the scan stays within its given extent, which is mapped.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

static SCAN: Mutex<NameScan<64>> = Mutex::new(NameScan::new());

fn scan(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    scan_with(&mut PlainLoads, path, addresses, each)
}

#[cfg(target_os = "linux")]
fn scan_by_kernel_copies(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let mut memory = coroner_process::memory::KernelCopy::new().expect("process_vm_readv works");
    scan_with(&mut memory, path, addresses, each)
}

fn scan_with(
    memory: &mut impl Memory,
    path: &Path,
    addresses: &[u64],
    each: &mut dyn FnMut(usize, &str),
) -> Option<Spent> {
    let (before, _) = counting::now();
    let start = Instant::now();
    let map = map(path);
    let mut scan = SCAN.lock().expect("not poisoned");
    scan.clear();
    for (tag, &address) in addresses.iter().enumerate() {
        scan.push(LookupAddress::of_instruction(address), tag as u32);
    }
    let file = Extent { address: map.as_ptr() as u64, size: map.len() as u64 };
    scan.elf_file(memory, file, None, u32::MAX).expect("a good file");
    let mut buffer = [0; 512];
    scan.for_each_name(memory, &mut buffer, |named| {
        std::hint::black_box(named.name);
    });
    let spent = Spent { seconds: start.elapsed().as_secs_f64(), allocations: counting::now().0 - before };
    // A second time, for the check.
    let mut long = vec![0; 1 << 16];
    scan.for_each_name(memory, &mut long, |named| {
        each(named.tag as usize, std::str::from_utf8(named.name).expect("a name"));
    });
    Some(spent)
}

fn index(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let file = SymbolFile::open(path).expect("a good file").remove(0);
    for (index, &address) in addresses.iter().enumerate() {
        if let Some((name, _)) = file.linker_symbol(LookupAddress::of_instruction(address)) {
            each(index, std::str::from_utf8(name).expect("a name"));
        }
    }
    None
}

fn object_symbol_map(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let map = map(path);
    let file = object::File::parse(&*map).expect("a good file");
    let symbols = file.symbol_map();
    for (index, &address) in addresses.iter().enumerate() {
        if let Some(symbol) = symbols.containing(address) {
            each(index, symbol.name());
        }
    }
    None
}

fn addr2line_symbol(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let loader = addr2line::Loader::new(path).expect("a good file");
    for (index, &address) in addresses.iter().enumerate() {
        if let Some(name) = loader.find_symbol(address) {
            each(index, name);
        }
    }
    None
}

fn addr2line_frames(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let loader = addr2line::Loader::new(path).expect("a good file");
    for (index, &address) in addresses.iter().enumerate() {
        let mut frames = loader.find_frames(address).expect("good DWARF");
        let mut outermost = None;
        while let Some(frame) = frames.next().expect("good DWARF") {
            outermost = frame.function.map(|name| name.raw_name().expect("a name").into_owned());
        }
        if let Some(name) = outermost.as_deref().or_else(|| loader.find_symbol(address)) {
            each(index, name);
        }
    }
    None
}

fn convert(path: &Path) -> Vec<u8> {
    let map = map(path);
    let archive = Archive::parse(&map).expect("a good file");
    let object = archive.objects().next().expect("an object").expect("a good object");
    let mut converter = SymCacheConverter::new();
    converter.process_object(&object).expect("good debug information");
    let mut cache = Vec::new();
    converter.serialize(&mut cache).expect("it serializes");
    cache
}

fn sym_cache(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let bytes = convert(path);
    let cache = SymCache::parse(&bytes).expect("its own format");
    for (index, &address) in addresses.iter().enumerate() {
        if let Some(outermost) = cache.lookup(address).last() {
            each(index, outermost.function().name());
        }
    }
    None
}

fn blazesym_symbols(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    blazesym_with(path, addresses, false, each)
}

fn blazesym_lines(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    blazesym_with(path, addresses, true, each)
}

fn blazesym_builder(lines: bool) -> blazesym::symbolize::Symbolizer {
    blazesym::symbolize::Symbolizer::builder()
        .enable_code_info(lines)
        .enable_inlined_fns(lines)
        .enable_demangling(false)
        .build()
}

fn blazesym_source(path: &Path, lines: bool) -> blazesym::symbolize::source::Source<'static> {
    let mut elf = blazesym::symbolize::source::Elf::new(path);
    elf.debug_syms = lines;
    blazesym::symbolize::source::Source::Elf(elf)
}

fn blazesym_with(path: &Path, addresses: &[u64], lines: bool, each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let symbolizer = blazesym_builder(lines);
    let input = blazesym::symbolize::Input::VirtOffset(addresses);
    let symbols = symbolizer.symbolize(&blazesym_source(path, lines), input).expect("a good file");
    for (index, symbol) in symbols.iter().enumerate() {
        if let Some(symbol) = symbol.as_sym() {
            each(index, &symbol.name);
        }
    }
    None
}

fn key_of(path: &Path) -> ImageKey {
    let file = SymbolFile::open(path).expect("a good file").remove(0);
    ImageKey {
        path: path.into(),
        debug_id: file.debug_id().cloned(),
        kind: file.kind(),
        arch: file.arch(),
        base_svma: 0,
        replaced: false,
    }
}

fn symbolizer(path: &Path, addresses: &[u64], each: &mut dyn FnMut(usize, &str)) -> Option<Spent> {
    let key = key_of(path);
    let mut symbolizer = Symbolizer::new(Options::default());
    let addresses: Vec<_> = addresses.iter().map(|&address| LookupAddress::of_instruction(address)).collect();
    // All addresses at once, as for blazesym.
    symbolizer.look_up(&key, &addresses);
    for (index, &address) in addresses.iter().enumerate() {
        let frames = symbolizer.symbolicate(&key, address);
        if let Some(name) = frames.last().and_then(|frame| frame.raw_name.as_deref()) {
            each(index, name);
        }
    }
    None
}

/// Looks up an address and reads its name, as any caller would. Returns whether there is one.
pub(crate) type Lookup = Box<dyn FnMut(u64) -> bool>;

fn read(name: &[u8]) -> bool {
    std::hint::black_box(name.iter().fold(0u8, |sum, byte| sum ^ byte));
    !name.is_empty()
}

/// The namers that are built once, from symbol tables only.
pub(crate) fn steady() -> Vec<(&'static str, fn(&Path) -> Lookup)> {
    vec![
        ("coroner index", |path| {
            let file = SymbolFile::open(path).expect("a good file").remove(0);
            Box::new(move |address| {
                file.linker_symbol(LookupAddress::of_instruction(address)).is_some_and(|(name, _)| read(name))
            })
        }),
        ("object symbol_map", |path| {
            // Leaked, because the map borrows; the process ends soon.
            let map: &'static Mmap = Box::leak(Box::new(map(path)));
            let symbols = object::File::parse(&**map).expect("a good file").symbol_map();
            Box::new(move |address| symbols.containing(address).is_some_and(|symbol| read(symbol.name().as_bytes())))
        }),
        ("addr2line find_symbol", |path| {
            let loader = addr2line::Loader::new(path).expect("a good file");
            Box::new(move |address| loader.find_symbol(address).is_some_and(|name| read(name.as_bytes())))
        }),
        ("symbolic SymCache", |path| {
            let bytes: &'static [u8] = Box::leak(convert(path).into_boxed_slice());
            let cache = SymCache::parse(bytes).expect("its own format");
            Box::new(move |address| {
                cache.lookup(address).last().is_some_and(|found| read(found.function().name().as_bytes()))
            })
        }),
        ("blazesym (one at a time)", |path| {
            let (symbolizer, source) = (blazesym_builder(false), blazesym_source(path, false));
            Box::new(move |address| {
                let input = blazesym::symbolize::Input::VirtOffset(address);
                symbolizer
                    .symbolize_single(&source, input)
                    .is_ok_and(|symbol| symbol.as_sym().is_some_and(|symbol| read(symbol.name.as_bytes())))
            })
        }),
    ]
}
