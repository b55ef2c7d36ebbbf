//! Part 1 is code, for prologue and epilogue analysis. With the target's flag the image is Mach-O
//! and the first four bytes of part 2 are the compact encoding of all code; otherwise there is no
//! unwind data.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::code(&case));
