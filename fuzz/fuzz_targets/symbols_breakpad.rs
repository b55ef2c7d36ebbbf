//! A Breakpad symbol file without its first line.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::symbols::breakpad(input));
