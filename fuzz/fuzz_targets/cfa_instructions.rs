//! Part 1 is a common entry's instructions, part 2 a frame description's.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::cfa_instructions(&case));
