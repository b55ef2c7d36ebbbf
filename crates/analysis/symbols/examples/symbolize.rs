//! `symbolize FILE [--plain] < ADDRESSES`: prints one line of JSON for each address, with its
//! calls, innermost first, and their linker names. Addresses are hexadecimal, one per line, as in
//! the file itself. `--plain` prints one line per call, and an empty line after each address.
//!
//! `cargo xtask symbols-truth` compares the JSON with `llvm-symbolizer`'s output, and measures the
//! time of `--plain`, whose output is similar to that of the peers.

use std::{
    io::{BufRead, Write},
    path::Path,
};

use coroner_symbols::{LookupAddress, SymbolFile};
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    /// The name from the symbol table.
    symbol: Option<String>,
    calls: Vec<Call>,
}

#[derive(Serialize)]
struct Call {
    name: Option<String>,
    file: Option<String>,
    line: Option<u32>,
    column: Option<u32>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: symbolize FILE [--plain] < ADDRESSES")?;
    let plain = std::env::args_os().nth(2).is_some_and(|argument| argument == "--plain");
    let files = SymbolFile::open(Path::new(&path))?;
    let file = files.first().ok_or("the file has no symbols")?;
    let mut addresses = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let address = u64::from_str_radix(line?.trim().trim_start_matches("0x"), 16)?;
        addresses.push(LookupAddress::of_instruction(address));
    }
    file.look_up(&addresses);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for address in addresses {
        if plain {
            for call in file.calls(address) {
                let (name, file) = (call.name.as_deref().unwrap_or("??"), call.file.as_deref().unwrap_or("??"));
                writeln!(out, "{name} {file}:{}", call.line.unwrap_or(0))?;
            }
            writeln!(out)?;
            continue;
        }
        let calls = file.calls(address).into_iter();
        let answer = Answer {
            symbol: file.symbol(address).map(|(name, _)| name),
            calls: calls
                .map(|call| Call { name: call.name, file: call.file, line: call.line, column: call.column })
                .collect(),
        };
        serde_json::to_writer(&mut out, &answer)?;
        writeln!(out)?;
    }
    out.flush()?;
    for problem in file.take_problems() {
        eprintln!("{problem}");
    }
    Ok(())
}
