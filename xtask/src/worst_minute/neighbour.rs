//! Who else is in the process: runtimes that load `libcoroner_ffi.so`, from Debian's packages.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::crash_program;
use crate::tools;

/// One neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Neighbour {
    /// The test program, which is Rust.
    None,
    /// A program in C.
    C,
    /// A program in C with AddressSanitizer.
    AddressSanitizer,
    /// A program in Go, with cgo.
    Go,
    /// CPython.
    Python,
    /// Node: V8, and its own handlers for traps of WebAssembly.
    Node,
    /// A program in C with AddressSanitizer that lets nobody have its signals.
    ExclusiveAddressSanitizer,
    /// CPython with wasmtime, from PyPI.
    Wasmtime,
    /// HotSpot, which makes exceptions of faults.
    Java,
}

impl Neighbour {
    /// Whether it is a runtime that has to be there.
    pub(super) fn is_runtime(self) -> bool {
        self != Neighbour::None
    }
}

const C_SOURCE: &str = include_str!("host.c");
const PYTHON_SOURCE: &str = include_str!("host.py");
const NODE_SOURCE: &str = include_str!("host.js");
const GO_SOURCE: &str = include_str!("host.go");
const JAVA_SOURCE: &str = include_str!("Host.java");

/// As pip names it.
const WASMTIME: &str = "wasmtime==50.0.1";

/// The runtimes that are there, and what was built for them.
#[derive(Debug)]
pub(super) struct Hosts {
    folder: tempfile::TempDir,
    versions: BTreeMap<Neighbour, String>,
}

impl Hosts {
    pub(super) fn new() -> anyhow::Result<Hosts> {
        Ok(Hosts { folder: tempfile::tempdir()?, versions: BTreeMap::new() })
    }

    /// What the runtimes that were used say of their versions.
    pub(super) fn versions(&self) -> Vec<&str> {
        self.versions.values().map(String::as_str).collect()
    }

    /// The command that runs those words of a row with that neighbour.
    ///
    /// # Errors
    /// The runtime is not there and can't be had, or what it loads can't be built.
    pub(super) fn command(
        &mut self,
        neighbour: Neighbour,
        words: &[&str],
        store: &Path,
        work: &Path,
    ) -> anyhow::Result<Vec<OsString>> {
        if neighbour == Neighbour::None {
            let (fault, conditions) = words.split_first().context("a fault")?;
            let mut command: Vec<OsString> = vec![crash_program().into(), store.into(), (*fault).into(), "3".into()];
            command.extend(conditions.iter().map(OsString::from));
            return Ok(command);
        }
        if !self.versions.contains_key(&neighbour) {
            let version = self.set_up(neighbour)?;
            self.versions.insert(neighbour, version);
        }
        let place = |name: &str| self.folder.path().join(name).into_os_string();
        let mut command: Vec<OsString> = match neighbour {
            Neighbour::None | Neighbour::C => vec![place("host")],
            Neighbour::AddressSanitizer => vec![place("sanitized-host")],
            Neighbour::ExclusiveAddressSanitizer => {
                vec!["/usr/bin/env".into(), "ASAN_OPTIONS=handle_segv=2".into(), place("sanitized-host")]
            }
            Neighbour::Wasmtime => {
                let mut path = OsString::from("PYTHONPATH=");
                path.push(place("wasmtime"));
                let python = ["/usr/bin/python3".into(), place("host.py"), library().into()];
                ["/usr/bin/env".into(), path].into_iter().chain(python).collect()
            }
            Neighbour::Go => vec![place("go-host")],
            // The system's, and not one of an environment around this command.
            Neighbour::Python => vec!["/usr/bin/python3".into(), place("host.py"), library().into()],
            Neighbour::Node => vec!["node".into(), place("host.js"), place("install.node"), place("crash.node")],
            Neighbour::Java => {
                let mut errors = OsString::from("-XX:ErrorFile=");
                errors.push(work.join("hs_err.log"));
                let options = ["-Xmx64m", "-cp"].map(OsString::from);
                let words = [self.folder.path().into(), "Host".into(), place("install.node")];
                ["java".into(), errors].into_iter().chain(options).chain(words).collect()
            }
        };
        command.extend(words.iter().map(OsString::from));
        Ok(command)
    }

    /// Installs what is missing, builds what the neighbour loads, and asks for its version.
    fn set_up(&self, neighbour: Neighbour) -> anyhow::Result<String> {
        tools::debian_package("gcc", "gcc")?;
        let file = |name: &str| self.folder.path().join(name);
        fs::write(file("host.c"), C_SOURCE)?;
        fs::write(file("library.h"), format!("#define LIBRARY \"{}\"\n", library().display()))?;
        let build = |name: &str, options: &[&str]| {
            let mut gcc = Command::new("gcc");
            gcc.args(["-g", "-O1", "-Wall", "-o"]).arg(file(name)).arg(file("host.c")).args(options);
            said(gcc.arg("-ldl")).map(drop)
        };
        let addon = |name: &str, kind: &str| build(name, &["-shared", "-fPIC", kind]);
        match neighbour {
            Neighbour::None => Ok(String::new()),
            Neighbour::C => {
                build("host", &["-DHOST"])?;
                first_line(Command::new("gcc").arg("--version"))
            }
            Neighbour::AddressSanitizer | Neighbour::ExclusiveAddressSanitizer => {
                build("sanitized-host", &["-DHOST", "-fsanitize=address"])?;
                Ok(format!("AddressSanitizer of {}", first_line(Command::new("gcc").arg("--version"))?))
            }
            Neighbour::Go => {
                tools::debian_package("golang-go", "go")?;
                fs::write(file("host.go"), GO_SOURCE)?;
                let mut go = Command::new("go");
                go.args(["build", "-o", "go-host", "host.go"]).current_dir(self.folder.path());
                said(go.env("GOCACHE", file("go-cache")).env("CGO_ENABLED", "1"))?;
                first_line(Command::new("go").arg("version"))
            }
            Neighbour::Python => {
                tools::debian_package("python3", "python3")?;
                fs::write(file("host.py"), PYTHON_SOURCE)?;
                first_line(Command::new("/usr/bin/python3").arg("--version"))
            }
            Neighbour::Wasmtime => {
                tools::debian_package("python3-pip", "pip3")?;
                fs::write(file("host.py"), PYTHON_SOURCE)?;
                let mut pip = Command::new("/usr/bin/python3");
                pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
                pip.args(["--only-binary", ":all:", "--break-system-packages", "--target"]).arg(file("wasmtime"));
                said(pip.arg(WASMTIME))?;
                Ok(WASMTIME.to_owned())
            }
            Neighbour::Node => {
                tools::debian_package("nodejs", "node")?;
                addon("install.node", "-DINSTALL")?;
                addon("crash.node", "-DCRASH")?;
                fs::write(file("host.js"), NODE_SOURCE)?;
                Ok(format!("Node {}", first_line(Command::new("node").arg("--version"))?))
            }
            Neighbour::Java => {
                tools::debian_package("default-jdk-headless", "javac")?;
                addon("install.node", "-DINSTALL")?;
                fs::write(file("Host.java"), JAVA_SOURCE)?;
                said(Command::new("javac").arg("-d").arg(self.folder.path()).arg(file("Host.java")))?;
                first_line(Command::new("java").arg("--version"))
            }
        }
    }
}

/// The library that runtimes load.
fn library() -> PathBuf {
    tools::target_dir().join("debug/libcoroner_ffi.so")
}

/// What a command that succeeds says.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("running {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn first_line(command: &mut Command) -> anyhow::Result<String> {
    said(command).map(|text| text.lines().next().unwrap_or_default().to_owned())
}
