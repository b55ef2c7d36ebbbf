//! `state.json` of an outbox.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::delivery::outbox_state(input));
