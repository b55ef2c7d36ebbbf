//! `cargo xtask test`: README's second command. Sets up what the tests need and runs them.
//!
//! [`steps`] is the table of steps; each declares what it needs ([`needs`]) and what it costs. The
//! default covers every part of the product; `--whole` adds what takes long. A step that lacks
//! something it needs is skipped with a line that names it; where the variable `CI` is set, a skip
//! fails the run.

mod needs;
mod steps;

use std::time::{Duration, Instant};
use std::{env, thread};

use anyhow::bail;
use nix::sys::resource::{UsageWho, getrusage};
use toolbox::tools;

use steps::{STEPS, Step, When};

/// Selection of steps.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object with a row a step as the last line
    #[arg(long)]
    json: bool,
    /// Also run the steps that take long
    #[arg(long)]
    whole: bool,
    /// Run only steps whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Leave out steps whose name contains this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// List the steps with what they need and cost, and run nothing
    #[arg(long)]
    list: bool,
    /// Stop at the first step that fails
    #[arg(long)]
    stop: bool,
}

/// Result of a step.
enum Outcome {
    Passed,
    /// The step passed without a part, or didn't run: what was missing.
    Skipped(String),
    Failed(String),
}

struct Row {
    step: &'static Step,
    wall: Duration,
    processor: Duration,
    outcome: Outcome,
}

/// Runs the steps.
///
/// # Errors
/// A step failed, or was skipped where `CI` is set. The steps' own output contains the reason.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let named = |step: &Step| arguments.only.as_ref().is_some_and(|only| step.name.contains(only.as_str()));
    let is_wanted = |step: &Step| match (&arguments.only, step.when) {
        (Some(_), _) => named(step),
        (None, When::Default) => true,
        (None, When::Short) => !arguments.whole,
        (None, When::Whole) => arguments.whole,
    };
    let is_left_out = |step: &Step| arguments.skip.iter().any(|skip| step.name.contains(skip.as_str()));
    let wanted: Vec<&'static Step> = STEPS.iter().filter(|step| is_wanted(step) && !is_left_out(step)).collect();
    if arguments.list {
        for step in &wanted {
            let needs: Vec<_> = step.needs.iter().chain(step.wants).map(|need| need.name()).collect();
            println!("{:<34} {:>5} s  {}", step.name, step.cost, needs.join(", "));
        }
        return Ok(());
    }
    if wanted.is_empty() {
        bail!("no step's name contains the text; `cargo xtask test --list --whole` lists them");
    }
    let began = Instant::now();
    let steps = wanted.clone();
    // Steps up to the build need nothing but a compiler, so they run while packages are fetched.
    let mut set_up = Some(thread::spawn(move || {
        needs::set_up(&steps);
        println!("--- set-up: {:.1} s", began.elapsed().as_secs_f64());
    }));
    // A panic has printed itself, and each step reports what is missing.
    let mut finish_set_up = || _ = set_up.take().map(thread::JoinHandle::join);
    let mut rows = Vec::new();
    for step in wanted {
        if !step.needs.is_empty() || !step.wants.is_empty() {
            finish_set_up();
        }
        println!("\n=== {}", step.name);
        let row = run_step(step);
        // Printed now, too: a run that is killed never prints its table.
        println!("--- {}", describe(&row));
        let failed = matches!(row.outcome, Outcome::Failed(_));
        rows.push(row);
        // Later steps run the programs of the first builds.
        if failed && (arguments.stop || step.is_prerequisite) {
            break;
        }
        if step.is_prerequisite {
            finish_set_up();
            // SAFETY: the thread that sets up has ended, and there is no other.
            unsafe { env::set_var(tools::BUILT, "1") };
        }
    }
    finish_set_up();
    report(&rows, began.elapsed(), arguments.json)
}

fn run_step(step: &'static Step) -> Row {
    let (began, before) = (Instant::now(), processor_time());
    let missing = |needs: &[needs::Need]| -> Vec<String> {
        needs.iter().filter(|need| !need.is_met()).map(|need| need.name()).collect()
    };
    let (needed, wished) = (missing(step.needs), missing(step.wants));
    let outcome = if needed.is_empty() {
        match (step.run)() {
            Err(error) => Outcome::Failed(format!("{error:#}")),
            Ok(()) if wished.is_empty() => Outcome::Passed,
            Ok(()) => Outcome::Skipped(format!("a part, which needs {}", wished.join(", "))),
        }
    } else {
        Outcome::Skipped(format!("needs {}", needed.join(", ")))
    };
    match &outcome {
        Outcome::Passed => {}
        Outcome::Skipped(why) => println!("skipped: {}: {why}", step.name),
        Outcome::Failed(why) => println!("FAILED {}: {why}", step.name),
    }
    Row { step, wall: began.elapsed(), processor: processor_time().saturating_sub(before), outcome }
}

fn describe(row: &Row) -> String {
    let word = match row.outcome {
        Outcome::Passed => "ok  ",
        Outcome::Skipped(_) => "SKIP",
        Outcome::Failed(_) => "FAIL",
    };
    let (wall, processor) = (row.wall.as_secs_f64(), row.processor.as_secs_f64());
    format!("{word} {:<34} {wall:>7.1} s, {processor:>7.1} s of processor time", row.step.name)
}

fn report(rows: &[Row], total: Duration, json: bool) -> anyhow::Result<()> {
    println!();
    let (mut failed, mut skipped) = (0, 0);
    for row in rows {
        println!("{}", describe(row));
        match &row.outcome {
            Outcome::Passed => {}
            Outcome::Skipped(why) => {
                skipped += 1;
                println!("     skipped: {why}");
            }
            Outcome::Failed(_) => failed += 1,
        }
    }
    if std::env::var_os("CI").is_some() {
        failed += skipped;
        skipped = 0;
    }
    println!("{:.0} s in all", total.as_secs_f64());
    println!("{} passed, {failed} failed, {skipped} skipped", rows.len() - failed - skipped);
    if json {
        let list: Vec<_> = rows
            .iter()
            .map(|row| {
                let (outcome, why) = match &row.outcome {
                    Outcome::Passed => ("passed", None),
                    Outcome::Skipped(why) => ("skipped", Some(why)),
                    Outcome::Failed(why) => ("failed", Some(why)),
                };
                let (wall, processor) = (row.wall.as_secs_f64(), row.processor.as_secs_f64());
                serde_json::json!({
                    "step": row.step.name, "outcome": outcome, "why": why, "seconds": wall, "processor_seconds": processor
                })
            })
            .collect();
        println!(
            "{}",
            serde_json::json!({ "tool": "test", "pass": failed == 0, "seconds": total.as_secs_f64(), "rows": list })
        );
    }
    if failed > 0 {
        bail!("{failed} of {} steps failed", rows.len());
    }
    Ok(())
}

/// Processor time of all child processes that have ended.
fn processor_time() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Duration::ZERO };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|time| {
            Duration::from_secs(time.tv_sec().unsigned_abs()) + Duration::from_micros(time.tv_usec().unsigned_abs())
        })
        .sum()
}

/// The folder in which `--whole` keeps what it builds beside cargo's own target folder.
fn folder(name: &str) -> std::path::PathBuf {
    tools::target_dir().join(name)
}
