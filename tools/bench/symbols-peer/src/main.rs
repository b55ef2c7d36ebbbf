//! `symbols-peer wholesym|blazesym FILE < ADDRESSES`: prints a library's calls for each address.
//!
//! Addresses are hexadecimal, as in the file, one per line. The innermost call comes first; an
//! empty line follows each address. `cargo xtask symbols-truth` measures its time and memory.

use std::{
    error::Error,
    io::{BufRead, BufWriter, Write},
    path::Path,
};

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: symbols-peer wholesym|blazesym FILE < ADDRESSES";
    let mut arguments = std::env::args_os().skip(1);
    let (library, file) = arguments.next().zip(arguments.next()).ok_or(usage)?;
    let mut addresses = Vec::new();
    for line in std::io::stdin().lock().lines() {
        addresses.push(u64::from_str_radix(line?.trim().trim_start_matches("0x"), 16)?);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    match library.to_str() {
        Some("wholesym") => wholesym(Path::new(&file), &addresses, &mut out)?,
        Some("blazesym") => blazesym(Path::new(&file), &addresses, &mut out)?,
        _ => return Err(usage.into()),
    }
    Ok(out.flush()?)
}

fn print(out: &mut impl Write, name: Option<&str>, file: Option<&str>, line: Option<u32>) -> std::io::Result<()> {
    writeln!(out, "{} {}:{}", name.unwrap_or("??"), file.unwrap_or("??"), line.unwrap_or(0))
}

fn wholesym(path: &Path, addresses: &[u64], out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    use wholesym::{LookupAddress, SymbolManager, SymbolManagerConfig};

    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(async {
        let manager = SymbolManager::with_config(SymbolManagerConfig::default());
        let map = manager.load_symbol_map_for_binary_at_path(path, None).await?;
        for &address in addresses {
            if let Some(found) = map.lookup(LookupAddress::Svma(address)).await {
                match found.frames {
                    Some(frames) => {
                        for frame in frames {
                            let file = frame.file_path.as_ref().map(|path| path.raw_path());
                            print(out, frame.function.as_deref(), file, frame.line_number)?;
                        }
                    }
                    None => print(out, Some(&found.symbol.name), None, None)?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    })
}

fn blazesym(path: &Path, addresses: &[u64], out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    use blazesym::symbolize::{Input, Symbolizer, source};

    let symbolizer = Symbolizer::builder().enable_demangling(false).build();
    let source = source::Source::Elf(source::Elf::new(path));
    for symbolized in symbolizer.symbolize(&source, Input::VirtOffset(addresses))? {
        if let Some(found) = symbolized.as_sym() {
            let line = |info: Option<&blazesym::symbolize::CodeInfo<'_>>| {
                let file = info.map(|info| info.to_path().to_string_lossy().into_owned());
                (file, info.and_then(|info| info.line))
            };
            for inlined in found.inlined.iter().rev() {
                let (file, line) = line(inlined.code_info.as_ref());
                print(out, Some(&inlined.name), file.as_deref(), line)?;
            }
            let (file, line) = line(found.code_info.as_deref());
            print(out, Some(&found.name), file.as_deref(), line)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
