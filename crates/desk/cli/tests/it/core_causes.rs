//! Explanations of core dumps, which have no report by the process itself.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define NEW __attribute__((noinline)) static
struct item { struct item *next; char name[24]; };
volatile long one = 1; void *volatile sink;
NEW int recurse(int n) { volatile char b[200]; b[0] = n; return recurse(n + 1) + b[0]; }
NEW int reserve(size_t n) { volatile char *p = __builtin_alloca(n); p[0] = 1; return p[0]; }
NEW int guard(void) { char *p = mmap(0, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); mprotect(p + 4096, 4096, 0); return p[4095 + one]; }
NEW int check(int n) { assert(n > 3 && "too few"); return n; }
NEW int jump(void) { long frame[2] = {0, 0x123400005678}; __asm__ volatile("mov %0, %%rsp; ret" ::"r"(frame + 1) : "memory"); return 0; }
NEW int value(struct item *item) { return item->next->name[0]; }
NEW int freed(void) { struct item *a = malloc(40), *b = malloc(40); free(b); free(a); return value(a); }
NEW int text(void) { struct { char name[8]; struct item *item; } s; s.item = sink; sink = &s; strcpy(s.name, "the name of a customer"); return s.item->name[0] + s.item->name[1]; }
NEW int index_of(int *a, unsigned long i) { return a[i]; }
NEW int stride(char *base, size_t stride, int y) { char *row = base + stride * y; __asm__ volatile("" : "+r"(row), "+r"(base)); return row[24] + base[0]; }
static void again(int s) { signal(s, SIG_DFL); raise(s); }
static void give_up(int s) { abort(); }
int main(int argc, char **argv) {
    static int table[16]; int a[16] = {0}; char *big = malloc(1 << 16); memset(big, 1, 1 << 16); sink = big;
    switch (atoi(argv[1])) {
    case 0: return recurse(0);
    case 1: return reserve(64 << 20);
    case 2: return guard();
    case 3: return check(one);
    case 4: return jump();
    case 5: return freed();
    case 6: return text();
    case 7: return index_of(table, 0x40000000ul * one);
    case 8: signal(SIGSEGV, again); return value((struct item *)a);
    case 9: signal(SIGSEGV, give_up); return value((struct item *)a);
    case 10: signal(SIGFPE, again); return 7 / (one - 1);
    case 11: return stride(big + 4096 * 3 + 40, 1ul << 24, one * 2);
    case 12: return stride(big + 64, 1ul << 40, one);
    case 13: kill(getpid(), SIGSEGV); return 0;
    }
}
"#;

/// Returns the core dump's explanation; `None` if this system keeps core dumps elsewhere.
fn explain(folder: &Path, crash: usize) -> Option<Value> {
    let run = "ulimit -c unlimited; ulimit -s 8192; exec ./crash \"$0\"";
    let _ = Command::new("sh").args(["-c", run, &crash.to_string()]).current_dir(folder).output().unwrap();
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let core = files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("core"))?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
    command.args(["show", core.to_str().unwrap(), "--format", "json"]).env("HOME", folder);
    command.env_remove("DEBUGINFOD_URLS").env_remove("CORONER_STORE");
    let shown = command.output().unwrap();
    assert!(shown.status.success(), "{shown:?}");
    std::fs::remove_file(core).unwrap();
    let mut report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    Some(report["explanation"].take())
}

#[test]
fn a_core_dumps_cause_is_explained_as_well_as_a_reports() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/', '@']) {
        eprintln!("skipped: core dumps of this system go to `{}`", pattern.trim());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("crash.c"), PROGRAM).unwrap();
    let options = ["-g", "-O1", "-w", "-fno-optimize-sibling-calls", "-fno-stack-protector", "-o", "crash", "crash.c"];
    let built = Command::new("gcc").args(options).current_dir(folder.path()).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let expected: [(&str, &[&str]); 14] = [
        ("stack_overflow", &["excessive recursion in recurse: at least "]),
        ("stack_overflow", &["a frame of 67,108,"]),
        ("guard_page", &["in guard (crash.c:"]),
        ("abort", &["Assertion `n > 3 && \"too few\"' failed"]),
        ("bad_return", &["0x123400005678"]),
        ("unmapped", &["in a freed block"]),
        ("non_canonical", &["ASCII text"]),
        ("unmapped", &["rsi is 0x40000000, an index of 1,073,741,824 from rdi"]),
        ("null_pointer", &["in value (crash.c:", "raised again"]),
        ("null_pointer", &["in value (crash.c:", "own signal handler"]),
        ("division_by_zero", &["in main (crash.c:", "raised again"]),
        ("unmapped", &["in stride (crash.c:"]),
        ("unmapped", &["in stride (crash.c:"]),
        ("sent_signal", &["SIGSEGV, sent by the process itself"]),
    ];
    for (crash, (kind, texts)) in expected.into_iter().enumerate() {
        let explanation = explain(folder.path(), crash).expect("a core dump");
        let all = explanation.to_string();
        assert_eq!(explanation["kind"], kind, "{crash}: {explanation:#}");
        for text in texts {
            // As in JSON.
            assert!(all.contains(&text.replace('"', "\\\"")), "{crash}: no `{text}` in {explanation:#}");
        }
        assert!(!all.contains("faulty"), "{crash}: {explanation:#}");
    }
}
