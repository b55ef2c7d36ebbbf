//! Checks the unwinder against an emulator that keeps a shadow call stack ([`emulator`]).
//!
//! Ours, framehop and a chain of frame pointers ([`walkers`]) get the same states. The check fails
//! below [`GOAL`] percent correct states per program, not counting those explained in
//! `fixtures/oracle/exceptions.json`. See the package's `README.md`.

use std::{
    fmt::Write as _,
    fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use toolbox::tools;

mod emulator;
mod findings;
mod loader;
mod programs;
mod unicorn;
mod walkers;

use emulator::{Changes, Sampling, Situation};
use findings::Findings;
use loader::Program;
pub use programs::Build;
use unicorn::Unicorn;
use walkers::{Framehop, Ours, Verdict, Walk, judge, judge_registers};

/// Minimum percentage of correct states.
const GOAL: f64 = 99.9;

#[derive(Debug, clap::Parser)]
#[command(about)]
pub struct Arguments {
    /// Print one JSON object, a row per program, as the last line
    #[arg(long)]
    json: bool,
    /// Run only programs whose name contains this, such as `macho-arm64` or
    /// `elf-x86_64-c-O2-nofp`
    #[arg(long)]
    only: Option<String>,
    /// Run the programs for Android instead (needs the Android bed)
    #[arg(long)]
    android: bool,
    /// Run only two programs per format and processor
    #[arg(long)]
    short: bool,
    /// Sample this many random states per program, after the first visits
    #[arg(long, default_value_t = 20_000)]
    states: u64,
    /// Examine each instruction at its first visits, this many
    #[arg(long, default_value_t = 3)]
    visits: u16,
    /// Seed the random states and the programs' data
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write all failures, with disassembly, to this file
    #[arg(long)]
    findings: Option<std::path::PathBuf>,
}

/// A failure explained by information that the program does not contain.
#[derive(Deserialize)]
struct Exception {
    /// A build's name, or a prefix followed by `*`.
    build: String,
    /// The function of the frame whose caller can't be determined.
    function: String,
    /// The reason the caller can't be determined.
    #[serde(rename = "reason")]
    _reason: String,
}

impl Exception {
    fn explains(&self, build: &str, function: &str) -> bool {
        let named = match self.build.strip_suffix('*') {
            Some(beginning) => build.starts_with(beginning),
            None => self.build == build,
        };
        named && self.function == function
    }
}

/// The outcome of one program.
#[derive(Serialize)]
struct Row {
    name: String,
    states: u64,
    /// Percentage of states with a completely correct stack.
    ours: f64,
    /// Percentage of states in which ours also knows every callee-saved register of every frame.
    with_registers: f64,
    framehop: f64,
    frame_pointers: f64,
    /// States of calls through bad pointers.
    bad_calls: Shares,
    /// States in a signal handler that interrupted the program at any instruction.
    signals: Shares,
    /// Percentage of states whose failure `exceptions.json` explains.
    explained: f64,
    /// Number of instructions in the program at which ours failed.
    failing_instructions: usize,
    unit: &'static str,
    pass: bool,
}

/// Counts of derived states.
#[derive(Clone, Copy, Default)]
struct Made {
    states: u64,
    ours: u64,
    framehop: u64,
}

/// The number of states, and the percentages with a completely correct stack.
#[derive(Serialize)]
struct Shares {
    states: u64,
    ours: f64,
    framehop: f64,
}

impl Made {
    fn shares(self) -> Shares {
        let share = |count: u64| if self.states == 0 { 100.0 } else { percent(count, self.states) };
        Shares { states: self.states, ours: share(self.ours), framehop: share(self.framehop) }
    }

    fn pass(self) -> bool {
        self.shares().ours >= GOAL
    }
}

struct Outcome {
    row: Row,
    findings: String,
    summary: String,
}

/// Runs the instrument.
///
/// # Errors
/// An error if a tool is missing, a program can't be built or run, or the unwinder misses its goal.
///
/// # Panics
/// If a worker thread panics.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let start = Instant::now();
    let root = tools::workspace_root();
    let exceptions = root.join("fixtures/oracle/exceptions.json");
    let exceptions: Vec<Exception> = serde_json::from_str(&fs::read_to_string(&exceptions)?)
        .with_context(|| format!("reading {}", exceptions.display()))?;
    let unicorn = Unicorn::load(&tools::unicorn_library()?)?;
    let cache = root.join("target/oracle");
    fs::create_dir_all(&cache)?;
    let only = arguments.only.as_deref().unwrap_or("");
    let all = if arguments.android {
        toolbox::android_bed::unpacked_bed()?.map_err(anyhow::Error::msg)?;
        Build::android()
    } else {
        Build::all()
    };
    let is_wanted = |build: &Build| build.name().contains(only) && (!arguments.short || build.is_in_short());
    let builds: Vec<Build> = all.into_iter().filter(is_wanted).collect();
    ensure!(!builds.is_empty(), "no programs match --only {only}");

    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<(usize, anyhow::Result<Outcome>)>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((index, build)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    builds.get(index).map(|build| (index, *build))
                } {
                    let outcome = examine(&unicorn, build, &cache, &exceptions, arguments)
                        .with_context(|| format!("program {}", build.name()));
                    outcomes.lock().expect("no thread panics with the lock").push((index, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("no thread panics with the lock");
    outcomes.sort_by_key(|(index, _)| *index);

    let mut rows = Vec::new();
    let mut findings = String::new();
    let mut summaries = String::new();
    let mut broken = 0;
    println!("share of states whose whole stack is right, %");
    println!(
        "{:<32} {:>6} {:>7} {:>7} {:>8} {:>8} | {:<9} {:>7} {:>8} | {:<7} {:>7} {:>8}",
        "program",
        "states",
        "ours",
        "regs",
        "framehop",
        "fp chain",
        "bad calls",
        "ours",
        "framehop",
        "signals",
        "ours",
        "framehop"
    );
    for (_, outcome) in outcomes {
        let Outcome { row, findings: found, summary } = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                println!("{error:#}");
                broken += 1;
                continue;
            }
        };
        let Shares { states: bad_calls, ours: bad_ours, framehop: bad_framehop } = row.bad_calls;
        let Shares { states: signals, ours: signal_ours, framehop: signal_framehop } = row.signals;
        println!(
            "{:<32} {:>6} {:>7.3} {:>7.3} {:>8.3} {:>8.3} | {bad_calls:<9} {bad_ours:>7.3} {bad_framehop:>8.3} | {signals:<7} {signal_ours:>7.3} {signal_framehop:>8.3}{}",
            row.name,
            row.states,
            row.ours,
            row.with_registers,
            row.framehop,
            row.frame_pointers,
            if row.pass { "" } else { "  FAILS" }
        );
        findings.push_str(&found);
        summaries.push_str(&summary);
        rows.push(row);
    }
    print!("{summaries}");
    if let Some(path) = &arguments.findings {
        fs::write(path, &findings).with_context(|| format!("writing {}", path.display()))?;
    }
    println!("{} programs in {:.1} s", rows.len(), start.elapsed().as_secs_f64());
    let failing: Vec<&str> = rows.iter().filter(|row| !row.pass).map(|row| row.name.as_str()).collect();
    let verdict = if broken > 0 {
        Err(format!("can't build or run {broken} programs"))
    } else if failing.is_empty() {
        Ok(())
    } else {
        Err(format!("less than {GOAL} % of states right: {}", failing.join(", ")))
    };
    if arguments.json {
        println!("{}", serde_json::json!({ "tool": "oracle", "pass": verdict.is_ok(), "rows": rows }));
    }
    match verdict {
        Ok(()) => Ok(()),
        Err(message) => bail!(message),
    }
}

/// Returns the matrix of programs, for other instruments that need programs of every kind.
pub fn builds() -> Vec<Build> {
    Build::all()
}

fn examine(
    unicorn: &Unicorn,
    build: Build,
    cache: &Path,
    exceptions: &[Exception],
    arguments: &Arguments,
) -> anyhow::Result<Outcome> {
    let name = build.name();
    let file = build.file(cache)?;
    let data = fs::read(&file)?;
    // One run to count and one to examine, so that random states are spread over the whole run.
    let outlined = build.is_outlined();
    let nothing = Sampling { visits: 0, one_of: 0, wild_one_of: u64::MAX, seed: arguments.seed, outlined };
    let unknown = Changes::new();
    let first = emulator::run(unicorn, &mut Program::load(&data)?, arguments.seed, nothing, &unknown, &mut |_, _| {})?;
    let one_of = first.instructions.checked_div(arguments.states).unwrap_or(0).max(1);
    let one_of = if arguments.states == 0 { 0 } else { one_of };
    let sampling = Sampling { visits: arguments.visits, one_of, wild_one_of: 13, seed: arguments.seed, outlined };

    let mut program = Program::load(&data)?;
    let (mut ours, mut framehop) = (Ours::new(&program), Framehop::new(&program));
    let mut findings = Findings::default();
    let [mut states, mut right, mut registers, mut framehop_right, mut chain_right, mut explained] = [0u64; 6];
    let (mut bad_calls, mut signals) = (Made::default(), Made::default());
    emulator::run(unicorn, &mut program, arguments.seed, sampling, &first.changes, &mut |program, state| {
        let walk = caught(|| ours.walk(program, state));
        let framehop_is_right = judge(&caught(|| framehop.walk(program, state)), state) == Verdict::Right;
        let made = match state.situation {
            Situation::Running => None,
            Situation::BadCall => Some(&mut bad_calls),
            Situation::Signal { .. } => Some(&mut signals),
        };
        if let Some(made) = made {
            let verdict = judge(&walk, state);
            if verdict != Verdict::Right {
                findings.add(program, state, &walk, verdict);
            }
            made.states += 1;
            made.ours += u64::from(verdict == Verdict::Right);
            made.framehop += u64::from(framehop_is_right);
            return;
        }
        states += 1;
        let mut verdict = judge(&walk, state);
        if verdict == Verdict::Right {
            let complete;
            (verdict, complete) = judge_registers(&walk, state);
            registers += u64::from(complete);
        }
        match verdict {
            Verdict::Right => right += 1,
            verdict => {
                let culprit = findings.add(program, state, &walk, verdict);
                let function = program.function(culprit).map_or("", |(name, _)| name);
                if exceptions.iter().any(|exception| exception.explains(&name, function)) {
                    explained += 1;
                }
            }
        }
        framehop_right += u64::from(framehop_is_right);
        chain_right += u64::from(judge(&walkers::frame_pointers(program, state), state) == Verdict::Right);
    })?;

    let share = |count: u64| percent(count, states);
    let row = Row {
        name: name.clone(),
        states,
        ours: share(right),
        with_registers: share(registers),
        framehop: share(framehop_right),
        frame_pointers: share(chain_right),
        bad_calls: bad_calls.shares(),
        signals: signals.shares(),
        explained: share(explained),
        failing_instructions: findings.causes.len(),
        unit: "% of states",
        pass: states > 0 && percent(right + explained, states) >= GOAL && bad_calls.pass() && signals.pass(),
    };
    let (mut text, mut summary) = (String::new(), String::new());
    if !findings.causes.is_empty() {
        let _ = writeln!(text, "\n### {name}: {:.3} % right, {} instructions fail", row.ours, row.failing_instructions);
        findings.write(&program, 12, &mut text);
        let _ = writeln!(summary, "{name}:");
        for (function, count, pcs) in findings.functions(&program).into_iter().take(5) {
            let first = &findings.causes[&pcs[0]];
            let _ =
                writeln!(summary, "  {function}: {count} states at {} instructions; {}", pcs.len(), first.description);
        }
    }
    Ok(Outcome { row, findings: text, summary })
}

#[expect(clippy::cast_precision_loss, reason = "counts of states are far below 2^52")]
fn percent(count: u64, of: u64) -> f64 {
    count as f64 * 100.0 / of.max(1) as f64
}

/// Returns a walk, or a wrong walk if the unwinder panicked.
fn caught(walk: impl FnOnce() -> Walk) -> Walk {
    panic::catch_unwind(AssertUnwindSafe(walk))
        .unwrap_or_else(|_| Walk { frames: Vec::new(), end: String::from("the unwinder panicked") })
}
