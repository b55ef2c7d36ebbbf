//! Hosts with C++ runtimes, signal handlers, stacks and threads of their own: Coroner changes
//! nothing for them, and reports their crashes.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{c_program, library, succeed};

/// A folder with a program and its store.
struct Host {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Host {
    fn new(arguments: &[&str]) -> Host {
        let folder = tempfile::tempdir().unwrap();
        let program = c_program("host.c", arguments, folder.path());
        Host { folder, program }
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        run(&self.program, &self.store(), arguments)
    }

    /// Runs it in a new store; it must die of that signal and leave one report.
    fn dies_of(&self, signal: i32, arguments: &[&str]) -> Value {
        let _ = std::fs::remove_dir_all(self.store());
        let ended = self.run(arguments);
        assert_eq!(ended.status.signal(), Some(signal), "{arguments:?}: {ended:?}");
        assert!(self.run(&[]).status.success());
        let mut reports = reports(&self.store());
        assert_eq!(reports.len(), 1, "{arguments:?}: one death, one report");
        reports.remove(0)
    }
}

fn run(program: &Path, store: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c 0; exec \"$@\"", "sh"]).arg(program).arg(store).args(arguments);
    command.output().unwrap()
}

/// Returns the delivered reports.
fn reports(store: &Path) -> Vec<Value> {
    let paths = std::fs::read_dir(store.join("reports")).unwrap().map(|entry| entry.unwrap().path());
    let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    json.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
}

fn is_stack_overflow(report: &Value) {
    let flags = report["crash"]["flags"].as_array();
    assert!(flags.is_some_and(|flags| flags.contains(&"stack_overflow".into())), "{}", report["crash"]);
}

fn are_successful(what: &str, ended: &Output) {
    assert!(ended.status.success(), "{what}: {ended:?}");
}

#[test]
fn a_handler_on_the_alternate_stack_has_room() {
    let host = Host::new(&[]);
    for kilobytes in ["60", "900"] {
        are_successful(kilobytes, &host.run(&["onstack", kilobytes]));
    }
}

#[test]
fn earlier_handlers_dump_before_the_process_dies_as_it_would_have() {
    let host = Host::new(&[]);
    for (kilobytes, death, signal) in
        [("60", "fault", libc::SIGSEGV), ("60", "abort", libc::SIGABRT), ("600", "abort", libc::SIGABRT)]
    {
        host.dies_of(signal, &["dumps", kilobytes, death]);
        let ended = host.run(&["dumps", kilobytes, death]);
        assert_eq!(ended.stdout, b"own dump\n", "{kilobytes} KiB, {death}: {ended:?}");
    }
}

/// With a glibc that is linked into the program, too: its `pthread_create` must be found.
#[test]
fn c11_threads_have_alternate_stacks() {
    for arguments in [&[][..], &["-static"]] {
        let host = Host::new(arguments);
        are_successful("c11", &host.run(&["c11"]));
        let report = host.dies_of(libc::SIGSEGV, &["c11-overflow"]);
        is_stack_overflow(&report);
    }
    let folder = tempfile::tempdir().unwrap();
    are_successful("c11", &run(&shared_host(folder.path()).0, &folder.path().join("store"), &["c11"]));
}

#[test]
fn each_of_many_threads_from_before_install_has_an_alternate_stack() {
    let report = Host::new(&[]).dies_of(libc::SIGSEGV, &["threads-before", "300"]);
    is_stack_overflow(&report);
}

/// The former are captured by ptrace, the latter not at all.
#[test]
fn threads_that_await_signals_or_have_a_sandbox_are_not_sent_one() {
    let host = Host::new(&[]);
    for action in ["sigwaitinfo", "signalfd", "sandboxed-thread"] {
        are_successful(action, &host.run(&[action]));
    }
}

/// Without a breadcrumb or a delivery; the handler's own action ends the process.
#[test]
fn handlers_that_replace_coroners_come_after_it() {
    let host = Host::new(&[]);
    host.dies_of(libc::SIGSEGV, &["replaces"]);
    are_successful("uninstalled", &host.run(&["replaces-uninstall"]));
    for children in ["replaces-worker", "replaces-daemon"] {
        let _ = std::fs::remove_dir_all(host.store());
        are_successful(children, &host.run(&[children]));
        assert!(host.run(&[]).status.success());
        assert_eq!(reports(&host.store()).len(), 1, "{children}");
    }
}

/// Builds the program of `own_runtime.cpp` with the static library.
#[cfg(not(feature = "wrap-cxa-throw"))]
fn cxx_program(folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let mut command = cxx("c++").unwrap();
    command.args(["-DPROGRAM", SOURCE, "-o"]).arg(&program).args(crate::common::fast_linker()).arg(library("a"));
    succeed(command.args(["-lpthread", "-ldl", "-lm"]));
    program
}

#[test]
#[cfg(not(feature = "wrap-cxa-throw"))]
fn an_exception_is_described_though_the_app_has_set_its_terminate_handler_since() {
    let folder = tempfile::tempdir().unwrap();
    let (program, store) = (cxx_program(folder.path()), folder.path().join("store"));
    for (death, output) in
        [("own handler", "own handler\n"), ("chaining handler", "own handler\n"), ("restored handler", "")]
    {
        let ended = run(&program, &store, &[death]);
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{death}: {ended:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stdout), output, "{death}");
        are_successful(death, &run(&program, &store, &[]));
        let reports = reports(&store);
        assert_eq!(reports.len(), 1, "{death}: one death, one report");
        let crash = &reports[0]["crash"];
        assert_eq!(
            (&crash["exception_type"], &crash["message"]),
            (&"std::runtime_error".into(), &"boom".into()),
            "{crash}"
        );
        std::fs::remove_dir_all(&store).unwrap();
    }
}

/// clang links the sanitizers' runtimes into the program.
#[test]
fn sanitizers_of_the_program_see_its_threads() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(SOURCE).with_file_name("host.c");
    for sanitizer in ["thread", "address"] {
        let program = folder.path().join(sanitizer);
        let Some(mut command) = cxx(&format!("clang -fsanitize={sanitizer}")) else { continue };
        command.arg(&source).arg("-o").arg(&program).args(crate::common::fast_linker()).arg(library("a"));
        if !command.args(["-lpthread", "-ldl", "-lm"]).status().unwrap().success() {
            // The runtime is a package of its own.
            continue;
        }
        are_successful(sanitizer, &run(&program, &folder.path().join("store"), &["onstack", "8"]));
    }
}

/// Returns the path of the shared library for the linker, by the name that programs look for.
fn shared_library(folder: &Path) -> PathBuf {
    let shared = folder.join(env!("CORONER_SONAME"));
    std::fs::copy(library("so"), &shared).unwrap();
    shared
}

/// Builds the host with the shared library; returns its path, the library's and the linker's option
/// by which programs find the library.
fn shared_host(folder: &Path) -> (PathBuf, PathBuf, String) {
    let (host, shared) = (folder.join("host"), shared_library(folder));
    let rpath = format!("-Wl,-rpath,{}", folder.display());
    let mut command = Command::new("cc");
    command.args(["-g", "-I"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    command.arg(Path::new(SOURCE).with_file_name("host.c")).arg("-o").arg(&host).arg(&shared);
    succeed(command.args([&rpath, "-lpthread", "-ldl"]));
    (host, shared, rpath)
}

/// Returns a C++ compiler's command, if that compiler and its linker are installed.
fn cxx(words: &str) -> Option<Command> {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next()?);
    command.args(words).args(["-g", "-O1", "-I"]).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    let is_there = Command::new("sh").arg("-c").arg(format!("{command:?} -x c++ -E - < /dev/null")).output().unwrap();
    is_there.status.success().then_some(command)
}

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/own_runtime.cpp");

/// The linker takes Coroner's `__cxa_throw` and omits that of the archive.
#[test]
#[cfg(not(feature = "wrap-cxa-throw"))]
fn programs_with_their_own_libstdcxx_throw_beside_the_shared_library() {
    let folder = tempfile::tempdir().unwrap();
    let shared = shared_library(folder.path());
    let (program, store) = (folder.path().join("program"), folder.path().join("store"));
    for compiler in ["g++", "g++ -fuse-ld=gold", "clang++ -fuse-ld=lld"] {
        for linkage in [&["-static-libstdc++"][..], &["-static-libstdc++", "-static-libgcc", "-s"]] {
            let Some(mut command) = cxx(compiler) else { continue };
            command.args(["-DPROGRAM", SOURCE]).args(linkage).arg(&shared);
            succeed(command.arg(format!("-Wl,-rpath,{}", folder.path().display())).arg("-o").arg(&program));
            let what = format!("{compiler} {linkage:?}");
            are_successful(&what, &run(&program, Path::new(""), &[]));
            are_successful(&what, &run(&program, &store, &[]));
            let ended = run(&program, &store, &["dies"]);
            assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{what}: {ended:?}");
            are_successful(&what, &run(&program, &store, &[]));
            let reports = reports(&store);
            assert_eq!(reports.len(), 1, "{what}");
            assert_eq!(reports[0]["crash"]["message"], "boom", "{what}: {}", reports[0]["crash"]);
            std::fs::remove_dir_all(&store).unwrap();
        }
    }
}

/// The host is a C program, so that the dynamic linker's global scope has no C++ runtime.
#[test]
#[cfg(not(feature = "wrap-cxa-throw"))]
fn plugins_with_any_libstdcxx_throw_in_a_c_program() {
    let folder = tempfile::tempdir().unwrap();
    let (host, shared, rpath) = shared_host(folder.path());
    let store = folder.path().join("store");
    let plugin = |name: &str, linkage: &[&str], with_coroner: bool| {
        let path = folder.path().join(name);
        let mut command = cxx("c++").unwrap();
        command.args(["-shared", "-fPIC", SOURCE]).args(linkage).arg("-o").arg(&path);
        if with_coroner {
            command.arg(&shared).arg(&rpath);
        }
        succeed(&mut command);
        path.to_str().unwrap().to_owned()
    };
    let whole = ["-static-libstdc++", "-static-libgcc"];
    let plugins = [
        plugin("usual.so", &[], false),
        plugin("own.so", &["-static-libstdc++"], false),
        plugin("whole.so", &whole, false),
        plugin("omitted.so", &["-static-libstdc++"], true),
        plugin("whole-omitted.so", &whole, true),
    ];
    let all: Vec<&str> = plugins.iter().map(String::as_str).collect();
    let orders = all.iter().map(|one| vec![*one]).chain([all.clone(), all.iter().rev().copied().collect()]);
    for plugins in orders {
        for store in [Path::new(""), &store] {
            are_successful(&format!("{plugins:?}"), &run(&host, store, &[&["plugins"][..], &plugins].concat()));
        }
    }
}
