//! Kinds of signal handlers from before Coroner's, identified by what their images export.

use core::ffi::{CStr, c_void};

use coroner_walk::loaded_image::{self, Holder};

/// Kind of a handler, determined by its image's exports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HandlerKind {
    /// The image exports none of the known symbols.
    #[default]
    Unknown,
    /// A runtime, in its own image.
    Runtime,
    /// Go's runtime, in the same image as the program.
    Go,
    /// A handler that describes a crash and ends the process.
    Describes,
    /// The system's own such handler, in every process: Android's dynamic linker has a handler that
    /// notifies debuggerd.
    System,
}

impl HandlerKind {
    pub(crate) fn of_number(number: u8) -> HandlerKind {
        [HandlerKind::Runtime, HandlerKind::Go, HandlerKind::Describes, HandlerKind::System]
            .into_iter()
            .find(|kind| *kind as u8 == number)
            .unwrap_or_default()
    }

    /// Returns the kind of the handler at that address, by its image's exports (not
    /// async-signal-safe).
    pub(crate) fn of(handler: usize) -> HandlerKind {
        const EXPORTS: [(&CStr, HandlerKind); 6] = [
            (c"JNI_CreateJavaVM", HandlerKind::Runtime),
            (c"coreclr_initialize", HandlerKind::Runtime),
            (c"mono_jit_init", HandlerKind::Runtime),
            (c"crosscall2", HandlerKind::Go),
            (c"__sanitizer_print_stack_trace", HandlerKind::Describes),
            (c"Py_Initialize", HandlerKind::Describes),
        ];
        #[cfg(target_os = "android")]
        if is_of_linker(handler as u64) {
            return HandlerKind::System;
        }
        let image_of = |address: *const c_void| {
            // SAFETY: all zero is valid; dladdr writes it. The path it returns is that of a loaded
            // image.
            unsafe {
                let mut found: libc::Dl_info = core::mem::zeroed();
                (libc::dladdr(address, &raw mut found) != 0).then_some((found.dli_fbase, found.dli_fname))
            }
        };
        let Some((base, path)) = image_of(handler as *const c_void) else { return HandlerKind::Unknown };
        // SAFETY: a path, or null for the program, which can't be opened by its own; an image that
        // is loaded is not loaded again.
        let image = unsafe {
            // The program is identified without reading its file.
            let path = if is_of_program(handler) { core::ptr::null() } else { path };
            let image = libc::dlopen(path, libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if image.is_null() { libc::dlopen(core::ptr::null(), libc::RTLD_LAZY) } else { image }
        };
        if image.is_null() {
            return HandlerKind::Unknown;
        }
        // dlsym also searches an image's dependencies.
        let is_exported = |name: &CStr| {
            // SAFETY: an open image and a NUL-terminated name.
            let at = unsafe { libc::dlsym(image, name.as_ptr()) };
            !at.is_null() && image_of(at).is_some_and(|(other, _)| other == base)
        };
        let found = EXPORTS.into_iter().find(|(name, _)| is_exported(name));
        // SAFETY: opened above.
        unsafe { libc::dlclose(image) };
        found.map_or(HandlerKind::Unknown, |(_, kind)| kind)
    }
}

/// Returns `true` if an address lies in the program and not in a library (not async-signal-safe).
/// Returns `false` if that can't be determined.
fn is_of_program(address: usize) -> bool {
    #[cfg(target_vendor = "apple")]
    let entry = 0;
    #[cfg(not(target_vendor = "apple"))]
    // SAFETY: only reads the auxiliary vector.
    let entry = unsafe { libc::getauxval(libc::AT_ENTRY) };
    let program = loaded_image::holder_of(entry);
    matches!(program, Holder::Image(_)) && loaded_image::holder_of(address as u64) == program
}

/// Returns `true` if the code at that address is the dynamic linker's, for which bionic's `dladdr`
/// and `dl_iterate_phdr` report too little.
#[cfg(target_os = "android")]
fn is_of_linker(address: u64) -> bool {
    use coroner_process::elf::{FileHeader, PT_LOAD};
    // SAFETY: asks for a number.
    let base = unsafe { libc::getauxval(libc::AT_BASE) };
    let Some(mut memory) = coroner_process::memory::KernelCopy::new() else { return false };
    let Some(header) = FileHeader::read(&mut memory, base) else { return false };
    let mut is_in = false;
    let read = header.headers(base).each(&mut memory, |segment| {
        let offset = address.wrapping_sub(base.wrapping_add(segment.address));
        is_in |= segment.kind == PT_LOAD && offset < segment.memory_size;
    });
    is_in && read.is_ok()
}
