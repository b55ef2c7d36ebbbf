//! The sample apps: how each is built, how it crashes, and what its report must contain.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use object::{Object as _, ObjectSection as _};
use serde_json::Value;

use super::{Places, documents, ended, script};
use toolbox::tools;

/// The packages that an app uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The packaged crates.
    Rust,
    /// The archive for C.
    Native,
}

/// The command to start an app; arguments follow.
#[derive(Clone, Copy)]
enum Start {
    Program(&'static str),
    /// With the file that Python runs.
    Python(&'static str),
    /// A server, which prints its port.
    Server(&'static str),
}

/// An app; its files are in `fixtures/front-door/NAME`.
pub(super) struct App {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    start: Start,
    /// The app ID that it installs Coroner with.
    id: &'static str,
    /// Build and strip steps.
    ///
    /// Each is a document's code block with a text replaced (`from`, `to`; empty for none), or a
    /// command (without `#`).
    build: &'static [(&'static str, &'static str, &'static str)],
    pub(super) crashes: &'static [Crash],
}

/// An app's expected exit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Signal(i32),
    Exit(i32),
    /// No exit: the server continues to answer.
    NonFatal,
}

/// An app's crash.
pub(super) struct Crash {
    pub(super) what: &'static str,
    /// The app's argument, or the server's request.
    word: &'static str,
    end: End,
    /// Parts of the report's headline, with `{}` for the line.
    sentence: &'static [&'static str],
    /// The function, and the file, in which the last text marks the line.
    function: &'static str,
    file: &'static str,
    mark: &'static str,
}

const CARGO: (&str, &str, &str) = ("docs/stripped-releases.md#With Cargo:sh", "", "");
const STRIP: (&str, &str, &str) = ("docs/stripped-releases.md#With a C or C++ compiler:sh", "", "");
const PAINT: &str = "com.example.paint";

pub(super) const APPS: [App; 7] = [
    App {
        name: "rust-cli",
        kind: Kind::Rust,
        start: Start::Program("dist/paint"),
        id: PAINT,
        build: &[CARGO],
        crashes: &[
            Crash {
                what: "a null pointer",
                word: "crash",
                end: End::Signal(libc::SIGSEGV),
                sentence: &[
                    "Null pointer: read of 8 bytes at null + 0x10",
                    "in paint::canvas::height_of_next (canvas.rs:{})",
                ],
                function: "paint::canvas::height_of_next",
                file: "src/canvas.rs",
                mark: "// crash",
            },
            Crash {
                what: "the document's own abort",
                word: "abort",
                end: End::Signal(libc::SIGABRT),
                sentence: &["Abort, called by paint::canvas::test_it (canvas.rs:{})"],
                function: "paint::canvas::test_it",
                file: "src/canvas.rs",
                mark: "std::process::abort",
            },
        ],
    },
    App {
        name: "axum",
        kind: Kind::Rust,
        start: Start::Server("dist/paint"),
        id: "com.example.shop",
        build: &[CARGO],
        crashes: &[
            Crash {
                what: "a panic in a handler",
                word: "/price",
                end: End::NonFatal,
                sentence: &["index out of bounds: the len is 2 but the index is 2"],
                function: "paint::shop::price",
                file: "src/shop.rs",
                mark: "// panic",
            },
            Crash {
                what: "a stack overflow in a handler",
                word: "/parts",
                end: End::Signal(libc::SIGABRT),
                sentence: &["Stack overflow: excessive recursion in paint::shop::parts: "],
                function: "paint::shop::parts",
                file: "src/shop.rs",
                mark: "// overflow",
            },
        ],
    },
    App {
        name: "rayon",
        kind: Kind::Rust,
        start: Start::Program("dist/paint"),
        id: PAINT,
        build: &[CARGO],
        crashes: &[
            Crash {
                what: "a panic in a closure",
                word: "panic",
                end: End::Exit(101),
                sentence: &["index out of bounds: the len is 3 but the index is 3"],
                function: "paint::blur::weighted",
                file: "src/blur.rs",
                mark: "// panic",
            },
            Crash {
                what: "a wild pointer in a closure",
                word: "crash",
                end: End::Signal(libc::SIGSEGV),
                sentence: &["in paint::blur::sample (blur.rs:{})"],
                function: "paint::blur::sample",
                file: "src/blur.rs",
                mark: "// crash",
            },
        ],
    },
    App {
        name: "cmake",
        kind: Kind::Native,
        start: Start::Program("dist/paint"),
        id: PAINT,
        build: &[("docs/c.md#With CMake:sh", "", ""), STRIP],
        crashes: &[Crash {
            what: "a write to a constant",
            word: "crash",
            end: End::Signal(libc::SIGSEGV),
            sentence: &["Write to read-only memory: `title` was 0x", "in capitalise (main.c:{})"],
            function: "capitalise",
            file: "main.c",
            mark: "/* crash",
        }],
    },
    App {
        name: "meson",
        kind: Kind::Native,
        start: Start::Program("dist/paint"),
        id: PAINT,
        build: &[("docs/c.md#With Meson:sh", "", ""), STRIP],
        crashes: &[Crash {
            what: "a virtual call of null",
            word: "crash",
            end: End::Signal(libc::SIGSEGV),
            sentence: &["Null pointer: `this->_M_t._M_head_impl` was null", "in paint::total", "(main.cpp:{})"],
            function: "paint::total",
            file: "main.cpp",
            mark: "// crash",
        }],
    },
    App {
        name: "static-libstdcxx",
        kind: Kind::Native,
        start: Start::Program("dist/paint"),
        id: PAINT,
        build: &[
            ("mkdir build", "", ""),
            ("docs/c.md#With the compiler alone:sh", "c++ -g", "c++ -static-libstdc++ -static-libgcc -g"),
            STRIP,
        ],
        crashes: &[Crash {
            what: "an exception that nobody catches",
            word: "crash",
            end: End::Signal(libc::SIGABRT),
            sentence: &["std::out_of_range: no such brush: round, thrown by paint::Brushes::width", "(main.cpp:{})"],
            function: "paint::Brushes::width",
            file: "main.cpp",
            mark: "// throw",
        }],
    },
    App {
        name: "python",
        kind: Kind::Native,
        start: Start::Python("paint.py"),
        id: PAINT,
        build: &[("mkdir build\ncc -g -O2 -shared -fPIC -o build/paint paint.c", "", ""), STRIP],
        crashes: &[Crash {
            what: "a division by zero in an extension",
            word: "crash",
            end: End::Signal(libc::SIGFPE),
            sentence: &["Integer division by zero: `brushes` was 0", "in share (paint.c:{})"],
            function: "share",
            file: "paint.c",
            mark: "/* crash",
        }],
    },
];

/// Time limit for a server to answer or to exit, or its report to appear.
const TIMEOUT: Duration = Duration::from_mins(1);

impl App {
    /// Creates the app in `folder`, with the documents' code and commands.
    pub(super) fn build(&self, places: &Places, folder: &Path) -> anyhow::Result<()> {
        let source = tools::workspace_root().join("fixtures/front-door").join(self.name);
        if folder.is_dir() {
            fs::remove_dir_all(folder)?;
        }
        documents::fill(&source, folder)?;
        fs::create_dir_all(folder.join("home"))?;
        if self.kind == Kind::Rust {
            // One folder for all, so that shared dependencies are built once, with the workspace's
            // versions.
            fs::create_dir_all(&places.target)?;
            std::os::unix::fs::symlink(&places.target, folder.join("target"))?;
            fs::copy(tools::workspace_root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        }
        for (what, from, to) in self.build {
            let mut text = if what.contains('#') { documents::code(what)? } else { (*what).to_owned() };
            if what.starts_with("docs/c.md#With the compiler") {
                ensure!(text.contains(from), "missing {from:?} in {what}");
            }
            if !from.is_empty() {
                text = text.replace(from, to);
            }
            script(places, folder, &text)?;
        }
        let shipped = fs::read(folder.join("dist/paint"))?;
        let shipped = object::File::parse(&*shipped)?;
        let kept = shipped.sections().filter_map(|section| section.name().ok().map(str::to_owned));
        let kept: Vec<_> =
            kept.filter(|name| [".debug_info", ".debug_line", ".symtab"].contains(&name.as_str())).collect();
        ensure!(kept.is_empty(), "the shipped files are not stripped: they contain {kept:?}");
        Ok(())
    }

    /// Returns the app's command, as started by its user.
    fn command(&self, places: &Places, folder: &Path, words: &[&str]) -> anyhow::Result<Command> {
        let mut command = match self.start {
            Start::Program(program) | Start::Server(program) => places.command(folder.join(program), folder)?,
            Start::Python(file) => {
                let mut command = places.command("python3", folder)?;
                command.arg(folder.join(file));
                command
            }
        };
        command.args(words);
        Ok(command)
    }

    /// Crashes the app (or not), launches it again, and lets it exit.
    fn die(&self, crash: &Crash, places: &Places, folder: &Path) -> anyhow::Result<()> {
        if let Start::Server(_) = self.start {
            return self.serve(crash, places, folder);
        }
        let died = ended(&mut self.command(places, folder, &[crash.word])?, folder)?;
        is_end(crash.end, died.status).with_context(|| died.stderr.clone())?;
        ensure!(!died.stderr.contains("crash reports") && !died.stderr.contains("not be reported"), "{}", died.stderr);
        let again = ended(&mut self.command(places, folder, &[])?, folder)?;
        ensure!(again.status.success(), "unexpected exit of the second launch: {}: {}", again.status, again.stderr);
        // Only for apps that print it.
        if again.stdout.contains("the last run") {
            ensure!(
                again.stdout.contains("the last run crashed"),
                "unexpected output of the second launch: {}",
                again.stdout
            );
        }
        Ok(())
    }

    /// Like `die`, for a server: sends it the fatal request, and starts it again.
    fn serve(&self, crash: &Crash, places: &Places, folder: &Path) -> anyhow::Result<()> {
        let before = reports(self, folder);
        let mut server = Server::start(self.command(places, folder, &[])?)?;
        server.ask(crash.word).ok();
        if crash.end != End::NonFatal {
            is_end(crash.end, server.wait()?)?;
            server = Server::start(self.command(places, folder, &[])?)?;
        }
        ensure!(server.ask("/")?.contains("open"), "no answer from the server");
        let began = Instant::now();
        while reports(self, folder) == before {
            ensure!(began.elapsed() < TIMEOUT, "no report found");
            std::thread::sleep(Duration::from_millis(50));
        }
        server.end()
    }
}

/// Counts the reports.
fn reports(app: &App, folder: &Path) -> usize {
    let folder = folder.join("home/.local/state").join(app.id).join("coroner/reports");
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "json")).count()
}

fn is_end(expected: End, status: std::process::ExitStatus) -> anyhow::Result<()> {
    let is = match expected {
        End::Signal(signal) => status.signal() == Some(signal),
        End::Exit(code) => status.code() == Some(code),
        End::NonFatal => false,
    };
    ensure!(is, "unexpected exit: {status}");
    Ok(())
}

/// A running server, killed when dropped.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut server = Self { process, port: 0 };
        let mut line = String::new();
        BufReader::new(server.process.stdout.take().context("no output")?).read_line(&mut line)?;
        server.port = line.trim().parse().with_context(|| format!("not a port: {line:?}"))?;
        Ok(server)
    }

    /// Returns the server's answer; an error if the request kills it.
    fn ask(&self, path: &str) -> anyhow::Result<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port))?;
        connection.set_read_timeout(Some(TIMEOUT))?;
        write!(connection, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn wait(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            ensure!(began.elapsed() < TIMEOUT, "the server did not exit");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(mut self) -> anyhow::Result<()> {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        is_end(End::Signal(libc::SIGTERM), self.wait()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Crash {
    /// Crashes the app, and reads its report as its developer would.
    pub(super) fn check(&self, app: &App, places: &Places, folder: &Path) -> anyhow::Result<()> {
        app.die(self, places, folder)?;
        let documented = |place: &str| anyhow::Ok(documents::code(place)?.replace(PAINT, app.id));
        let source = fs::read_to_string(folder.join(self.file))?;
        let line = source.lines().position(|line| line.contains(self.mark)).context("missing line marker")? + 1;
        let place = format!("{}:{line}", self.file);

        script(places, folder, &documented("docs/getting-started.md#See it work:sh")?)?;
        let show = documented("docs/stripped-releases.md#Where names are looked up:sh")?;
        let text = script(places, folder, &show)?;
        let printed = text.lines().take(2).collect::<Vec<_>>().join("\n");
        for part in self.sentence {
            let part = part.replace("{}", &line.to_string());
            ensure!(printed.contains(&part), "missing {part:?} in the headline: {printed:?}");
        }
        ensure!(text.contains(&place), "missing {place} in the report: {text}");

        let json: Value =
            serde_json::from_str(&script(places, folder, &format!("{} --format json", show.trim_end()))?)?;
        let ended = &json["run"]["lifecycle"]["exit"];
        let expected = if self.end == End::NonFatal { "running" } else { "crashed" };
        ensure!(*ended == expected, "unexpected outcome: {ended}");
        self.has_frame(&json, line as u64)
    }

    /// Whether the crashed thread, or the throw's stack, has the function at its line.
    fn has_frame(&self, json: &Value, line: u64) -> anyhow::Result<()> {
        let crashed = &json["crash"]["tid"];
        let threads = json["threads"].as_array().context("no threads")?;
        let thread =
            threads.iter().find(|thread| thread["tid"] == *crashed).context("the crashed thread is missing")?;
        let thrown = json["exceptions"][0]["frames"].as_array();
        let frames = thrown.or_else(|| thread["frames"].as_array()).context("no frames")?;
        let is_here = |frame: &&Value| {
            let name = frame["function"].as_str().unwrap_or_default().split(['(', '<']).next();
            let file = frame["file"].as_str().unwrap_or_default();
            name == Some(self.function) && file.ends_with(self.file) && frame["line"].as_u64() == Some(line)
        };
        if frames.iter().any(|frame| is_here(&frame)) {
            return Ok(());
        }
        let names: Vec<_> = frames.iter().map(|frame| frame["function"].as_str().unwrap_or("?")).collect();
        bail!("missing {} at line {line} among {names:?}", self.function)
    }
}
