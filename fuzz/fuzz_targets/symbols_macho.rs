//! A Mach-O file, thin or fat: nlist, function starts, export trie, Objective-C metadata.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::symbols::macho_file(input));
