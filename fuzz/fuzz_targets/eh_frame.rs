//! Part 1 is code, part 2 an `.eh_frame` or Mach-O's `__eh_frame`, without a search table.

#![no_main]

use coroner_fuzz::case::Case;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|case: Case<'_>| coroner_fuzz::unwind::eh_frame(&case));
