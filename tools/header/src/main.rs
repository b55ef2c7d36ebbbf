//! Generates `coroner.h` from the sources of `coroner-ffi`, or checks that it is current.

use std::path::Path;

use anyhow::{Context, bail};
use clap::Parser as _;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub(crate) struct Arguments {
    /// Fail if the header is not current; change nothing
    #[arg(long)]
    check: bool,
}

/// Writes `coroner.h`, or checks that it is current.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let ffi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/bindings/ffi");
    let path = ffi.join("include/coroner.h");
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml")).map_err(anyhow::Error::msg)?;
    let bindings = cbindgen::Builder::new()
        .with_crate(&ffi)
        .with_config(config)
        .generate()
        .context("can't generate the header from crates/bindings/ffi")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    // In C every function is unsafe, and the general rules are at the top of the header; Doxygen
    // has its own heading for what else a function requires.
    let header = String::from_utf8(header)?
        .replace("///\n/// # Safety\n/// The general rules apply.\n", "")
        .replace("/// # Safety\n/// ", "/// @pre ");
    let current = std::fs::read_to_string(&path).unwrap_or_default();
    if current == header {
        println!("crates/bindings/ffi/include/coroner.h is current");
    } else if arguments.check {
        bail!("crates/bindings/ffi/include/coroner.h is not current; run `cargo xtask header` and commit it");
    } else {
        std::fs::create_dir_all(path.parent().context("the header's folder")?)?;
        std::fs::write(&path, header)?;
        println!("wrote crates/bindings/ffi/include/coroner.h");
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    run(&Arguments::parse())
}
