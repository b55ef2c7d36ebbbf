//! Part 1 is an `.eh_frame_hdr`, part 2 an `.eh_frame`.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::eh_frame_hdr(&case));
