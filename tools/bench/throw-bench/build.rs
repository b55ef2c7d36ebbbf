//! Compiles the C++ part.

fn main() {
    println!("cargo::rerun-if-changed=src/throws.cpp");
    let mut build = cc::Build::new();
    build.cpp(true).opt_level(2).file("src/throws.cpp").flag("-fno-optimize-sibling-calls");
    if std::env::var_os("CARGO_FEATURE_BACKTRACE").is_some() {
        build.define("TAKE_BACKTRACE", None);
    }
    build.compile("throws");
}
