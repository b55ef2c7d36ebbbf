//! Follows a crash through the next launch into a Bugsink server's database.

use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::{Bench, Row, output};
use toolbox::tools;

/// Time limit of the server's start.
const TIMEOUT: Duration = Duration::from_mins(2);

/// The only property that the server's schema doesn't define but Relay does: a frame's trust.
const KNOWN: &str = "('trust' was unexpected)";

/// The server, until dropped.
struct Server<'b> {
    bench: &'b Bench,
    data: tempfile::TempDir,
    port: u16,
    process: Option<Child>,
    dsn: String,
    /// The DSN of a second project.
    limited_dsn: String,
    token: String,
    slug: String,
}

impl<'b> Server<'b> {
    fn set_up(bench: &'b Bench) -> anyhow::Result<Self> {
        // In memory if possible: setup writes a database in hundreds of small steps.
        let memory = Path::new("/dev/shm");
        let data = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let data = data.context("can't create a folder for the server's data")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let none = String::new;
        let mut server =
            Self { bench, data, port, process: None, dsn: none(), limited_dsn: none(), token: none(), slug: none() };
        let made = server.manage(&["setup"])?;
        made["dsn"].as_str().context("the server returned no DSN")?.clone_into(&mut server.dsn);
        made["limited_dsn"].as_str().context("the server returned no second DSN")?.clone_into(&mut server.limited_dsn);
        made["token"].as_str().context("the server returned no token")?.clone_into(&mut server.token);
        made["slug"].as_str().context("the server created no project")?.clone_into(&mut server.slug);
        Ok(server)
    }

    fn environment(&self, command: &mut Command) {
        let sources = tools::workspace_root().join("tools/sentry-check/src");
        command
            .current_dir(self.data.path())
            .env("PYTHONPATH", sources)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("DJANGO_SETTINGS_MODULE", "bugsink_conf")
            .env("CORONER_BUGSINK_DATA", self.data.path())
            .env("CORONER_BUGSINK_PORT", self.port.to_string());
    }

    /// Returns the output of `bugsink_server.py`.
    fn manage(&self, arguments: &[&str]) -> anyhow::Result<Value> {
        let mut command = self.bench.python("bugsink_server.py")?;
        self.environment(command.args(arguments));
        let printed = output(&mut command)?;
        Ok(serde_json::from_str(printed.lines().last().unwrap_or_default())?)
    }

    /// Starts the server, with a quota of events per five minutes if one is given.
    fn start(&mut self, quota: Option<u32>) -> anyhow::Result<()> {
        let mut command = self.bench.tool("gunicorn");
        // Processing a minidump takes a while.
        command.args(["bugsink.wsgi", "--workers=1", "--threads=2", "--timeout=300", "--no-control-socket", "--bind"]);
        command.arg(format!("127.0.0.1:{}", self.port));
        self.environment(&mut command);
        if let Some(quota) = quota {
            command.env("CORONER_BUGSINK_QUOTA", quota.to_string());
        }
        let log = File::options().create(true).append(true).open(self.log())?;
        command.stdout(log.try_clone()?).stderr(log);
        self.process = Some(command.spawn().context("starting gunicorn")?);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if began.elapsed() > TIMEOUT {
                bail!("the server did not start: {}", fs::read_to_string(self.log()).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // SAFETY: sends a signal to a child that has not been waited for. It makes Gunicorn end
            // its workers.
            unsafe { libc::kill(process.id() as i32, libc::SIGTERM) };
            let _ = process.wait();
        }
    }

    fn log(&self) -> PathBuf {
        self.data.path().join("gunicorn.log")
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The app: its store, and a folder to which it writes each event before sending it.
struct App<'b> {
    bench: &'b Bench,
    store: PathBuf,
    dump: PathBuf,
}

impl<'b> App<'b> {
    fn new(bench: &'b Bench, name: &str) -> anyhow::Result<Self> {
        Ok(Self { bench, store: bench.folder(name)?, dump: bench.folder(&format!("{name}-events"))? })
    }

    fn run(&self, dsn: &str, words: &[&str]) -> anyhow::Result<String> {
        let mut command = self.bench.program("sentry_app");
        command.arg(&self.store).arg(dsn).args(words).arg(format!("dump={}", self.dump.display()));
        Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
    }

    /// Returns all events that it was about to send, by id.
    fn events(&self) -> anyhow::Result<Vec<(String, Value)>> {
        let mut events = Vec::new();
        for file in fs::read_dir(&self.dump)? {
            let path = file?.path();
            let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            events.push((id, serde_json::from_slice(&fs::read(&path)?)?));
        }
        Ok(events)
    }
}

/// Returns a type's items in raw envelopes.
fn items<'v>(envelopes: &'v [Value], kind: &str) -> Vec<&'v str> {
    let mark = format!("\"type\":\"{kind}\"");
    let texts = envelopes.iter().filter_map(Value::as_str);
    let lines = texts.flat_map(|text| text.lines().zip(text.lines().skip(1)));
    lines.filter(|(header, _)| header.starts_with('{') && header.contains(&mark)).map(|(_, payload)| payload).collect()
}

/// Crashes an app, starts it again, and reads back the server's data.
pub(super) fn check(bench: &Bench) -> anyhow::Result<Vec<Row>> {
    let mut server = Server::set_up(bench)?;
    let quota = Quota::exceed(bench, &mut server)?;
    server.start(None)?;
    let app = App::new(bench, "bugsink")?;
    let dsn = server.dsn.clone();
    let attachment = bench.scratch.path().join("notes.txt");
    fs::write(&attachment, "attached to the crash")?;
    let attach = format!("attach={}", attachment.display());

    // The first event is dropped, so that there is something for a client report; the second is
    // sent.
    app.run(&dsn, &["fault=abort", "no-symbols"])?;
    app.run(&dsn, &["drop", "flush=60", "no-symbols"])?;
    app.run(&dsn, &["fault=null-store"])?;
    let printed = app.run(&dsn, &["flush=60", &attach])?;
    ensure!(printed.contains("flushed: true"), "the app can't deliver its report: {printed}");
    let events = app.events()?;
    let [(id, sent)] = events.as_slice() else {
        bail!("unexpected number of events: expected 1, got {}", events.len())
    };

    let mut rows = Vec::new();
    let mut row = |what: &str, problems: Vec<String>| rows.push(Row::new("bugsink", what, problems));
    let found = server.manage(&["read", id])?;
    let kept = found["events"].as_array().context("missing list of events")?;
    let mut problems = Vec::new();
    if kept.len() != 1 {
        problems.push(format!("the server has the event {} times", kept.len()));
    }
    if kept.first() != Some(sent) {
        problems.push("the server's event differs from the sent one".to_owned());
    }
    row("the database has the event once, as sent", problems);

    let holds = |text: &str, what: &str| {
        let page = found["page"].as_str().unwrap_or_default();
        if page.contains(text) { Vec::new() } else { vec![format!("the issue's page doesn't contain {what}")] }
    };
    row("the issue's page names the function", holds("null_store", "`null_store`"));
    row("the issue's page has tags and breadcrumb levels", holds("weather", "the tag `weather`"));
    let title = found["title"].as_str().unwrap_or_default().to_owned();
    // The app's innermost function, which was inlined into `null_store`. If programs have only line
    // tables, inlined functions have names without paths.
    let grouped = title.trim().rsplit("::").next() == Some("store");
    row(
        "the event is grouped by the function",
        if grouped { Vec::new() } else { vec![format!("the title is {title:?}")] },
    );

    let envelopes = found["envelopes"].as_array().cloned().unwrap_or_default();
    let one = |kind: &str, text: &str| {
        let items = items(&envelopes, kind);
        let is = items.iter().any(|item| item.contains(text));
        if is { Vec::new() } else { vec![format!("missing {kind} with {text}: {items:?}")] }
    };
    row("the attachment arrived", one("attachment", "attached to the crash"));
    row("the session's end arrived", one("session", "\"status\":\"crashed\""));
    row("the next session's start arrived", one("session", "\"init\":true"));
    row("the client report arrived", one("client_report", "\"reason\":\"before_send\""));
    let complaints = fs::read_to_string(server.log())?;
    let complaints: Vec<String> = complaints
        .lines()
        .filter(|line| line.contains("validation failed") && !line.contains(KNOWN))
        .map(ToOwned::to_owned)
        .collect();
    row("the event conforms to the server's schema", complaints);

    // Sending it twice must have the same effect as once.
    let again = app.run(&dsn, &["flush=60"])?;
    let after = server.manage(&["read", id])?;
    let number = after["number_of_all_events"].as_u64();
    let problems = if number == Some(1) { Vec::new() } else { vec![format!("{number:?} events: {again}")] };
    row("nothing arrived twice", problems);

    // The server is down while the app crashes and is started; later it is up again.
    server.stop();
    app.run(&dsn, &["sleep=2100", "fault=divide-by-zero", "no-symbols"]).context("a crash in an outage")?;
    let printed = app.run(&dsn, &["flush=5", "retry=1"])?;
    let waits = printed.contains("flushed: false");
    server.start(None)?;
    std::thread::sleep(Duration::from_millis(1100));
    let printed = app.run(&dsn, &["flush=60", "retry=1"])?;
    let came = server.manage(&["read", id])?["number_of_all_events"].as_u64() == Some(2);
    let problems =
        if waits && came { Vec::new() } else { vec![format!("waited: {waits}, arrived: {came}; {printed}")] };
    row("an outage loses nothing", problems);

    if bench.long {
        let (figures, problems) = outage(bench, &mut server)?;
        row(&figures, problems);
    }

    let problems_of = |result: anyhow::Result<Vec<String>>| result.unwrap_or_else(|error| vec![format!("{error:#}")]);
    row("sentry-cli uploads debug files", problems_of(upload(bench, &server)));
    row("the server names the functions of a minidump", problems_of(minidump(bench, &server)));
    row("events over the server's quota wait, and arrive once they may", problems_of(quota.wait_for_end(&server)));
    Ok(rows)
}

/// Stops the server for two minutes while an app repeatedly crashes and starts again.
///
/// The launches after that must deliver everything exactly once. Returns the measurements and the
/// problems.
fn outage(bench: &Bench, server: &mut Server<'_>) -> anyhow::Result<(String, Vec<String>)> {
    const OUTAGE: Duration = Duration::from_mins(2);
    /// Longer than until everything that was postponed is due: a delay of 8 s, doubled four times.
    const TIMEOUT: Duration = Duration::from_mins(4);
    let app = App::new(bench, "outage")?;
    let dsn = server.dsn.clone();
    let retry = ["retry=8000", "no-symbols"];
    let number = |server: &Server<'_>| -> anyhow::Result<u64> {
        let read = server.manage(&["read", "00000000000000000000000000000000"])?;
        read["number_of_all_events"].as_u64().context("no number of events")
    };
    let before = number(server)?;
    let (mut crashes, mut slowest) = (0, 0);
    let mut launch = |words: &[&str]| -> anyhow::Result<String> {
        let printed = app.run(&dsn, &[&retry[..], words].concat())?;
        let took: Option<u64> = printed.split_whitespace().nth(2).and_then(|ms| ms.parse().ok());
        slowest = slowest.max(took.with_context(|| format!("no install time in the output: {printed}"))?);
        Ok(printed)
    };
    server.stop();
    let began = Instant::now();
    let mut problems = Vec::new();
    while began.elapsed() < OUTAGE {
        // More than two seconds after its start, so that no launch waits on purpose.
        launch(&["sleep=2100", "fault=null-store"])?;
        crashes += 1;
        let printed = launch(&["flush=1", "sleep=6000"])?;
        if !printed.contains("flushed: false") {
            problems.push(format!("events count as delivered although there is no server: {printed}"));
        }
    }
    let gone = began.elapsed();
    server.start(None)?;
    let back = Instant::now();
    while !launch(&["flush=10"])?.contains("flushed: true") {
        if back.elapsed() > TIMEOUT {
            problems.push("not everything came".to_owned());
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let came = number(server)? - before;
    if came != crashes {
        problems.push(format!("{came} events of {crashes} crashes arrived"));
    }
    let figures = format!(
        "an outage of {:.0} s loses nothing: {crashes} crashes, all delivered once {:.0} s after its end; install took {slowest} ms at \
         most",
        gone.as_secs_f64(),
        back.elapsed().as_secs_f64()
    );
    Ok((figures, problems))
}

/// An app that the server has notified that its quota is exceeded.
struct Quota<'b> {
    app: App<'b>,
    /// The time of the notification.
    notified: Instant,
    problems: Vec<String>,
}

impl<'b> Quota<'b> {
    /// The time in which nothing may be sent after that (`X-Sentry-Rate-Limits: 60::key`).
    const LIMIT: Duration = Duration::from_mins(1);

    /// Sends one event to a project whose quota is one, and then another.
    ///
    /// Afterwards the server is stopped and its state reset; the app keeps its own.
    fn exceed(bench: &'b Bench, server: &mut Server<'_>) -> anyhow::Result<Self> {
        server.start(Some(1))?;
        let app = App::new(bench, "quota")?;
        let dsn = server.limited_dsn.clone();
        let mut problems = Vec::new();
        let mut notified = Instant::now();
        for expected in ["flushed: true", "flushed: false"] {
            app.run(&dsn, &["sleep=2100", "fault=null-store", "no-symbols"])?;
            let printed = app.run(&dsn, &["flush=60", "no-symbols"])?;
            notified = Instant::now();
            if !printed.contains(expected) {
                problems.push(format!("not {expected}: {printed}"));
            }
        }
        server.stop();
        server.manage(&["forget_quota"])?;
        Ok(Self { app, notified, problems })
    }

    /// Checks that a launch within the time limit sends nothing, and one after it does.
    fn wait_for_end(mut self, server: &Server<'_>) -> anyhow::Result<Vec<String>> {
        let events = || -> anyhow::Result<Option<u64>> {
            let read = server.manage(&["read", "00000000000000000000000000000000"])?;
            Ok(read["number_of_limited_events"].as_u64())
        };
        if self.notified.elapsed() + Duration::from_secs(10) < Self::LIMIT {
            let printed = self.app.run(&server.limited_dsn, &["flush=5", "no-symbols"])?;
            let number = events()?;
            if number != Some(1) || !printed.contains("flushed: false") {
                self.problems.push(format!("{number:?} events within the limit: {printed}"));
            }
        }
        std::thread::sleep((Self::LIMIT + Duration::from_secs(2)).saturating_sub(self.notified.elapsed()));
        let printed = self.app.run(&server.limited_dsn, &["flush=60", "no-symbols"])?;
        let number = events()?;
        if number != Some(2) || !printed.contains("flushed: true") {
            self.problems.push(format!("{number:?} events after the limit: {printed}"));
        }
        Ok(self.problems)
    }
}

/// Sends a crash without names but with a minidump to the server, which has the app's debug files.
///
/// Returns the problems.
fn minidump(bench: &Bench, server: &Server<'_>) -> anyhow::Result<Vec<String>> {
    // The server uses only files that contain nothing but debug information.
    let debug = bench.folder("debug")?.join("sentry_app.debug");
    output(Command::new("objcopy").arg("--only-keep-debug").arg(bench.programs.join("sentry_app")).arg(&debug))?;
    upload_file(bench, server, &debug)?;
    let app = App::new(bench, "bugsink-minidump")?;
    app.run(&server.dsn, &["fault=null-store", "no-symbols"])?;
    let printed = app.run(&server.dsn, &["minidump", "flush=280", "timeout=280000", "no-symbols"])?;
    ensure!(printed.contains("flushed: true"), "the app can't deliver its report: {printed}");
    let events = app.events()?;
    let [(id, sent)] = events.as_slice() else {
        bail!("unexpected number of events: expected 1, got {}", events.len())
    };
    let found = server.manage(&["read", id])?;
    let kept = &found["events"][0];
    // The server puts the minidump's exception after ours. The innermost frame comes last.
    let frame = |event: &Value| {
        let exception = event["exception"]["values"].as_array()?.last()?;
        exception["stacktrace"]["frames"].as_array()?.last().cloned()
    };
    let exceptions = |event: &Value| event["exception"]["values"].as_array().map_or(0, Vec::len);
    ensure!((exceptions(sent), exceptions(kept)) == (1, 2), "the server created no exception from the minidump");
    let (ours, theirs) = (frame(sent).context("no stack was sent")?, frame(kept).context("the server has no stack")?);
    let mut problems = Vec::new();
    if ours.get("function").is_some() {
        problems.push(format!("the event already had names: {ours}"));
    }
    let names = |key: &str, what: &str| theirs[key].as_str().is_some_and(|text| text.contains(what));
    if !names("function", "store") || !names("filename", ".rs") || theirs["lineno"].is_null() {
        problems.push(format!("unexpected answer of the server: {theirs}"));
    }
    let address = |frame: &Value| {
        let address = &frame["instruction_addr"];
        let digits = address.as_str().map(|text| text.trim_start_matches("0x"));
        digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).or_else(|| address.as_u64())
    };
    if address(&ours).is_none() || address(&ours) != address(&theirs) {
        problems.push(format!("{:?} became {:?}", ours["instruction_addr"], theirs["instruction_addr"]));
    }
    Ok(problems)
}

/// Uploads the app's debug files; returns the problems.
fn upload(bench: &Bench, server: &Server<'_>) -> anyhow::Result<Vec<String>> {
    let program = bench.programs.join("sentry_app");
    upload_file(bench, server, &program)?;
    let checked = bench.tool("sentry-cli").args(["debug-files", "check", "--json"]).arg(&program).output()?;
    let checked: Value = serde_json::from_slice(&checked.stdout)?;
    let id = checked["variants"][0]["debug_id"].as_str().context("no debug id")?.to_owned();
    let known = server.manage(&["read", "00000000000000000000000000000000"])?["debug_ids"].to_string();
    Ok(if known.contains(&id) { Vec::new() } else { vec![format!("the server doesn't have {id}: {known}")] })
}

fn upload_file(bench: &Bench, server: &Server<'_>, path: &Path) -> anyhow::Result<()> {
    let mut command = bench.tool("sentry-cli");
    command
        .args(["debug-files", "upload", "--include-sources"])
        .arg(path)
        .env("SENTRY_URL", format!("http://127.0.0.1:{}", server.port))
        .env("SENTRY_AUTH_TOKEN", &server.token)
        .env("SENTRY_ORG", "bugsinkhasnoorgs")
        .env("SENTRY_PROJECT", &server.slug)
        .env_remove("SENTRY_DSN");
    output(&mut command).map(drop)
}
