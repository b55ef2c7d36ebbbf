//! A report file: frames, lengths and checksums. Most mutations fail a checksum.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::report_file(input));
