//! An Apple crash report, `.ips` or `.crash`: symbolicated in place, and imported as a Coroner
//! report.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::reports::apple_report(input));
