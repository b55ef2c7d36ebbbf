//! A program that dies of many known causes, in several builds.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use super::{Desk, said, write};
use crate::tools;

/// The causes, each with the function in which it is and its statements. `n` is 1 and `p` a null pointer, which no compiler knows.
const CAUSES: [(&str, &str); 24] = [
    ("load_cart", "return *(volatile int *)p;"),
    ("save_cart", "*(volatile int *)p = n;"),
    ("count_items", "return (int)strlen(p) + n;"),
    ("copy_items", "memcpy(p, buffer, 64u * n); return buffer[n];"),
    ("name_of_customer", "return ((struct customer *)p)->name[n];"),
    ("divide_bill", "return 10 / (n - 1);"),
    ("stop_sale", "abort();"),
    ("check_price", "assert(n == 2);"),
    ("free_twice", "char *m = malloc(32u * n); free(m); escape = m; free(escape);"),
    ("free_stack", "char place[64]; escape = place + 8 * n; free(escape);"),
    ("call_nothing", "((int (*)(int))p)(n);"),
    ("call_data", "((int (*)(int))(void *)buffer)(n);"),
    ("descend", "return n > 0 ? descend(n + 1, p) + n + (int)strlen(buffer) : 0;"),
    ("even_day", "return n > 0 ? odd_day(n + 1, p) + n : 0;"),
    ("trap_door", "__builtin_trap();"),
    ("raise_alarm", "raise(SIGSEGV);"),
    ("raise_bus", "raise(SIGBUS);"),
    ("read_only", "*(volatile char *)\"text\" = (char)n;"),
    ("far_index", "return ((volatile int *)buffer)[n * 100000000L];"),
    ("shared_read_by_till", "return shared_read(p) + n;"),
    ("shared_read_by_stock", "return shared_read(p) - n;"),
    ("shared_abort_by_till", "shared_abort(n); return 1;"),
    ("shared_abort_by_stock", "shared_abort(n); return 2;"),
    ("sort_items", "qsort(buffer, 8, 4, compare); return n;"),
];

const HEAD: &str = r#"
#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct customer { char head[32]; char name[32]; };
static char buffer[4096];
char *volatile escape;
volatile int one = 1;
void *volatile nothing;
int odd_day(int n, char *p);
static int shared_read(char *p) { return *(volatile int *)(p + 16); }
static void shared_abort(int n) { if (n > 0) abort(); }
static int compare(const void *a, const void *b) { return *(volatile int *)nothing + (a == b); }
"#;

/// Compilers and their options.
const BUILDS: [(&str, &[&str]); 6] = [
    ("gcc", &["-O0"]),
    ("gcc", &["-O1"]),
    ("gcc", &["-O2"]),
    ("gcc", &["-O3", "-fPIE"]),
    ("clang", &["-O1"]),
    ("clang", &["-O2"]),
];

/// The names of the causes.
pub(super) fn causes() -> impl Iterator<Item = &'static str> {
    CAUSES.iter().map(|(name, _)| *name)
}

/// The program in each build that can be made here.
pub(super) fn build(desk: &Desk) -> anyhow::Result<Vec<PathBuf>> {
    let mut source = HEAD.to_owned();
    for (name, body) in CAUSES {
        source.push_str(&format!("int {name}(int n, char *p) {{\n    (void)p;\n    {body}\n    return n;\n}}\n"));
    }
    source.push_str("int odd_day(int n, char *p) { return n > 0 ? even_day(n + 1, p) - n : 0; }\n");
    source.push_str("static int serve(const char *name) {\n");
    for (name, _) in CAUSES {
        source.push_str(&format!("    if (!strcmp(name, \"{name}\")) return {name}(one, nothing);\n"));
    }
    source.push_str("    return 3;\n}\nint main(int argc, char **argv) {\n    memset(buffer, 'x', 4095);\n    return argc > 1 ? serve(argv[1]) : 2;\n}\n");
    write(&desk.path("causes.c"), &source)?;
    let mut programs = Vec::new();
    for (number, (compiler, options)) in BUILDS.iter().enumerate() {
        if !tools::on_path(compiler) {
            continue;
        }
        // As builds of a release lie: another folder each, one name.
        let folder = desk.path(&format!("build-{number}"));
        std::fs::create_dir_all(&folder)?;
        let program = folder.join("shop");
        let mut command = Command::new(compiler);
        command.args(["-g", "-w", "-o"]).arg(&program).args(*options).arg(desk.path("causes.c"));
        let built = command.output().with_context(|| format!("running {compiler}"))?;
        ensure!(built.status.success(), "{compiler}: {}", said(&built));
        programs.push(program);
    }
    ensure!(!programs.is_empty(), "there is no compiler of C");
    Ok(programs)
}
