//! A report whose sections have correct checksums and arbitrary contents. Each section is
//! `kind, length (2 bytes), payload`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::report_sections(input));
