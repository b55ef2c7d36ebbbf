//! The driver that `cargo xtask fuzz` builds and starts: `coroner-fuzz CORPUS ARTIFACTS SECONDS SEED TARGET`.
//!
//! Runs a target on its corpus, then on mutations of it until the time is up, keeping inputs that reach new code in
//! memory. An input that panics is written to the artifacts' folder, and so is one that takes longer than [`HANGS`] (a
//! second thread watches). One that kills the process is found in `ARTIFACTS/TARGET.current`, where every input is
//! written, through shared memory, before it runs.

use std::{
    env, fs,
    io::Write as _,
    os::fd::AsRawFd as _,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use coroner_fuzz::{
    TARGETS, Target,
    coverage::Coverage,
    mutate::{Chance, mutate},
};

/// What no input may take.
const HANGS: Duration = Duration::from_secs(5);

/// The place for the input that runs: its length and its bytes.
const CURRENT: usize = 1 << 16;

/// The number of inputs that were started: what the watching thread looks at.
static STARTED: AtomicU64 = AtomicU64::new(0);

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [corpus, artifacts, seconds, seed, name] = &arguments[..] else {
        eprintln!("usage: coroner-fuzz CORPUS ARTIFACTS SECONDS SEED TARGET");
        return ExitCode::FAILURE;
    };
    let Some(target) = TARGETS.iter().find(|target| target.name == *name) else {
        eprintln!("no target {name}");
        return ExitCode::FAILURE;
    };
    let (Ok(seconds), Ok(seed)) = (seconds.parse(), seed.parse()) else {
        eprintln!("SECONDS and SEED are numbers");
        return ExitCode::FAILURE;
    };
    match Driver::new(*target, Path::new(corpus), Path::new(artifacts), seed) {
        Ok(mut driver) => driver.run(Duration::from_secs_f64(seconds)),
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Driver {
    target: Target,
    inputs: Vec<Vec<u8>>,
    artifacts: PathBuf,
    current: Current,
    coverage: Coverage,
    chance: Chance,
    runs: u64,
    failures: usize,
}

impl Driver {
    fn new(target: Target, corpus: &Path, artifacts: &Path, seed: u64) -> std::io::Result<Driver> {
        fs::create_dir_all(artifacts)?;
        let folder = corpus.join(target.name);
        let mut files: Vec<PathBuf> = fs::read_dir(&folder)
            .map_err(|error| std::io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        files.sort();
        let inputs = files.iter().map(fs::read).collect::<std::io::Result<Vec<_>>>()?;
        if inputs.is_empty() {
            return Err(std::io::Error::other(format!("{} is empty", folder.display())));
        }
        Ok(Driver {
            target,
            inputs,
            artifacts: artifacts.to_path_buf(),
            current: Current::map(&artifacts.join(format!("{}.current", target.name)))?,
            coverage: Coverage::default(),
            chance: Chance(seed),
            runs: 0,
            failures: 0,
        })
    }

    fn run(&mut self, time: Duration) -> ExitCode {
        watch();
        let start = Instant::now();
        for index in 0..self.inputs.len() {
            let input = self.inputs[index].clone();
            self.try_input(&input);
        }
        let seeds = self.inputs.len();
        while start.elapsed() < time && self.failures < 5 {
            for _ in 0..64 {
                // Half of the time one of the latest finds: they are furthest from the seeds.
                let recent = self.inputs.len().min(32);
                let index = if self.chance.number() & 1 == 0 {
                    self.chance.below(self.inputs.len())
                } else {
                    self.inputs.len() - 1 - self.chance.below(recent)
                };
                let mut input = self.inputs[index].clone();
                let other = self.chance.below(self.inputs.len());
                mutate(&mut input, &self.inputs[other], &mut self.chance);
                if self.try_input(&input) {
                    self.inputs.push(input);
                }
            }
        }
        println!(
            r#"{{"target":"{}","runs":{},"seconds":{:.1},"seeds":{seeds},"kept":{},"reached":{},"failures":{}}}"#,
            self.target.name,
            self.runs,
            start.elapsed().as_secs_f64(),
            self.inputs.len() - seeds,
            self.coverage.reached,
            self.failures
        );
        if self.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    /// Runs one input; returns whether it reached something new.
    fn try_input(&mut self, input: &[u8]) -> bool {
        self.current.hold(input);
        self.runs += 1;
        STARTED.fetch_add(1, Ordering::Relaxed);
        Coverage::begin();
        let result = panic::catch_unwind(AssertUnwindSafe(|| (self.target.run)(input)));
        if result.is_err() {
            self.failures += 1;
            let name = format!("{}-{:016x}", self.target.name, hash(input));
            let path = self.artifacts.join(name);
            match fs::write(&path, input) {
                Ok(()) => eprintln!("{}: that input is kept in {}", self.target.name, path.display()),
                Err(error) => eprintln!("{}: that input can't be kept: {error}", self.target.name),
            }
            return false;
        }
        self.coverage.is_new()
    }
}

/// Starts the thread that ends the process when one input takes too long.
fn watch() {
    thread::spawn(|| {
        let mut last = 0;
        loop {
            thread::sleep(HANGS);
            let started = STARTED.load(Ordering::Relaxed);
            if started == last {
                let _ = writeln!(std::io::stderr(), "an input takes longer than {HANGS:?}");
                process::abort();
            }
            last = started;
        }
    });
}

fn hash(input: &[u8]) -> u64 {
    input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// A file that holds the running input even after the process died.
struct Current {
    bytes: &'static mut [u8],
}

impl Current {
    fn map(path: &Path) -> std::io::Result<Current> {
        let file = fs::File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(CURRENT as u64)?;
        // SAFETY: a fresh shared mapping of a file of that length, which nobody shortens.
        let bytes = unsafe {
            let place = libc::mmap(
                ptr::null_mut(),
                CURRENT,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if place == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error());
            }
            std::slice::from_raw_parts_mut(place.cast::<u8>(), CURRENT)
        };
        Ok(Current { bytes })
    }

    fn hold(&mut self, input: &[u8]) {
        let length = input.len().min(CURRENT - 8);
        self.bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
        self.bytes[8..8 + length].copy_from_slice(&input[..length]);
    }
}
