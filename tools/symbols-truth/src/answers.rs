//! Each namer's answers for a file's addresses, with time and memory.

use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// A call. A line of 0 means that the line is unknown, and then so is the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: Option<String>,
    pub(super) file: Option<String>,
    pub(super) line: u64,
}

/// The answer for an address: its calls, innermost first.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) calls: Vec<Call>,
    /// The symbol table's name; only from ours.
    pub(super) symbol: Option<String>,
}

impl Answer {
    pub(super) fn says_something(&self) -> bool {
        self.calls.iter().any(|call| call.name.is_some() || call.line != 0)
    }
}

/// A run's time and memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    /// Peak resident memory, including mapped files.
    pub(super) peak_bytes: u64,
}

/// Runs a namer with addresses on its standard input. `None` if it took longer than `limit`.
///
/// GNU `time` measures the memory: a process's peak resident set includes its parent's before
/// `execve` (`exec_mmap` in the kernel's fs/exec.c), and `time` is smaller than any namer.
fn measured(
    program: &Path,
    arguments: &[&OsStr],
    addresses: &[u64],
    folder: &Path,
    limit: Duration,
) -> anyhow::Result<Option<(Vec<u8>, Cost)>> {
    let [asked, answered, peak] = ["asked", "answered", "peak"].map(|name| folder.join(name));
    let input: Vec<String> = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    fs::write(&asked, input.concat())?;
    let mut command = Command::new("timeout");
    command.arg(limit.as_secs().to_string()).args(["/usr/bin/time", "-f", "%M", "-o"]).arg(&peak);
    command.arg(program).args(arguments).stderr(Stdio::null());
    command.stdin(fs::File::open(&asked)?).stdout(fs::File::create(&answered)?);
    let began = Instant::now();
    let status = command.status().context("running timeout")?;
    let seconds = began.elapsed().as_secs_f64();
    match status.code() {
        Some(0) => {}
        Some(124) => return Ok(None),
        _ => bail!("{} failed: {status}", program.display()),
    }
    let kibibytes: u64 = fs::read_to_string(&peak)?.trim().parse().context("the output of GNU time")?;
    Ok(Some((fs::read(&answered)?, Cost { seconds, peak_bytes: kibibytes * 1024 })))
}

/// Our output for an address.
#[derive(Deserialize)]
struct OurAnswer {
    symbol: Option<String>,
    calls: Vec<OurCall>,
}

#[derive(Deserialize)]
struct OurCall {
    name: Option<String>,
    file: Option<String>,
    line: Option<u64>,
}

/// Returns our answers, from `symbolize`, the example of coroner-symbols.
pub(super) fn ours(program: &Path, file: &Path, addresses: &[u64], folder: &Path) -> anyhow::Result<Vec<Answer>> {
    let (printed, _) = measured(program, &[file.as_os_str()], addresses, folder, Duration::from_mins(5))?
        .with_context(|| format!("no answer for {} within five minutes", file.display()))?;
    let mut answers = Vec::new();
    for line in BufReader::new(&*printed).lines() {
        let OurAnswer { symbol, calls } = serde_json::from_str(&line?)?;
        let call = |call: OurCall| create_call(call.name, call.file, call.line.unwrap_or(0));
        answers.push(Answer { calls: calls.into_iter().map(call).collect(), symbol });
    }
    ensure!(answers.len() == addresses.len(), "{} answers for {} addresses", answers.len(), addresses.len());
    Ok(answers)
}

/// The output of llvm-symbolizer for an address.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LlvmAnswer {
    #[serde(default)]
    symbol: Vec<LlvmCall>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LlvmCall {
    function_name: String,
    file_name: String,
    line: u64,
}

/// Returns an llvm-symbolizer's answers. `None` if it took longer than `limit`.
pub(super) fn llvm(
    program: &Path,
    file: &Path,
    addresses: &[u64],
    folder: &Path,
    limit: Duration,
) -> anyhow::Result<Option<Vec<Answer>>> {
    let options = ["--output-style=JSON", "--no-demangle", "--inlines", "--obj"].map(OsStr::new);
    let arguments = [&options[..], &[file.as_os_str()]].concat();
    let Some((printed, _)) = measured(program, &arguments, addresses, folder, limit)? else { return Ok(None) };
    let mut answers = Vec::new();
    for line in BufReader::new(&*printed).lines() {
        let LlvmAnswer { symbol } = serde_json::from_str(&line?)?;
        let shown = |text: String| Some(text).filter(|text| !text.is_empty() && text != "??" && text != "<invalid>");
        let call = |call: LlvmCall| create_call(shown(call.function_name), shown(call.file_name), call.line);
        answers.push(Answer { calls: symbol.into_iter().map(call).collect(), symbol: None });
    }
    ensure!(answers.len() == addresses.len(), "{} answers for {} addresses", answers.len(), addresses.len());
    Ok(Some(answers))
}

fn create_call(name: Option<String>, file: Option<String>, line: u64) -> Call {
    Call { name, file: file.filter(|_| line != 0), line }
}

/// A namer and its command. All print about the same: name, file and line of each call.
pub(super) struct Namer {
    pub(super) name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Namer {
    fn new(name: &str, program: &Path, options: &[&str], file: &Path) -> Self {
        let options = options.iter().map(OsString::from);
        Self { name: name.into(), program: program.into(), arguments: options.chain([file.into()]).collect() }
    }

    /// Returns its time and memory for the addresses. `None` if it took longer than `limit`.
    fn cost(&self, addresses: &[u64], folder: &Path, limit: Duration) -> anyhow::Result<Option<Cost>> {
        let arguments: Vec<&OsStr> = self.arguments.iter().map(OsString::as_os_str).collect();
        Ok(measured(&self.program, &arguments, addresses, folder, limit)?.map(|(_, cost)| cost))
    }
}

/// Returns the namers to measure.
///
/// Ours is first, then the llvm-symbolizers, binutils' `addr2line`, and two libraries in the
/// program `symbols-peer`.
pub(super) fn namers(ours: &Path, libraries: &Path, file: &Path) -> anyhow::Result<Vec<Namer>> {
    let mut namers = vec![Namer::new("coroner", ours, &[], file)];
    namers[0].arguments.push("--plain".into());
    for (version, program) in llvm_symbolizers()? {
        namers.push(Namer::new(&version, &program, &["--no-demangle", "--inlines", "--obj"], file));
    }
    let options = ["--functions", "--inlines", "--addresses", "--exe"];
    namers.push(Namer::new("addr2line", Path::new("addr2line"), &options, file));
    namers.extend(["wholesym", "blazesym"].map(|name| Namer::new(name, libraries, &[name], file)));
    Ok(namers)
}

/// Measures all namers in turn.
///
/// The result is the minimum over five rounds, or one round if ours takes over half a second.
/// `None` for a namer that took longer than `limit` or failed, which is printed.
pub(super) fn costs(namers: &[Namer], addresses: &[u64], folder: &Path, limit: Duration) -> Vec<Option<Cost>> {
    let mut costs: Vec<Option<Cost>> = Vec::new();
    for namer in namers {
        costs.push(namer.cost(addresses, folder, limit).unwrap_or_else(|error| {
            println!("{:<20} {}: {error:#}", "", namer.name);
            None
        }));
    }
    if costs[0].is_some_and(|ours| ours.seconds < 0.5) {
        for _ in 1..5 {
            for (namer, least) in namers.iter().zip(&mut costs) {
                // A namer that failed once is not run again.
                let Some(least) = least else { continue };
                if let Ok(Some(cost)) = namer.cost(addresses, folder, limit)
                    && cost.seconds < least.seconds
                {
                    *least = cost;
                }
            }
        }
    }
    costs
}

/// Returns the machine's llvm-symbolizers, by version.
pub(super) fn llvm_symbolizers() -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir("/usr/lib").context("listing /usr/lib")?.flatten() {
        let name = entry.file_name();
        let version =
            name.to_str().and_then(|name| name.strip_prefix("llvm-")).and_then(|version| version.parse().ok());
        let program = entry.path().join("bin/llvm-symbolizer");
        if let Some(version) = version
            && program.exists()
        {
            found.push((version, program));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(version, program)| (format!("llvm-{version}"), program)).collect())
}
