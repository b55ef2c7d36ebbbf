//! Running processes, read from outside.

use std::process::{Command, Stdio};
use std::time::Duration;

use coroner_report::Report;
use coroner_symbols::{Options, Symbolizer};

const WAITS: &str = r#"
#include <unistd.h>
__attribute__((noinline)) static int waits(int n) { pause(); return n + 1; }
int main(int argc, char **argv) { return waits(argc) + 1; }
"#;

fn symbolizer() -> Symbolizer {
    Symbolizer::new(Options::default())
}

fn functions(report: &Report, thread: usize) -> Vec<&str> {
    report.threads[thread].frames.iter().filter_map(|frame| frame.function.as_deref()).collect()
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_cleared_frame_pointer_is_not_the_end() {
    // Code without unwind data that never returns, called with 0 in rbp, like musl's `exit(0)`.
    const NEVER: &str = r#"
#include <unistd.h>
__attribute__((noinline, noreturn)) void last(int n) { for (;;) pause(); }
__attribute__((noinline, noreturn)) void middle(int n, int (*called)(int)) {
    register int kept __asm__("ebp") = n;
    __asm__ volatile("" : "+r"(kept));
    called(n);
    __asm__ volatile("" : "+r"(kept));
    last(kept);
}
__attribute__((noinline)) int outer(int n, int (*called)(int)) { middle(n, called); }
int same(int n) { return n; }
int main(int c, char **v) { return outer(c - 1, same) + 1; }
"#;
    let folder = tempfile::tempdir().unwrap();
    let (file, program) = (folder.path().join("never.c"), folder.path().join("never"));
    std::fs::write(&file, NEVER).unwrap();
    let tables = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"];
    let built = Command::new("gcc").arg("-O2").args(tables).arg("-o").args([&program, &file]).status();
    assert!(built.unwrap().success());
    let mut child = Command::new(&program).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let report = coroner_inspect::read_process(child.id(), &mut symbolizer());
    child.kill().unwrap();
    child.wait().unwrap();
    let report = report.unwrap();
    let stack = functions(&report, 0);
    assert!(stack.windows(4).any(|names| names == ["last", "middle", "outer", "main"]), "{stack:?}");
}

#[test]
fn a_program_without_a_build_id_is_symbolicated_from_the_file_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("waits");
    let compile = |options: &[&str]| {
        let file = folder.path().join("waits.c");
        std::fs::write(&file, WAITS).unwrap();
        // Like a build: another file with the same name.
        let _ = std::fs::remove_file(&program);
        let status = Command::new("gcc")
            .args(["-O1", "-Wl,--build-id=none"])
            .args(options)
            .arg("-o")
            .args([&program, &file])
            .status();
        assert!(status.unwrap().success());
        std::thread::sleep(Duration::from_millis(50));
    };
    compile(&[]);
    let mut child = Command::new(&program).stdout(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let before = coroner_inspect::read_process(child.id(), &mut symbolizer());
    compile(&["-O0", "-g"]);
    let after = coroner_inspect::read_process(child.id(), &mut symbolizer());
    child.kill().unwrap();
    child.wait().unwrap();
    let before = before.unwrap();
    let stack = functions(&before, 0);
    assert!(stack.contains(&"waits") && stack.contains(&"main"), "{stack:?}");
    assert!(before.header.process_start.0 > 0);
    // Its own file was deleted and has no lines; its replacement has some.
    let after = after.unwrap();
    assert!(functions(&after, 0).contains(&"waits"), "{:?}", functions(&after, 0));
    let waits = after.threads[0].frames.iter().find(|frame| frame.function.as_deref() == Some("waits")).unwrap();
    assert_eq!(waits.line, None, "{waits:?}");
}
