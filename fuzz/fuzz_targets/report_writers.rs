//! A report as it is delivered: an event in its envelope, and a minidump. The input is the length
//! of the sections (2 bytes), the sections as in `report_sections`, and the run state's values as
//! in `run_state_values`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::report_writers(input));
