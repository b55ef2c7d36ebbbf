//! Runtimes in the same process: each loads `libcoroner_ffi.so`.
//!
//! They come from Debian packages and PyPI.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use toolbox::tools;

/// A neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Neighbour {
    /// The test program, written in Rust.
    None,
    /// A program in C.
    C,
    /// A program in C with AddressSanitizer.
    AddressSanitizer,
    /// A program in Go, with cgo.
    Go,
    /// CPython.
    Python,
    /// Node: V8, with its own handlers for WebAssembly traps.
    Node,
    /// A program in C with AddressSanitizer that doesn't allow other handlers for its signals.
    ExclusiveAddressSanitizer,
    /// CPython with wasmtime, from PyPI.
    Wasmtime,
    /// HotSpot, which turns faults into exceptions.
    Java,
    /// .NET: CoreCLR, from a Python package on PyPI.
    DotNet,
    /// Mono.
    Mono,
    /// A program in C with Boehm's garbage collector, whose write barrier is a SIGSEGV handler.
    Collector,
    /// redis with Coroner preloaded; its own handlers are installed later and call no others.
    Redis,
    /// redis, with `Crashes::reinstall_handlers`.
    RedisReinstalled,
    /// nginx with Coroner preloaded: a daemon whose workers have another user.
    Nginx,
    /// PHP's FastCGI process manager, likewise.
    PhpFpm,
    /// Ruby, whose handlers were installed before.
    Ruby,
    /// Ruby with Coroner preloaded; its own handlers are installed later.
    RubyPreloaded,
}

impl Neighbour {
    /// Whether it is a runtime that must be available.
    pub(super) fn is_runtime(self) -> bool {
        self != Neighbour::None
    }
}

const C_SOURCE: &str = include_str!("host.c");
const COLLECTOR_SOURCE: &str = include_str!("host_gc.c");
const WORKERS_SCRIPT: &str = include_str!("workers.sh");
const PYTHON_SOURCE: &str = include_str!("host.py");
const NODE_SOURCE: &str = include_str!("host.js");
const RUBY_SOURCE: &str = include_str!("host.rb");
const GO_SOURCE: &str = include_str!("host.go");
const JAVA_SOURCE: &str = include_str!("Host.java");
const C_SHARP_SOURCE: &str = include_str!("Host.cs");

/// pip requirements.
const WASMTIME: &str = "wasmtime==50.0.1";
const DOT_NET: &str = "dotnetcore2==3.1.23";
/// The runtime configuration that `dotnet` needs next to a program, without ICU.
const DOT_NET_OPTIONS: &str = r#"{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
    "configProperties": {"System.Globalization.Invariant": true}}}"#;

/// The available runtimes, and the programs built for them.
#[derive(Debug)]
pub(super) struct Hosts {
    folder: tempfile::TempDir,
    versions: BTreeMap<Neighbour, String>,
}

impl Hosts {
    pub(super) fn new() -> anyhow::Result<Hosts> {
        Ok(Hosts { folder: tempfile::tempdir()?, versions: BTreeMap::new() })
    }

    /// Returns the versions of the runtimes that were used.
    pub(super) fn versions(&self) -> Vec<&str> {
        self.versions.values().map(String::as_str).collect()
    }

    /// Returns the command that runs a row's arguments with a neighbour.
    ///
    /// Without a neighbour, they run in `program`, a `crash_program`.
    ///
    /// # Errors
    /// An error if the runtime is missing and can't be installed, or the library that it loads
    /// can't be built.
    pub(super) fn command(
        &mut self,
        neighbour: Neighbour,
        words: &[&str],
        program: &Path,
        store: &Path,
        work: &Path,
    ) -> anyhow::Result<Vec<OsString>> {
        if neighbour == Neighbour::None {
            let (fault, conditions) = words.split_first().context("a fault")?;
            let mut command: Vec<OsString> = vec![program.into(), store.into(), (*fault).into(), "3".into()];
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
                let python = ["/usr/bin/python3".into(), place("host.py"), library().into(), place("libhost.so")];
                ["/usr/bin/env".into(), path].into_iter().chain(python).collect()
            }
            Neighbour::Go => vec![place("go-host")],
            // The system's Python, not that of an environment around this command.
            Neighbour::Python => {
                vec!["/usr/bin/python3".into(), place("host.py"), library().into(), place("libhost.so")]
            }
            Neighbour::Node => {
                let addons = ["install.node", "crash.node", "errors.node"].map(place);
                ["node".into(), place("host.js")].into_iter().chain(addons).collect()
            }
            Neighbour::DotNet => vec![place("dotnet/dotnetcore2/bin/dotnet"), place("Host.dll")],
            Neighbour::Mono => vec!["mono".into(), place("Host.exe")],
            Neighbour::Collector => vec![place("collector-host")],
            Neighbour::Redis | Neighbour::RedisReinstalled => {
                let named = |name: &str, value: OsString| {
                    let mut variable = OsString::from(name);
                    variable.push(value);
                    variable
                };
                let socket = work.join("socket").into_os_string();
                let variables = [named("LD_PRELOAD=", place("preload.so")), named("REDIS_SOCKET=", socket.clone())];
                let reinstall = (neighbour == Neighbour::RedisReinstalled).then(|| "REINSTALL=1".into());
                let server = ["redis-server", "--port", "0", "--save", "", "--enable-debug-command", "yes"];
                // Its handler would write to all of the process's memory.
                let server = server.into_iter().chain(["--crash-memcheck-enabled", "no"]);
                let mut command = vec![OsString::from("/usr/bin/env")];
                command.extend(variables.into_iter().chain(reinstall).chain(server.map(OsString::from)));
                command.extend(["--unixsocket".into(), socket]);
                command
            }
            Neighbour::Nginx | Neighbour::PhpFpm => {
                let server = if neighbour == Neighbour::Nginx { "nginx" } else { "php-fpm" };
                vec!["/bin/sh".into(), place("workers.sh"), server.into(), place("preload.so")]
            }
            Neighbour::Ruby | Neighbour::RubyPreloaded => {
                let mut preload = OsString::from("LD_PRELOAD=");
                if neighbour == Neighbour::RubyPreloaded {
                    preload.push(place("preload.so"));
                }
                vec!["/usr/bin/env".into(), preload, "/usr/bin/ruby".into(), place("host.rb"), place("libhost.so")]
            }
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

    /// Installs missing packages, builds the neighbour's library, and returns its version.
    fn set_up(&self, neighbour: Neighbour) -> anyhow::Result<String> {
        tools::debian_package("gcc", "gcc")?;
        let file = |name: &str| self.folder.path().join(name);
        fs::write(file("host.c"), C_SOURCE)?;
        fs::write(file("library.h"), format!("#define LIBRARY \"{}\"\n", library().display()))?;
        let build = |name: &str, options: &[&str]| {
            let mut gcc = Command::new("gcc");
            gcc.args(["-g", "-O1", "-Wall", "-pthread", "-o"]).arg(file(name)).arg(file("host.c")).args(options);
            read_output(gcc.arg("-ldl")).map(drop)
        };
        let addon = |name: &str, kind: &str| build(name, &["-shared", "-fPIC", kind]);
        let from_pypi = |package: &str, folder: &str| {
            tools::debian_package("python3-pip", "pip3")?;
            let mut pip = Command::new("/usr/bin/python3");
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
            pip.args(["--only-binary", ":all:", "--break-system-packages", "--target"]).arg(file(folder));
            read_output(pip.arg(package)).map(drop)
        };
        // Without the standard libraries if others are given.
        let compile_c_sharp = |name: &str, libraries: &[PathBuf]| {
            tools::debian_package("mono-mcs", "mcs")?;
            fs::write(file("Host.cs"), C_SHARP_SOURCE)?;
            let mut mcs = Command::new("mcs");
            if !libraries.is_empty() {
                mcs.args(["-nostdlib", "-noconfig"]);
            }
            let mut output = OsString::from("-out:");
            output.push(file(name));
            mcs.arg(output).args(libraries.iter().map(|library| format!("-r:{}", library.display())));
            read_output(mcs.arg(file("Host.cs"))).map(drop)
        };
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
                read_output(go.env("GOCACHE", file("go-cache")).env("CGO_ENABLED", "1"))?;
                first_line(Command::new("go").arg("version"))
            }
            Neighbour::Python => {
                tools::debian_package("python3", "python3")?;
                addon("libhost.so", "-DLIBRARY_OF_FUNCTIONS")?;
                fs::write(file("host.py"), PYTHON_SOURCE)?;
                first_line(Command::new("/usr/bin/python3").arg("--version"))
            }
            Neighbour::Wasmtime => {
                from_pypi(WASMTIME, "wasmtime")?;
                fs::write(file("host.py"), PYTHON_SOURCE)?;
                Ok(WASMTIME.to_owned())
            }
            Neighbour::Node => {
                tools::debian_package("nodejs", "node")?;
                addon("install.node", "-DINSTALL")?;
                addon("crash.node", "-DCRASH")?;
                addon("errors.node", "-DERRORS")?;
                fs::write(file("host.js"), NODE_SOURCE)?;
                Ok(format!("Node {}", first_line(Command::new("node").arg("--version"))?))
            }
            Neighbour::Java => {
                tools::debian_package("default-jdk-headless", "javac")?;
                addon("install.node", "-DINSTALL")?;
                fs::write(file("Host.java"), JAVA_SOURCE)?;
                read_output(Command::new("javac").arg("-d").arg(self.folder.path()).arg(file("Host.java")))?;
                first_line(Command::new("java").arg("--version"))
            }
            Neighbour::DotNet => {
                from_pypi(DOT_NET, "dotnet")?;
                let runtimes = file("dotnet/dotnetcore2/bin/shared/Microsoft.NETCore.App");
                let runtime = fs::read_dir(&runtimes)?.next().context("missing runtime in the package")??.path();
                let libraries =
                    ["System.Private.CoreLib.dll", "System.Runtime.dll", "System.Runtime.InteropServices.dll"];
                compile_c_sharp("Host.dll", &libraries.map(|library| runtime.join(library)))?;
                fs::write(file("Host.runtimeconfig.json"), DOT_NET_OPTIONS)?;
                addon("libhost.so", "-DLIBRARY_OF_FUNCTIONS")?;
                Ok(format!(".NET {}", runtime.file_name().unwrap_or_default().display()))
            }
            Neighbour::Mono => {
                compile_c_sharp("Host.exe", &[])?;
                addon("libhost.so", "-DLIBRARY_OF_FUNCTIONS")?;
                first_line(Command::new("mono").arg("--version"))
            }
            Neighbour::Collector => {
                if !read_output(Command::new("/sbin/ldconfig").arg("-p"))?.contains("libgc.so.1") {
                    tools::install_debian_package("libgc1")?;
                }
                fs::write(file("host_gc.c"), COLLECTOR_SOURCE)?;
                let mut gcc = Command::new("gcc");
                gcc.args(["-g", "-O1", "-Wall", "-pthread", "-o"]).arg(file("collector-host")).arg(file("host_gc.c"));
                read_output(gcc.arg("-ldl"))?;
                Ok("Boehm's garbage collector, libgc.so.1".to_owned())
            }
            Neighbour::Nginx | Neighbour::PhpFpm => {
                let is_nginx = neighbour == Neighbour::Nginx;
                let (package, program, version) =
                    if is_nginx { ("nginx-light", "nginx", "-v") } else { ("php-fpm", "php-fpm8.2", "-v") };
                tools::debian_package(package, program)?;
                addon("preload.so", "-DPRELOAD")?;
                fs::write(file("workers.sh"), WORKERS_SCRIPT)?;
                first_line(Command::new("sh").args(["-c", &format!("{program} {version} 2>&1")]))
            }
            Neighbour::Ruby | Neighbour::RubyPreloaded => {
                tools::debian_package("ruby", "ruby")?;
                addon("libhost.so", "-DLIBRARY_OF_FUNCTIONS")?;
                addon("preload.so", "-DPRELOAD")?;
                fs::write(file("host.rb"), RUBY_SOURCE)?;
                first_line(Command::new("/usr/bin/ruby").arg("--version"))
            }
            Neighbour::Redis | Neighbour::RedisReinstalled => {
                tools::debian_package("redis-server", "redis-server")?;
                addon("preload.so", "-DPRELOAD")?;
                first_line(Command::new("redis-server").arg("--version"))
            }
        }
    }
}

/// Returns the library that runtimes load.
fn library() -> PathBuf {
    tools::built_library("libcoroner_ffi.so")
}

/// Runs a command that must succeed, and returns its output.
fn read_output(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("running {name}"))?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn first_line(command: &mut Command) -> anyhow::Result<String> {
    read_output(command).map(|text| text.lines().next().unwrap_or_default().to_owned())
}
