//! A log with crashes from AddressSanitizer, Go or Rust.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::log(input));
