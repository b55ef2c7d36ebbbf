//! Finds the C++ runtime of the image that throws, where the dynamic linker's global scope has
//! none: a plugin of a C program, with a runtime of its own or as its dependency.
//!
//! The images' own symbol tables are read, since dlopen(3) would wait for another thread that loads
//! a library, which may wait for the thrower.

use core::ffi::CStr;

use coroner_process::images::Image;
use coroner_walk::{LiveImages, LiveReader};

use crate::itanium::{self, Function};

/// Images in which a symbol is searched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// The caller's image, and those that it needs directly.
    Scope,
    /// All images.
    Anywhere,
}

/// Returns the address of a function of the runtime to which `caller` is bound; 0 if there is none
/// by that name (not async-signal-safe).
pub(super) fn function(caller: u64, which: Function) -> usize {
    match itanium::function(which) {
        0 => match find_symbol(caller, which.name(), 0, Reach::Scope) {
            0 => find_symbol(caller, which.name(), 0, Reach::Anywhere),
            found => found,
        },
        found => found,
    }
}

/// Returns the address of an exported symbol, other than `ours`, in the nearest image that defines
/// it, seen from the one that contains `caller`; 0 if there is none.
pub(super) fn find_symbol(caller: u64, name: &CStr, ours: usize, reach: Reach) -> usize {
    let Some(memory) = LiveReader::new() else { return 0 };
    let Some(images) = LiveImages::current(memory) else { return 0 };
    let Ok(name) = name.to_str() else { return 0 };
    // A reader has no state of its own, so each use has a copy.
    let symbol_of = |image: &Image| {
        let found = image.dynamic_symbol(&mut { memory }, name).unwrap_or(0) as usize;
        (found != 0 && found != ours).then_some(found)
    };
    if reach == Reach::Anywhere {
        return images.table().iter().find_map(symbol_of).unwrap_or(0);
    }
    let Some(own) = images.find(caller) else { return 0 };
    symbol_of(own)
        .or_else(|| {
            let needed = |image: &&Image| own.needs(&mut { memory }, images.table().path(image));
            images.table().iter().filter(needed).find_map(symbol_of)
        })
        .unwrap_or(0)
}
