//! Arbitrary values, keys and breadcrumbs, written by the run state's own writer. Each is `kind,
//! key length, value length, value`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::run_state_values(input));
