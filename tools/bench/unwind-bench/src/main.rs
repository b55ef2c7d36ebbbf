//! The program that `cargo xtask bench unwind` builds in release mode and runs.
//!
//! It calls distinct functions to the requested depth and lets each unwinder walk its own stack
//! there. It prints one JSON object per measurement.
//!
//! * `unwind-bench rounds ROUNDS`: interleaved rounds of every unwinder on a stack of 64 distinct
//!   functions.
//! * `unwind-bench first UNWINDER [launch]`: the cost of a fresh process's first walk, and of the
//!   second; with `launch`, after one walk of `main`'s short stack, which a program can do at
//!   launch to load code and tables.
//! * `unwind-bench recursion DEPTH`: one walk of a recursion.
//! * `unwind-bench large ROUNDS`: cold walks in generated images of up to a million functions.
//! * `unwind-bench check`: whether every unwinder sees the same stack.

mod counting;
mod large;
mod peers;
mod stack;

use std::{env, hint::black_box, process::ExitCode, time::Instant};

use peers::{Bench, Unwinder};

/// Walks per round with each unwinder.
const WALKS: u32 = 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u32>().ok());
    let mut bench = Bench::new();
    match arguments.first().map(String::as_str) {
        Some("rounds") => rounds(&mut bench, number(1).unwrap_or(50)),
        Some("first") => {
            let name = arguments.get(1).map_or("", String::as_str);
            // An unwinder that this build or machine lacks is skipped without an error.
            if let Some(unwinder) = bench.available().into_iter().find(|unwinder| unwinder.name == name) {
                if arguments.get(2).is_some_and(|argument| argument == "launch") {
                    black_box((unwinder.walk)(&mut bench));
                }
                first(&mut bench, &unwinder);
            }
        }
        Some("recursion") => recursion(bench, number(1).unwrap_or(100_000)),
        Some("large") => large::run(number(1).unwrap_or(10)),
        Some("check") => return check(&mut bench),
        _ => {
            eprintln!("usage: unwind-bench rounds N | first UNWINDER [launch] | recursion DEPTH | large N | check");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Prints each unwinder's time per frame in nanoseconds: minimum and median of the rounds.
fn rounds(bench: &mut Bench, rounds: u32) {
    let mut times: Vec<(Unwinder, usize, Vec<f64>)> = Vec::new();
    stack::deep(&mut || {
        for unwinder in bench.available() {
            let frames = (unwinder.walk)(bench);
            times.push((unwinder, frames, Vec::new()));
        }
        for _ in 0..rounds {
            for (unwinder, frames, rounds) in &mut times {
                let mut spent = 0.0;
                for _ in 0..WALKS {
                    (unwinder.prepare)(bench);
                    let start = Instant::now();
                    *frames = black_box((unwinder.walk)(bench));
                    spent += start.elapsed().as_secs_f64();
                }
                rounds.push(spent * 1e9 / f64::from(WALKS) / f64::from(u32::try_from(*frames).unwrap_or(1).max(1)));
            }
        }
    });
    for (unwinder, frames, mut rounds) in times {
        rounds.sort_by(f64::total_cmp);
        let (least, median) = (rounds[0], rounds[rounds.len() / 2]);
        println!(r#"{{"name":"{}","frames":{frames},"min":{least},"median":{median}}}"#, unwinder.name);
    }
}

/// Measures this process's first and second walk: time, minor page faults, allocations.
fn first(bench: &mut Bench, unwinder: &Unwinder) {
    stack::deep(&mut || {
        black_box(Instant::now().elapsed());
        let _ = counting::minor_faults();
        let mut results = [(0.0, 0, 0); 2];
        let mut frames = 0;
        for result in &mut results {
            let (faults, allocations) = (counting::minor_faults(), counting::allocations());
            let start = Instant::now();
            frames = black_box((unwinder.walk)(bench));
            let spent = start.elapsed().as_secs_f64() * 1e6;
            *result = (spent, counting::minor_faults() - faults, counting::allocations() - allocations);
        }
        let [(first, faults, allocations), (second, _, _)] = results;
        println!(
            r#"{{"name":"{}","frames":{frames},"us":{first},"faults":{faults},"allocations":{allocations},"second_us":{second}}}"#,
            unwinder.name
        );
    });
}

/// Measures one walk of a recursion, after one to warm up.
fn recursion(mut bench: Bench, depth: u32) {
    let stack = usize::try_from(depth).unwrap_or(0) * 256 + (1 << 20);
    let thread = std::thread::Builder::new().stack_size(stack).spawn(move || {
        bench.moved_to_this_thread();
        stack::recurse(depth, &mut || {
            for unwinder in bench.available().into_iter().filter(|unwinder| unwinder.deep) {
                black_box((unwinder.walk)(&mut bench));
                (unwinder.prepare)(&mut bench);
                let start = Instant::now();
                let frames = black_box((unwinder.walk)(&mut bench));
                let spent = start.elapsed().as_secs_f64();
                println!(r#"{{"name":"{}","frames":{frames},"ms":{}}}"#, unwinder.name, spent * 1e3);
            }
        });
    });
    thread
        .and_then(|thread| thread.join().map_err(|_| std::io::Error::other("the thread died")))
        .expect("a thread runs");
}

/// Checks that every unwinder sees the same stack.
fn check(bench: &mut Bench) -> ExitCode {
    let mut wrong = false;
    stack::deep(&mut || {
        let truth = peers::libgcc_addresses();
        for unwinder in bench.available() {
            bench.record = Some(Vec::new());
            (unwinder.walk)(bench);
            let seen = bench.record.take().unwrap_or_default();
            // The innermost frames are the unwinders' own, and some stop at `main`.
            let links = &truth[4..stack::DEPTH];
            let right = seen.windows(links.len()).any(|window| window == links);
            println!(r#"{{"name":"{}","frames":{},"right":{right}}}"#, unwinder.name, seen.len());
            wrong |= !right;
        }
    });
    if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
