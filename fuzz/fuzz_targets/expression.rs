//! Part 2 is an expression for the canonical frame address or, with the target's flag, for the
//! location of the return address.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::expression(&case));
