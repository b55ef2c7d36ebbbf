//! The crash-time scan of an ELF file and of the same bytes as a loaded image.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::symbols::scan_elf(input));
