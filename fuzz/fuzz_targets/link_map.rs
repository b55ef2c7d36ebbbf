//! The dynamic linker's list of images. The input is memory with `r_debug`, `link_map`s, names and
//! program headers.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| coroner_fuzz::process::link_map(input));
