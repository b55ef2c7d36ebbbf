//! `maps` and `stat` of `/proc`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::process::proc_text(input));
