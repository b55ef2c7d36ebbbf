//! An outbox that another program changed. The first line is the name of a file in the queue, the
//! second `state.json`, the rest the contents of the file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::delivery::outbox(input));
