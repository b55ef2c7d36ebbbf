//! Part 2 is a `.debug_frame`. With the target's flag, a search table is built for it first.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::debug_frame(&case));
