//! The program that `cargo xtask bench symbols` builds and runs.
//!
//! * `symbols-bench first FILE ROUNDS`: names 64 random functions of an ELF file from a cold start
//!   (with the file in the page cache), by symbol tables alone; one JSON object for each namer.
//! * `symbols-bench lines FILE ROUNDS`: the same with file, line and inlined calls from DWARF.
//! * `symbols-bench steady FILE LOOKUPS`: the cost of a lookup when everything is built.
//!
//! The namers take turns within each round. Each answer is checked against the symbol table.

mod counting;
mod namers;

use std::{collections::HashMap, env, path::Path, process::ExitCode, time::Instant};

use namers::Namer;
use object::{Object, ObjectSymbol};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Number of addresses of one report in one image.
const ADDRESSES: usize = 64;

/// A file's functions, for checking the answers.
struct Truth {
    /// An address inside each function.
    addresses: Vec<u64>,
    /// All names of the function at an address.
    names: HashMap<u64, Vec<String>>,
}

impl Truth {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("the file can be read");
        let file = object::File::parse(&*bytes).expect("an object file");
        let mut by_start: HashMap<u64, (u64, Vec<String>)> = HashMap::new();
        for symbol in file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0) {
            let entry = by_start.entry(symbol.address()).or_default();
            entry.0 = entry.0.max(symbol.size());
            entry.1.extend(symbol.name().map(str::to_owned));
        }
        let mut functions: Vec<(u64, u64, Vec<String>)> =
            by_start.into_iter().map(|(start, (size, names))| (start, size, names)).collect();
        functions.sort();
        // A function that overlaps others has two right answers.
        let clear = |index: usize| {
            let (start, size, _) = &functions[index];
            functions.get(index + 1).is_none_or(|next| start + size <= next.0)
        };
        let clear: Vec<bool> = (0..functions.len()).map(clear).collect();
        let mut truth = Self { addresses: vec![], names: HashMap::new() };
        for ((start, size, names), clear) in functions.into_iter().zip(clear) {
            if clear {
                truth.addresses.push(start + size / 2);
                truth.names.insert(start + size / 2, names);
            }
        }
        truth
    }

    fn some(&self, random: &mut impl FnMut() -> u64, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.addresses[(random() % self.addresses.len() as u64) as usize]).collect()
    }
}

fn xorshift(mut state: u64) -> impl FnMut() -> u64 {
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [mode, path, count] = arguments.as_slice() else {
        eprintln!("usage: symbols-bench first|lines FILE ROUNDS | steady FILE LOOKUPS");
        return ExitCode::FAILURE;
    };
    let (path, count) = (Path::new(path), count.parse::<usize>().unwrap_or(10));
    let truth = Truth::read(path);
    println!(r#"{{"functions":{}}}"#, truth.addresses.len());
    let right = match mode.as_str() {
        "first" => from_nothing(&truth, path, count, &namers::by_symbols()),
        "lines" => from_nothing(&truth, path, count, &namers::by_lines()),
        "steady" => steady(&truth, path, count),
        _ => false,
    };
    if right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns a name as in the compiler's debug information.
///
/// LLVM appends `.llvm.` and a number to the linker's name of a function that it makes visible
/// beyond its object file.
fn source_name(name: &str) -> &str {
    name.rsplit_once(".llvm.").map_or(name, |(name, _)| name)
}

/// Whether all answers but at most one in sixteen are a name of the function.
///
/// (With lines, the compiler's name for a function sometimes differs from the linker's.)
fn is_right(truth: &Truth, addresses: &[u64], names: &[Option<String>]) -> (bool, usize) {
    let right = addresses
        .iter()
        .zip(names)
        .filter(|(address, name)| {
            name.as_ref().is_some_and(|name| truth.names[address].iter().any(|n| source_name(n) == source_name(name)))
        })
        .count();
    (right * 16 >= addresses.len() * 15, right)
}

fn from_nothing(truth: &Truth, path: &Path, rounds: usize, namers: &[Namer]) -> bool {
    struct Result {
        times: Vec<f64>,
        allocations: usize,
        peak: usize,
        right: usize,
        of: usize,
    }
    let mut random = xorshift(0x2545_f491_4f6c_dd1d);
    let mut results: Vec<Result> =
        namers.iter().map(|_| Result { times: vec![], allocations: 0, peak: 0, right: 0, of: 0 }).collect();
    let mut all_right = true;
    for _ in 0..rounds {
        let addresses = truth.some(&mut random, ADDRESSES);
        for (namer, result) in namers.iter().zip(&mut results) {
            let mut names: Vec<Option<String>> = vec![None; ADDRESSES];
            let (before, live) = counting::now();
            counting::peak();
            let start = Instant::now();
            let answers = (namer.name)(path, &addresses, &mut |index, name| {
                // The answers of namers that borrow are copied outside the measured time: see
                // `namers`.
                names[index] = Some(name.to_owned());
            });
            let copied = names.iter().flatten().count();
            let spent = answers.unwrap_or_else(|| namers::Spent {
                seconds: start.elapsed().as_secs_f64(),
                // Without those of the copies for the check.
                allocations: (counting::now().0 - before).saturating_sub(copied),
            });
            result.times.push(spent.seconds * 1e3);
            result.allocations = spent.allocations;
            result.peak = counting::peak().saturating_sub(live);
            let (right, count) = is_right(truth, &addresses, &names);
            result.right += count;
            result.of += ADDRESSES;
            // Peers' misses are shown; ours must be right.
            all_right &= right || !namer.name_of.starts_with("coroner");
        }
    }
    for (namer, mut result) in namers.iter().zip(results) {
        let least = result.times.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            r#"{{"name":"{}","ms":{least},"median":{},"allocations":{},"peak":{},"right":{},"of":{}}}"#,
            namer.name_of,
            median(&mut result.times),
            result.allocations,
            result.peak,
            result.right,
            result.of
        );
    }
    all_right
}

/// Rounds of the steady state.
///
/// In each round all namers take turns, so that other load on the machine and its shared caches
/// affect all equally. Each round uses different addresses than the previous one, which leaves its
/// names in the caches.
const ROUNDS: usize = 16;

fn steady(truth: &Truth, path: &Path, lookups: usize) -> bool {
    struct Built {
        name: &'static str,
        lookup: namers::Lookup,
        build_ms: f64,
        live: usize,
        peak: usize,
        times: Vec<f64>,
        found: usize,
    }
    let mut random = xorshift(88_172_645_463_325_252);
    let addresses = truth.some(&mut random, lookups);
    let mut all: Vec<Built> = namers::steady()
        .into_iter()
        .map(|(name, build)| {
            let (_, live) = counting::now();
            counting::peak();
            let start = Instant::now();
            let mut lookup = build(path);
            // Built lazily, by the first lookup.
            lookup(addresses[0]);
            let build_ms = start.elapsed().as_secs_f64() * 1e3;
            let peak = counting::peak().saturating_sub(live);
            let live = counting::now().1.saturating_sub(live);
            Built { name, lookup, build_ms, live, peak, times: vec![], found: 0 }
        })
        .collect();
    let parts: Vec<&[u64]> = addresses.chunks(lookups.div_ceil(ROUNDS).max(1)).collect();
    for round in 0..parts.len() {
        for (index, built) in all.iter_mut().enumerate() {
            let part = parts[(round + index * 3) % parts.len()];
            let start = Instant::now();
            built.found += part.iter().filter(|&&address| (built.lookup)(address)).count();
            built.times.push(start.elapsed().as_secs_f64() * 1e9 / part.len() as f64);
        }
    }
    let mut right = true;
    for Built { name, build_ms, live, peak, mut times, found, .. } in all {
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        println!(
            r#"{{"name":"{name}","build_ms":{build_ms},"ns":{least},"median":{},"live":{live},"peak":{peak},"found":{found},"of":{lookups}}}"#,
            median(&mut times),
        );
        right &= found * 16 >= lookups * 15;
    }
    right
}
