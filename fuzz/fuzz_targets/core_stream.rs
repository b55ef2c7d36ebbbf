//! A core dump read from a pipe.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::core_stream(input));
