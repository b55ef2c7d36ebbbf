//! An envelope. Whatever could be parsed is written back unchanged.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::delivery::envelope(input));
