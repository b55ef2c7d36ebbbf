//! A core dump inside an apport report, a gzip or a Zstandard file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::dump(input));
