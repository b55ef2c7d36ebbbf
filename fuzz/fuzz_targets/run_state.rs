//! A run state file. The checksum of the header is corrected, so that the other fields are used.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::run_state(input));
