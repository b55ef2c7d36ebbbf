//! Server responses, one a line and a second apart: status, `X-Sentry-Rate-Limits` and
//! `Retry-After`, separated by tabs.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::delivery::server_answer(input));
