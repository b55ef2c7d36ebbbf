//! Redirects calls of `__cxa_throw` from images that a definition can't affect, by rewriting their
//! symbol pointers (Darwin).
//!
//! In a Mach-O image a call into another one goes through the image's own pointer (`__got`,
//! `__la_symbol_ptr`), which dyld binds to the library that the linker recorded, whoever else
//! defines the name. So each image's pointers to the runtime's `__cxa_throw` and `__cxa_rethrow`
//! are changed to Coroner's: those of the loaded images and, through dyld's callback, of later
//! ones.
//!
//! * By value: a pointer that contains the address of the runtime's function, in a section of
//!   symbol pointers. This is correct whatever symbols were stripped, and leaves an image alone
//!   that is bound to its own runtime.
//! * By name: if a lazy pointer is not bound yet (it points to the image's own stub helper) and the
//!   library that it would be bound to is the system's.
//! * Images of the shared cache are never written (`MH_DYLIB_IN_CACHE`): their pointers are not
//!   their own.
//! * A page that is not writable (`__DATA_CONST`) is made writable and restored.
//! * Under a sanitizer, whose own definitions must be called, nothing is rewritten.
//!
//! Pointers stay rewritten after an uninstall: Coroner's functions continue in the runtime's.
//!
//! Formats: <mach-o/loader.h>, <mach-o/nlist.h>.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use coroner_process::images::Mappings;

/// A function whose calls are redirected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    /// Name in symbol tables.
    pub name: &'static CStr,
    /// Address of the runtime's own function; 0 while there is none.
    pub original: usize,
    /// Address of Coroner's function.
    pub ours: usize,
}

/// Looks the functions up. Not async-signal-safe; may run inside dyld's callback.
pub(super) type LookUp = fn() -> [Function; 2];

const MH_MAGIC_64: u32 = 0xfeed_facf;
/// The image is part of the shared cache.
const MH_DYLIB_IN_CACHE: u32 = 0x8000_0000;
const LC_SYMTAB: u32 = 0x2;
const LC_DYSYMTAB: u32 = 0xb;
const LC_SEGMENT_64: u32 = 0x19;
const LC_LOAD_DYLIB: u32 = 0xc;
/// `LC_LOAD_WEAK_DYLIB`, `LC_REEXPORT_DYLIB`, `LC_LAZY_LOAD_DYLIB`, `LC_LOAD_UPWARD_DYLIB`: these
/// are also counted as ordinals.
const OTHER_DYLIBS: [u32; 4] = [0x8000_0018, 0x8000_001f, 0x20, 0x8000_0023];
const S_NON_LAZY_SYMBOL_POINTERS: u32 = 6;
const S_LAZY_SYMBOL_POINTERS: u32 = 7;
/// `INDIRECT_SYMBOL_LOCAL` and `INDIRECT_SYMBOL_ABS`.
const NO_SYMBOL: u32 = 0xc000_0000;

/// Whether dyld's callback is registered; it can't be unregistered.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// Address of the [`LookUp`].
static LOOK_UP: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    /// From <mach-o/dyld.h>. The callback is called for all loaded images, and for each later one.
    fn _dyld_register_func_for_add_image(function: extern "C" fn(*const c_void, isize));
}

/// Redirects the calls of all images from now on (not async-signal-safe).
pub(super) fn begin(look_up: LookUp) {
    if is_sanitized() {
        return;
    }
    LOOK_UP.store(look_up as usize, Ordering::Release);
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the callback only does what callbacks may.
        unsafe { _dyld_register_func_for_add_image(added) };
    }
}

/// Whether the program runs with a sanitizer that interposes `__cxa_throw` itself.
fn is_sanitized() -> bool {
    [c"__asan_init", c"__tsan_init", c"__hwasan_init"].iter().any(|name| {
        // SAFETY: a NUL-terminated name.
        !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null()
    })
}

/// dyld's callback. (If the C++ runtime comes with an image, it was loaded before dyld reports that
/// image.)
extern "C" fn added(header: *const c_void, slide: isize) {
    let look_up = LOOK_UP.load(Ordering::Acquire);
    if look_up == 0 {
        return;
    }
    // SAFETY: what `begin` stored.
    let functions = unsafe { core::mem::transmute::<usize, LookUp>(look_up) }();
    // SAFETY: an image that dyld has loaded and bound, and that stays while its callback runs.
    if let Some(image) = unsafe { Image::read(header as u64, slide as u64) } {
        // SAFETY: as above.
        unsafe { image.rewrite(&functions) };
    }
    // The image may have brought the runtime with it.
    crate::take_terminate_handler();
}

/// Addresses in memory of the required parts of an image.
#[derive(Debug, Default)]
struct Image {
    /// Range of the load commands.
    commands: (u64, u64),
    slide: u64,
    /// Base to which a file offset in `__LINKEDIT` is added.
    linkedit: u64,
    symbols: u64,
    strings: u64,
    indirect: (u64, u32),
    /// Range of the image's code, with the stub helper.
    text: (u64, u64),
}

/// # Safety
/// `at` must point to four readable bytes.
unsafe fn word(at: u64) -> u32 {
    // SAFETY: by the contract.
    unsafe { (at as *const u32).read_unaligned() }
}

/// # Safety
/// `at` must point to eight readable bytes.
unsafe fn long(at: u64) -> u64 {
    // SAFETY: by the contract.
    unsafe { (at as *const u64).read_unaligned() }
}

impl Image {
    /// Calls `each` with the number and address of every load command.
    ///
    /// # Safety
    /// The image must be loaded.
    unsafe fn each_command(&self, each: &mut impl FnMut(u32, u64)) {
        let (mut at, end) = self.commands;
        while at + 8 <= end {
            // SAFETY: within the load commands.
            let (command, size) = unsafe { (word(at), u64::from(word(at + 4))) };
            if size < 8 || at + size > end {
                return;
            }
            each(command, at);
            at += size;
        }
    }

    /// Reads an image. Returns `None` if there is nothing to write: it is in the shared cache, or
    /// has no tables.
    ///
    /// # Safety
    /// The image must be loaded.
    unsafe fn read(header: u64, slide: u64) -> Option<Image> {
        // SAFETY: by the contract, here and below.
        let (magic, size, flags) = unsafe { (word(header), word(header + 20), word(header + 24)) };
        if magic != MH_MAGIC_64 || flags & MH_DYLIB_IN_CACHE != 0 {
            return None;
        }
        let mut image = Image { commands: (header + 32, header + 32 + u64::from(size)), slide, ..Image::default() };
        let (mut symbols, mut strings, mut indirect) = (0, 0, (0, 0));
        let (mut linkedit, mut text) = (0, (0, 0));
        // SAFETY: `segment_command_64`, `symtab_command` and `dysymtab_command` are as long as is
        // read of them.
        unsafe {
            image.each_command(&mut |command, at| match command {
                LC_SEGMENT_64 => {
                    let start = long(at + 24).wrapping_add(slide);
                    match name_of(at + 8) {
                        b"__LINKEDIT" => linkedit = start.wrapping_sub(long(at + 40)),
                        b"__TEXT" => text = (start, start.wrapping_add(long(at + 32))),
                        _ => {}
                    }
                }
                LC_SYMTAB => (symbols, strings) = (word(at + 8), word(at + 16)),
                LC_DYSYMTAB => indirect = (word(at + 56), word(at + 60)),
                _ => {}
            });
        }
        let place = |offset: u32| linkedit.wrapping_add(offset.into());
        (image.linkedit, image.text) = (linkedit, text);
        if linkedit != 0 && symbols != 0 {
            (image.symbols, image.strings) = (place(symbols), place(strings));
            image.indirect = (place(indirect.0), indirect.1);
        }
        Some(image)
    }

    /// # Safety
    /// The image must be loaded.
    unsafe fn rewrite(&self, functions: &[Function; 2]) {
        // SAFETY: `segment_command_64`, and the `section_64`s that it counts.
        unsafe {
            self.each_command(&mut |command, at| {
                if command != LC_SEGMENT_64 || !name_of(at + 8).starts_with(b"__DATA") {
                    return;
                }
                for section in (0..u64::from(word(at + 64))).map(|index| at + 72 + 80 * index) {
                    let kind = word(section + 64) & 0xff;
                    if kind == S_NON_LAZY_SYMBOL_POINTERS || kind == S_LAZY_SYMBOL_POINTERS {
                        self.rewrite_section(section, kind == S_LAZY_SYMBOL_POINTERS, functions);
                    }
                }
            });
        }
    }

    /// # Safety
    /// `section` must be a section of symbol pointers of a loaded image.
    unsafe fn rewrite_section(&self, section: u64, is_lazy: bool, functions: &[Function; 2]) {
        // SAFETY: a `section_64` and the pointers that it describes.
        unsafe {
            let (start, size) = (long(section + 32).wrapping_add(self.slide), long(section + 40));
            let first_symbol = word(section + 68);
            for index in 0..(size / 8) as u32 {
                let at = start + 8 * u64::from(index);
                let value = (*(at as *const AtomicUsize)).load(Ordering::Acquire);
                let by_value = functions.iter().find(|function| function.original != 0 && function.original == value);
                let is_unbound = is_lazy && (self.text.0..self.text.1).contains(&(value as u64));
                let found = match by_value {
                    None if is_unbound => self.named(first_symbol.wrapping_add(index), functions),
                    by_value => by_value,
                };
                // Without the original function, Coroner's couldn't continue.
                if let Some(function) = found.filter(|function| function.original != 0) {
                    write(at, function.ours);
                }
            }
        }
    }

    /// Returns the function that an entry of the indirect symbol table names, if it would be bound
    /// to the system's.
    ///
    /// # Safety
    /// The image must be loaded.
    unsafe fn named<'f>(&self, entry: u32, functions: &'f [Function; 2]) -> Option<&'f Function> {
        if entry >= self.indirect.1 {
            return None;
        }
        // SAFETY: within the indirect symbol table; an `nlist_64` of the symbol table, whose name
        // is in the string table.
        unsafe {
            let symbol = word(self.indirect.0 + 4 * u64::from(entry));
            if symbol & NO_SYMBOL != 0 {
                return None;
            }
            let symbol = self.symbols + 16 * u64::from(symbol);
            let name = CStr::from_ptr((self.strings + u64::from(word(symbol))) as *const core::ffi::c_char);
            let function = functions.iter().find(|function| function.name == name)?;
            // `GET_LIBRARY_ORDINAL(n_desc)`: libraries count from 1; 0xfe means any, 0xff the
            // program.
            let ordinal = word(symbol + 4) >> 24;
            let mut count = 0;
            let mut is_system = false;
            self.each_command(&mut |command, at| {
                if command == LC_LOAD_DYLIB || OTHER_DYLIBS.contains(&command) {
                    count += 1;
                    let path = CStr::from_ptr((at + u64::from(word(at + 8))) as *const core::ffi::c_char);
                    is_system |= count == ordinal && path.to_bytes().starts_with(b"/usr/lib/");
                }
            });
            is_system.then_some(function)
        }
    }
}

/// Returns a name of at most sixteen bytes; shorter ones are NUL-terminated.
///
/// # Safety
/// There must be sixteen readable bytes for as long as the image is loaded.
unsafe fn name_of<'a>(at: u64) -> &'a [u8] {
    // SAFETY: by the contract.
    let name = unsafe { core::slice::from_raw_parts(at as *const u8, 16) };
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// Writes one pointer, whose page may be read-only.
///
/// # Safety
/// `at` must be an aligned symbol pointer of a loaded image.
unsafe fn write(at: u64, value: usize) {
    // SAFETY: only asks.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let start = at & !(page - 1);
    let mapping = Mappings::open().ok().and_then(|mappings| mappings.at(at).ok().flatten());
    let Some(permissions) = mapping.map(|mapping| mapping.permissions) else { return };
    // SAFETY: the image's own page, which is made to allow one write and then what it allowed
    // before; other threads see either value of the pointer.
    unsafe {
        let pages = start as *mut c_void;
        if !permissions.write && libc::mprotect(pages, page as usize, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return;
        }
        (*(at as *const AtomicUsize)).store(value, Ordering::Release);
        if !permissions.write {
            libc::mprotect(pages, page as usize, libc::PROT_READ);
        }
    }
}
