//! dyld's functions: images, symbols by name and by address, unwind sections.
//!
//! Sources: <mach-o/dyld.h>, <dlfcn.h>; dyld's `_dyld_find_unwind_sections` as LLVM's libunwind
//! declares it (AddressSpace.hpp).

use std::{
    ffi::{CStr, CString, c_char},
    ptr,
    sync::Mutex,
};

use crate::host::{
    kernel::{ending::refuse, pages},
    loader::{self, images, synthetic},
};

extern "C" fn image_count() -> u32 {
    loader::with(|l| l.images.len() as u32)
}

extern "C" fn image_header(index: u32) -> usize {
    loader::with(|l| l.images.get(index as usize).map_or(0, |i| i.header))
}

extern "C" fn image_slide(index: u32) -> usize {
    loader::with(|l| l.images.get(index as usize).map_or(0, |i| i.slide))
}

extern "C" fn image_name(index: u32) -> *const c_char {
    loader::with(|l| l.images.get(index as usize).map_or(ptr::null(), |i| i.path.as_ptr()))
}

extern "C" fn on_add(function: usize) {
    images::on_add(function);
}

extern "C" fn on_remove(function: usize) {
    images::on_remove(function);
}

/// `_NSGetExecutablePath`: returns -1 and the required size if the buffer is too small.
extern "C" fn executable_path(to: *mut c_char, size: &mut u32) -> i32 {
    loader::with(|l| {
        let path = l.images[0].path.to_bytes_with_nul();
        if (*size as usize) < path.len() {
            *size = path.len() as u32;
            return -1;
        }
        // SAFETY: the program gave room for `size` bytes.
        unsafe { ptr::copy_nonoverlapping(path.as_ptr().cast(), to, path.len()) };
        0
    })
}

/// `struct dyld_unwind_sections`.
#[repr(C)]
struct UnwindSections {
    header: usize,
    dwarf: (usize, usize),
    compact: (usize, usize),
}

extern "C" fn find_unwind_sections(address: usize, to: &mut UnwindSections) -> bool {
    loader::with(|l| {
        let Some(image) = l.images.iter().find(|i| (i.text.0..i.text.1).contains(&address)) else { return false };
        *to = UnwindSections {
            header: image.header,
            dwarf: image.section("__TEXT", "__eh_frame"),
            compact: image.section("__TEXT", "__unwind_info"),
        };
        true
    })
}

/// `getsectiondata` (<mach-o/getsect.h>).
///
/// Names are fields of sixteen bytes, zero-terminated when shorter.
extern "C" fn getsectiondata(header: usize, segment: *const c_char, section: *const c_char, size: *mut usize) -> usize {
    // SAFETY: the program gave strings.
    let name = |text: *const c_char| unsafe {
        let length = libc::strnlen(text, 16);
        String::from_utf8_lossy(std::slice::from_raw_parts(text.cast::<u8>(), length)).into_owned()
    };
    let (segment, section) = (name(segment), name(section));
    let (start, length) = loader::with(|l| {
        l.images.iter().find(|i| i.header == header).map_or((0, 0), |i| i.section(&segment, &section))
    });
    // SAFETY: the program gave the address.
    unsafe { size.write(length) };
    start
}

/// `_dyld_get_shared_cache_range` and `…_uuid` (dyld_priv.h): no shared cache exists.
extern "C" fn shared_cache_range(size: &mut usize) -> usize {
    *size = 0;
    0
}

extern "C" fn shared_cache_uuid(_uuid: *mut u8) -> bool {
    false
}

/// `Dl_info`.
#[repr(C)]
struct Info {
    path: *const c_char,
    base: usize,
    symbol: *const c_char,
    address: usize,
}

/// `dladdr`: the image, and the symbol that starts at or before the address.
extern "C" fn dladdr(address: usize, to: &mut Info) -> i32 {
    loader::with(|l| {
        let Some(image) = l.images.iter().find(|i| (i.range.0..i.range.1).contains(&address)) else { return 0 };
        // N_STAB entries (0xe0) are for debuggers; N_SECT is 0xe.
        let symbols = image.symbols().filter(|&(_, kind, at)| kind & 0xe0 == 0 && kind & 0xe == 0xe && at <= address);
        let best = symbols.max_by_key(|&(_, _, at)| at);
        *to = Info {
            path: image.path.as_ptr(),
            base: image.header,
            // The name lies in the image's string table, zero-terminated; Darwin's underscore is
            // dropped.
            symbol: best.map_or(ptr::null(), |(name, ..)| name.strip_prefix('_').unwrap_or(name).as_ptr().cast()),
            address: best.map_or(0, |(_, _, at)| at),
        };
        1
    })
}

/// The last failure, for `dlerror`.
///
/// It is shared by all threads: programs in which loads fail on two threads at once are not
/// supported.
static FAILURE: Mutex<Option<CString>> = Mutex::new(None);

fn failed(message: String) {
    if let Ok(mut failure) = FAILURE.lock() {
        *failure = CString::new(message).ok();
    }
}

/// `dlsym`: RTLD_NEXT -1, RTLD_DEFAULT -2, RTLD_SELF -3, RTLD_MAIN_ONLY -5.
///
/// Other handles are an image's header, from `dlopen`.
extern "C" fn dlsym(handle: isize, name: *const c_char) -> usize {
    // SAFETY: the program gave a string.
    let name = format!("_{}", unsafe { CStr::from_ptr(name) }.to_string_lossy());
    let found = loader::with(|l| match handle {
        -1 => l.find_next(&name),
        -3 | -2 => l.find(&name),
        -5 => l.images[0].export(&name),
        header => match l.images.iter().find(|i| i.header == header as usize) {
            Some(image) if image.path.to_bytes() == synthetic::PATH.as_bytes() => l.find(&name),
            Some(image) => image.export(&name),
            None => None,
        },
    });
    if found.is_none() {
        failed(format!("dlsym({handle:#x}, {}): symbol not found", &name[1..]));
    }
    found.unwrap_or(0)
}

/// `dlopen`: opens a Mach-O file by path or install name; null means the program itself.
///
/// System libraries are the host's.
extern "C" fn dlopen(path: *const c_char, _mode: i32) -> usize {
    if path.is_null() {
        return image_header(0);
    }
    // SAFETY: the program gave a string.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
    if path.starts_with("/usr/lib/libSystem") || path.starts_with("/usr/lib/system/") {
        return loader::with(|l| {
            l.images.iter().find(|i| i.path.to_bytes() == synthetic::PATH.as_bytes()).map_or(0, |i| i.header)
        });
    }
    let loaded = loader::with(|l| {
        let before = l.images.len();
        let file = l.locate(&path).ok_or_else(|| "image not found".to_owned())?;
        let index = l.load(&file)?;
        let new: Vec<_> = l.images[before.min(index)..].iter().map(|i| (i.header, i.slide)).collect();
        let new = if l.images.len() > before { new } else { Vec::new() };
        l.publish();
        Ok::<_, String>((l.images[index].header, new))
    });
    match loaded {
        Ok((header, new)) => {
            images::notify(false, &new);
            loader::initialise([0; 4]);
            header
        }
        Err(message) => {
            failed(format!("dlopen({path}): {message}"));
            0
        }
    }
}

/// `dlclose`: the last reference unloads the image and unmaps its memory.
extern "C" fn dlclose(handle: usize) -> i32 {
    let gone = loader::with(|l| {
        let index = l.images.iter().position(|i| i.header == handle)?;
        let image = &mut *l.images[index];
        image.references = image.references.saturating_sub(1);
        // An image stays loaded if it has thread-local variables, is the main program, or was
        // loaded initially.
        if image.references > 0 || index == 0 || image.has_thread_locals() {
            return None;
        }
        let image = l.images.remove(index);
        l.publish();
        Some((image.header, image.slide, image.range))
    });
    if let Some((header, slide, range)) = gone {
        images::notify(true, &[(header, slide)]);
        // SAFETY: the image was removed from every table, and the program no longer uses it.
        unsafe { libc::munmap(range.0 as *mut libc::c_void, pages::round(range.1 - range.0)) };
    }
    0
}

/// `dlerror`: the text is leaked, because there are few failures and nothing else would free it.
extern "C" fn dlerror() -> *const c_char {
    match FAILURE.lock().ok().and_then(|mut failure| failure.take()) {
        Some(text) => text.into_raw(),
        None => ptr::null(),
    }
}

/// `__tlv_bootstrap` is in descriptors before the loader prepares them; it must not be called then.
extern "C" fn tlv_bootstrap(descriptor: usize) {
    refuse!("the thread-local variable at {descriptor:#x}, before its image was bound");
}

/// `_availability_version_check`: all versions up to macOS 11.0 are available.
///
/// Entries: platform, version.
extern "C" fn availability_version_check(count: u32, versions: *const [u32; 2]) -> bool {
    // SAFETY: the program gave `count` entries.
    (0..count as usize).all(|index| unsafe { versions.add(index).read() }[1] <= 0x000b_0000)
}

super::exports! {
    "_dyld_image_count" => image_count,
    "_dyld_get_image_header" => image_header,
    "_dyld_get_image_vmaddr_slide" => image_slide,
    "_dyld_get_image_name" => image_name,
    "_dyld_register_func_for_add_image" => on_add,
    "_dyld_register_func_for_remove_image" => on_remove,
    "_dyld_find_unwind_sections" => find_unwind_sections,
    "_dyld_get_shared_cache_range" => shared_cache_range,
    "_dyld_get_shared_cache_uuid" => shared_cache_uuid,
    "getsectiondata" => getsectiondata,
    "_NSGetExecutablePath" => executable_path,
    "dladdr" => dladdr,
    "dlsym" => dlsym,
    "dlopen" => dlopen,
    "dlclose" => dlclose,
    "dlerror" => dlerror,
    "_tlv_bootstrap" => tlv_bootstrap,
    "_availability_version_check" => availability_version_check,
}
