//! Part 1 is an `.sframe`, part 2 the `.eh_frame`, which takes precedence.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::sframe(&case));
