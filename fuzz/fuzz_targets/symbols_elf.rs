//! An ELF file: symbol tables, PLT, mini debug info.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::symbols::elf_file(input));
