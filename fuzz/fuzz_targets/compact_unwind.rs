//! Part 1 is a Mach-O `__unwind_info`, part 2 its `__eh_frame`. The image's base is the code's
//! start.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::compact_unwind(&case));
