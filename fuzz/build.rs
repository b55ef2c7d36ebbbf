//! Passes on that the chore builds with `-Cinstrument-coverage`, which Rust has no `cfg` for on stable.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(coroner_coverage)");
    println!("cargo::rerun-if-env-changed=CORONER_FUZZ_COVERAGE");
    if std::env::var_os("CORONER_FUZZ_COVERAGE").is_some() {
        println!("cargo::rustc-cfg=coroner_coverage");
    }
}
