//! Compiles the C part.

fn main() {
    println!("cargo::rerun-if-changed=src/calls.c");
    cc::Build::new().opt_level(2).file("src/calls.c").include("../../../crates/bindings/ffi/include").compile("calls");
}
