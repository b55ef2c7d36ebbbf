//! `progress.json` of a run, and `last_run.json`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::delivery::store_notes(input));
