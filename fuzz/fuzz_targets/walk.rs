//! Part 1 is code, part 2 the stack: a whole walk over arbitrary memory.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::walk(&case));
