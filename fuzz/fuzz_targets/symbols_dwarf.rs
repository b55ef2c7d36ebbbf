//! An ELF or Mach-O file with DWARF.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::symbols::dwarf(input));
