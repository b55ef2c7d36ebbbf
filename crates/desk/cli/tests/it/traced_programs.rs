//! `coroner run`: programs that a preloaded library would not cover, and what a tracer must not
//! change.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coroner_test_otlp_collector::Server as Collector;
use coroner_tests::server::{Reply, Server};
use serde_json::Value;

use super::run_program::{Bench, CommandOutput};

/// One program with several ways to live and die, selected by its first argument.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static volatile int zero;
__attribute__((noinline)) static void serve(void) { *(volatile int *)(long)zero = 1; }
static sigjmp_buf back;
static volatile int handled;
static void handler(int signal) { handled++; if (signal == SIGSEGV) siglongjmp(back, 1); }
static void *idle(void *none) { for (;;) pause(); return none; }
static void *work(void *none) { usleep(50000); serve(); return none; }
int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "serve")) serve();
    if (!strcmp(how, "worker") && !fork()) {
        if (setgroups(0, 0) || setgid(65534) || setuid(65534)) _exit(9);
        serve();
    }
    if (!strcmp(how, "daemon")) {
        if (fork()) _exit(0);
        setsid();
        if (fork()) _exit(0);
        freopen("/dev/null", "r+", stdin); freopen("/dev/null", "w", stdout); freopen("/dev/null", "w", stderr);
        sleep(1);
        serve();
    }
    if (!strcmp(how, "handles")) {
        signal(SIGSEGV, handler);
        for (volatile int i = 0; i < 1000; i++) if (!sigsetjmp(back, 1)) serve();
        return handled == 1000 ? 5 : 1;
    }
    if (!strcmp(how, "storm")) {
        struct itimerval often = {{0, 500}, {0, 500}};
        signal(SIGPROF, handler);
        setitimer(ITIMER_PROF, &often, 0);
        while (handled < 50);
        return 6;
    }
    if (!strcmp(how, "spawn")) {
        char *arguments[] = {argv[0], "serve", 0};
        pid_t child;
        if (posix_spawn(&child, argv[0], 0, 0, arguments, environ)) return 1;
    }
    if (!strcmp(how, "vfork")) {
        if (!vfork()) { execl(argv[0], argv[0], "serve", (char *)0); _exit(1); }
    }
    if (!strcmp(how, "threads")) {
        pthread_t thread;
        for (int i = 0; i < 3; i++) pthread_create(&thread, 0, idle, 0);
        pthread_create(&thread, 0, work, 0);
        pthread_join(thread, 0);
    }
    int status;
    while (wait(&status) > 0);
    puts("ended");
    return 0;
}
"#;

fn program(bench: &Bench, options: &[&str]) -> String {
    let options = [&["-lpthread"], options].concat();
    bench.program("program", PROGRAM, &options).to_str().unwrap().to_owned()
}

fn reports(bench: &Bench) -> Vec<String> {
    bench.run(&["list"]).out.lines().map(ToOwned::to_owned).collect()
}

/// Waits for a condition of another process.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn crashes_of_all_kinds_of_children_are_reported() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let mut kinds = vec!["spawn", "vfork"];
    // SAFETY: it takes no arguments.
    if unsafe { libc::geteuid() } == 0 {
        kinds.push("worker");
    }
    for (index, kind) in kinds.into_iter().enumerate() {
        let ended = bench.run(&["run", "--", &program, kind]);
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), "ended\n"), "{kind}: {ended:?}");
        assert!(ended.err.contains("(program) crashed") && ended.err.contains("in serve"), "{kind}: {ended:?}");
        assert_eq!(reports(&bench).len(), index + 1, "{kind}");
    }
}

#[test]
fn a_static_program_and_one_with_another_user_are_reported() {
    let bench = Bench::new();
    let program = program(&bench, &["-static"]);
    // SAFETY: it takes no arguments.
    let is_root = unsafe { libc::geteuid() } == 0;
    let setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", &program, "serve"];
    // The other user must reach the program.
    assert!(Command::new("chmod").arg("755").arg(bench.path("")).status().unwrap().success());
    let commands = [Some(&[program.as_str(), "serve"][..]), is_root.then_some(&setpriv[..])];
    for command in commands.into_iter().flatten() {
        let crashed = bench.run(&[&["run", "--"], command].concat());
        assert_eq!(crashed.signal, Some(libc::SIGSEGV), "{crashed:?}");
        assert!(crashed.err.starts_with("Null pointer") && crashed.err.contains("in serve"), "{crashed:?}");
    }
}

#[test]
fn a_daemon_is_traced_after_the_front_process_has_exited() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let started = bench.run(&["run", "--", &program, "daemon"]);
    assert_eq!((started.code, started.out.as_str(), started.err.as_str()), (Some(0), "", ""), "{started:?}");
    wait_until("the report", || reports(&bench).iter().any(|line| line.contains("in serve")));
}

#[test]
fn all_threads_are_in_the_report() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let crashed = bench.run(&["run", "--", &program, "threads"]);
    assert_eq!(crashed.signal, Some(libc::SIGSEGV), "{crashed:?}");
    let shown = bench.run(&["show", "--format", "json"]);
    let report: Value = serde_json::from_str(&shown.out).unwrap_or_else(|error| panic!("{error}: {shown:?}"));
    let threads = report["threads"].as_array().unwrap();
    let has = |thread: &Value, name: &str| {
        thread["frames"].as_array().unwrap().iter().any(|frame| frame["function"].as_str() == Some(name))
    };
    assert!(has(&threads[0], "serve") && threads[0]["crashed"] == true, "{report:#}");
    assert_eq!(threads.iter().filter(|thread| has(thread, "idle")).count(), 3, "{report:#}");
    assert_eq!((threads.len(), &report["complete"]), (5, &Value::from(true)), "{}", report["problems"]);
}

#[test]
fn handled_faults_and_signal_storms_pass() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    for (how, code) in [("handles", 5), ("storm", 6)] {
        let ended = bench.run(&["run", "--", &program, how]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(code), ""), "{how}: {ended:?}");
    }
    assert!(!bench.path("store").exists());
}

#[test]
fn the_message_of_an_uncaught_exception_is_read_from_the_process() {
    const THROWS: &str = r#"
#include <stdexcept>
#include <string>
struct closed : std::runtime_error { using std::runtime_error::runtime_error; };
__attribute__((noinline)) static void open_shop(int how) {
    if (how == 1) throw closed("the shop is closed");
    if (how == 2) throw std::string("text alone");
    if (how == 3) throw 42;
    try { throw closed("caught"); } catch (...) {}
    __builtin_abort();
}
int main(int argc, char **) { open_shop(argc); }
"#;
    let bench = Bench::new();
    std::fs::write(bench.path("shop.cpp"), THROWS).unwrap();
    let program = bench.path("shop");
    for runtime in ["-shared-libgcc", "-static-libstdc++"] {
        let mut compiler = Command::new("c++");
        compiler.args(["-g", "-O1", runtime, "-o"]).arg(&program).arg(bench.path("shop.cpp"));
        assert!(compiler.status().unwrap().success());
        let program = program.to_str().unwrap();
        let more = ["a", "b", "c"];
        for (count, wanted) in [
            (0, "closed: the shop is closed, thrown by open_shop"),
            (1, "text alone, thrown by open_shop"),
            (2, "int: 42, thrown by open_shop"),
            (3, "Abort, called by open_shop"),
        ] {
            let crashed = bench.run(&[&["run", "--", program], &more[..count]].concat());
            assert_eq!(crashed.signal, Some(libc::SIGABRT), "{crashed:?}");
            assert!(crashed.err.contains(wanted), "{runtime} {wanted}: {crashed:?}");
        }
    }
}

#[test]
fn exit_codes_and_output_are_those_without_a_tracer() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let serve = format!("'{program}' serve");
    let commands = [
        "exit 0".to_owned(),
        "exit 255".to_owned(),
        "kill -TERM $$".to_owned(),
        "kill -KILL $$".to_owned(),
        "kill -SEGV $$".to_owned(),
        "(sleep 0.2; kill -CONT $$) & kill -STOP $$; exit 4".to_owned(),
        "trap 'exit 7' TERM; kill -TERM $$".to_owned(),
        "trap '' QUIT; kill -QUIT $$; exit 8".to_owned(),
        "ulimit -t 1; while :; do :; done".to_owned(),
        "cat /no/such/file".to_owned(),
        "head -c 100000 /dev/zero | wc -c".to_owned(),
        "yes | head -1".to_owned(),
        "echo in | cat; (exit 3) & wait $!".to_owned(),
        "for i in 1 2 3 4 5 6 7 8 9; do (sleep 0.01; exit $i) & done; wait; echo $?".to_owned(),
        serve.clone(),
        format!("{serve}; echo $?"),
        format!("exec {serve}"),
        format!("timeout 10 {serve}; echo $?"),
        format!("exec timeout 10 {serve}"),
        "timeout 0.2 sleep 10".to_owned(),
        "test -t 0; echo $?; test -t 1; echo $?; test -t 2; echo $?".to_owned(),
        "exec env -i /bin/sh -c 'exit 9'".to_owned(),
        "ls /proc/self/fd | wc -l".to_owned(),
        "cat /proc/$$/status | grep -E '^Sig(Blk|Ign|Cgt)'".to_owned(),
        "nice -n 5 nice".to_owned(),
        "perl -e 'kill 9, $$'".to_owned(),
        "python3 -c 'import os; os.abort()'".to_owned(),
        "python3 -c 'import subprocess; print(subprocess.run([\"sh\", \"-c\", \"exit 3\"]).returncode)'".to_owned(),
    ];
    for command in commands {
        let mut alone = Command::new("sh");
        alone.args(["-c", "ulimit -c 0; exec sh -c \"$1\"", "sh", &command]).current_dir(bench.path(""));
        let alone = CommandOutput::new(&alone.output().unwrap());
        let traced = bench.run(&["run", "--", "sh", "-c", &command]);
        let ends = |output: &CommandOutput| (output.code, output.signal, output.out.clone());
        assert_eq!(ends(&traced), ends(&alone), "{command}: {traced:?}");
        assert!(!traced.err.contains("warning"), "{command}: {traced:?}");
    }
}

#[test]
fn a_death_passed_on_by_timeout_is_one_report() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let crashed = bench.run(&["run", "--", "timeout", "10", &program, "serve"]);
    assert!(!crashed.err.contains("warning"), "{crashed:?}");
    let list = reports(&bench);
    assert!(list.len() == 1 && list[0].contains("in serve"), "{list:?}");
}

#[test]
fn many_short_programs_leave_no_files() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("tmp")).unwrap();
    let script = "for i in $(seq 200); do /bin/true; done; exit 3";
    let mut command = bench.command(&["run", "--", "sh", "-c", script]);
    let ended = CommandOutput::new(&command.env("TMPDIR", bench.path("tmp")).output().unwrap());
    assert_eq!((ended.code, ended.err.as_str()), (Some(3), ""), "{ended:?}");
    assert_eq!(std::fs::read_dir(bench.path("tmp")).unwrap().count(), 0);
}

/// LeakSanitizer ends a traced program.
#[test]
fn a_program_with_a_sanitizer_is_not_traced() {
    const LEAKS: &str = "#include <stdlib.h>\nint main(void) { char *volatile lost = malloc(10); lost = 0; return 3; }";
    let bench = Bench::new();
    std::fs::write(bench.path("leaks.c"), LEAKS).unwrap();
    for options in [&["-fsanitize=address"][..], &["-fsanitize=address", "-static-libasan"], &["-fsanitize=leak"]] {
        let program = bench.path("leaks");
        let built = Command::new("gcc").args(options).arg("-o").arg(&program).arg(bench.path("leaks.c")).status();
        if !built.unwrap().success() {
            println!("not available: {options:?}");
            continue;
        }
        let code = |command: &mut Command| command.stderr(Stdio::null()).status().unwrap().code();
        let alone = code(&mut Command::new(&program));
        let traced = bench.run(&["run", "--", program.to_str().unwrap()]);
        assert_eq!(traced.code, alone, "{options:?} {traced:?}");
        assert!(traced.err.contains("its sanitizer reports its crashes itself"), "{traced:?}");
        assert!(!traced.err.contains("ptrace"), "{traced:?}");
    }
}

#[test]
fn only_selected_programs_are_reported() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let script = format!("'{program}' serve; exit 2");
    for (options, is_reported) in [
        (&["--only", "program"][..], true),
        (&["--only", &program], true),
        (&["--only", "another"], false),
        (&["--no-follow"], false),
    ] {
        let ended = bench.run(&[&["run"], options, &["--", "sh", "-c", &script]].concat());
        assert_eq!((ended.code, ended.err.contains("crashed")), (Some(2), is_reported), "{options:?} {ended:?}");
    }
}

/// A program that can't be traced runs all the same, after a warning.
#[test]
fn a_traced_command_runs_its_program_untraced() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let command = env!("CARGO_BIN_EXE_coroner");
    let crashed = bench.run(&["run", "--", command, "run", "--", &program, "serve"]);
    assert_eq!(crashed.signal, Some(libc::SIGSEGV), "{crashed:?}");
    assert!(crashed.err.contains("can't trace the program") && crashed.err.contains("already traced"), "{crashed:?}");
    let list = reports(&bench);
    assert!(list.len() == 1 && list[0].contains("in serve"), "{list:?}");
}

/// Starts a shell with the script in a process group of its own, and waits for its first line.
fn start(bench: &Bench, script: &str) -> (Child, BufReader<std::process::ChildStdout>, u32) {
    let mut command = bench.command(&["run", "--", "sh", "-c", script]);
    let mut child = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut pid = String::new();
    out.read_line(&mut pid).unwrap();
    (child, out, pid.trim().parse().unwrap())
}

fn status_field(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default().trim().to_owned()
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a signal to processes that this test started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn a_job_stops_and_continues() {
    let bench = Bench::new();
    let (mut child, mut out, pid) = start(&bench, "echo $$; read line; echo got $line; exit 6");
    for _ in 0..3 {
        signal(-(child.id() as i32), libc::SIGTSTP);
        wait_until("the stop", || {
            [child.id(), pid].iter().all(|pid| status_field(*pid, "State:").starts_with(['T', 't']))
        });
        signal(-(child.id() as i32), libc::SIGCONT);
        wait_until("the end of the stop", || {
            [child.id(), pid].iter().all(|pid| status_field(*pid, "State:").starts_with('S'))
        });
    }
    child.stdin.take().unwrap().write_all(b"it\n").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("got it\n", Some(6)));
}

#[test]
fn the_program_continues_when_the_command_is_killed() {
    let bench = Bench::new();
    for kills_tracer in [true, false] {
        let (mut child, mut out, pid) = start(&bench, "echo $$; read line; echo got $line");
        let tracer: u32 = status_field(pid, "TracerPid:").parse().unwrap();
        assert!(tracer != 0 && tracer != child.id());
        signal(if kills_tracer { tracer } else { child.id() } as i32, libc::SIGKILL);
        if kills_tracer {
            wait_until("the tracer's end", || status_field(pid, "TracerPid:") == "0");
        }
        child.stdin.take().unwrap().write_all(b"it\n").unwrap();
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "got it\n");
        assert_eq!(child.wait().unwrap().code(), kills_tracer.then_some(0));
    }
}

/// In a pid namespace of its own, as the first process, and as the parent of one.
#[test]
fn containers_first_processes_are_reported() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    let unshare = ["unshare", "--user", "--map-root-user", "--pid", "--mount", "--mount-proc", "--fork"];
    if !Command::new(unshare[0]).args(&unshare[1..]).arg("true").status().is_ok_and(|status| status.success()) {
        println!("no namespaces can be made here");
        return;
    }
    let inside = bench.run(&[&["run", "--"], &unshare[..], &[&program, "serve"]].concat());
    assert!(inside.err.contains("(program) crashed") && inside.err.contains("in serve"), "{inside:?}");

    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let command = bench.command(&["run", "--dsn", &server.dsn(), "--", &program, "serve"]);
    let mut first = Command::new(unshare[0]);
    first.args(&unshare[1..]).arg(command.get_program()).args(command.get_args());
    first.env("CORONER_STORE", bench.path("store")).current_dir(bench.path(""));
    let first = CommandOutput::new(&first.output().unwrap());
    assert_eq!(first.code, Some(128 + libc::SIGSEGV), "{first:?}");
    assert!(first.err.contains("in serve"), "{first:?}");
    // It is sent before the first process exits, which ends all others.
    assert_eq!(server.events().len(), 1, "{first:?}");
}

#[test]
fn reports_are_sent_before_the_command_exits() {
    let bench = Bench::new();
    let program = program(&bench, &[]);
    // Nothing can be stored.
    std::fs::write(bench.path("store"), "no folder").unwrap();
    let run = |options: &[&str]| {
        let arguments = [&["run"], options, &["--", &program, "serve"]].concat();
        let mut command = bench.command(&arguments);
        let crashed = CommandOutput::new(&command.env("TMPDIR", bench.path("")).output().unwrap());
        assert_eq!(crashed.signal, Some(libc::SIGSEGV), "{crashed:?}");
        crashed
    };
    let server = Server::start(|_, _| Reply::ok()).unwrap();
    let crashed = run(&["--dsn", &server.dsn(), "--release", "shop@1"]);
    assert!(crashed.err.contains("Sent"), "{crashed:?}");
    let event = &server.items("event")[0];
    assert_eq!((&event["release"], &event["exception"]["values"][0]["type"]), (&"shop@1".into(), &"SIGSEGV".into()));

    let collector = Collector::start(Vec::new());
    run(&["--otlp", &collector.url]);
    assert_eq!(collector.requests()[0].attributes()["exception.type"], "SIGSEGV");

    let gone = run(&["--otlp", "http://127.0.0.1:9"]);
    assert!(gone.err.contains("can't reach the server"), "{gone:?}");
    let invalid = bench.run(&["run", "--dsn", "no address", "--", &program]);
    assert!(invalid.code == Some(125) && invalid.out.is_empty(), "{invalid:?}");
}
