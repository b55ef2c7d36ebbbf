//! A crash's explanation. The input is the length of the sections (2 bytes), the sections as in
//! `report_sections`, and the code of the crashing function.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::explanation(input));
