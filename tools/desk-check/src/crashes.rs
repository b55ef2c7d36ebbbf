//! A program that crashes for many known causes, in several builds.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};

use super::{Desk, failure_text, write};
use toolbox::tools;

/// The causes, each with its function and its statements.
///
/// `n` is 1 and `p` a null pointer, which no compiler can know.
const CAUSES: [(&str, &str); 80] = [
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
    ("even_day", "volatile int day = n; return n > 0 ? odd_day(n + one, p) + day : 0;"),
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
    ("parse_order", "return atoi(p) + n;"),
    ("print_receipt", "return printf(\"%s and %s\\n\", buffer, p + n);"),
    ("compare_names", "return strcmp(p, buffer) + n;"),
    ("append_note", "strcat(p, buffer); return n;"),
    ("clear_drawer", "memset(p, n, 640u * n); return n;"),
    ("move_shelf", "memmove(p, buffer, 256u * n); return n;"),
    ("close_ledger", "return fclose((FILE *)p) + n;"),
    ("write_log_line", "return fputs(buffer, (FILE *)p) + n;"),
    (
        "overrun_heap",
        "escape = malloc(24); memset(escape, n, 64); free(escape); escape = malloc(5000); free(escape); return n;",
    ),
    (
        "close_twice",
        "FILE *f = fopen(\"/dev/null\", \"r\"); escape = (char *)f; fclose(f); return fclose((FILE *)escape);",
    ),
    ("share_of_none", "return 10 % (n - 1);"),
    ("negate_debt", "return (-2147483647 - n) / -n;"),
    ("unknown_state", "switch (n) { case 2: return 1; default: __builtin_trap(); }"),
    ("stop_itself", "kill(getpid(), SIGBUS);"),
    ("hire_worker", "pthread_t t; pthread_create(&t, 0, worker_fails, p); pthread_join(t, 0);"),
    ("search_price", "return bsearch(buffer, buffer, 8, 4, compare_price) != 0;"),
    ("set_alarm", "signal(SIGALRM, alarm_fails); raise(SIGALRM);"),
    ("close_shop", "atexit(farewell_fails); exit(0);"),
    ("parse_list", "volatile int item = n; return n > 0 ? parse_item(n + one, p) - item + buffer[0] : 0;"),
    ("walk_tree", "return n < 6 ? walk_tree(n + 1, p) + n : *(volatile int *)(p + 24);"),
    (
        "walk_list",
        "struct node first = {(struct node *)p, n}, *at = &first; int sum = 0; for (;;) { sum += at->value; at = *(struct node *volatile *)&at->next; }",
    ),
    ("read_column", "return *(volatile int *)(p + 4096 * n + 12);"),
    ("write_column", "*(volatile int *)(p + 81920L * n) = n;"),
    ("read_freed_pool", "return *(volatile int *)(0xdead00000000beefUL + n);"),
    ("call_by_table", "return ((int (**)(int))table)[n](n);"),
    ("call_wild", "return ((int (*)(int))(0x1000UL * n))(n) + 1;"),
    ("stop_at_limit", "if (n < 2) { fprintf(stderr, \"limit\\n\"); abort(); }"),
    ("check_order", "assert(buffer[0] < buffer[n]);"),
    ("verify_total", "require(n == 2); return n + 5;"),
    ("verify_stock", "require(n == 3); return n + 6;"),
    ("pop_order", "return pop(p) + n;"),
    ("count_wide", "return (int)wcslen((wchar_t *)p) + n;"),
    ("convert_number", "return (int)strtol(p, 0, 10) + n;"),
    ("format_money", "char out[8]; return snprintf(out, 8, \"%s\", p + n) + out[0];"),
    ("scan_field", "int v = 0; return sscanf(p, \"%d\", &v) + n + v;"),
    ("copy_title", "return (int)(strcpy(buffer, p) - buffer) + n;"),
    ("keep_title", "escape = strdup(p); return n;"),
    ("split_words", "return strtok(p + n, \",\") != 0;"),
    ("fill_forever", "volatile char *at = buffer; while (n) *at++ = 1;"),
    ("use_after_unmap", "volatile int *m = mmap(0, 4096, 3, 0x22, -1, 0); munmap((void *)m, 4096); return *m + n;"),
    ("use_guarded", "volatile int *m = mmap(0, 4096, 0, 0x22, -1, 0); return *m + n;"),
    ("read_past_file", "volatile int *m = mmap(0, 4096, 1, 1, fileno(tmpfile()), 0); return *m + n;"),
    ("run_heap", "return ((int (*)(int))malloc(64u * n))(n) + 1;"),
    ("big_frame", "volatile char big[64 << 20]; big[n] = 1; return big[n];"),
    // Held-back causes.
    ("weigh_parcel", "return *(volatile short *)(p + 40 * n);"),
    ("label_parcel", "memcpy(buffer, p, 128u * n); return buffer[n];"),
    ("split_rest", "long rest = 7L * n; return (int)(rest / (n - 1));"),
    ("unwrap_gift", "if (n == 1) abort(); return 2;"),
    ("visit_shelf", "volatile int at = n; return n > 0 ? visit_shelf(n + one, p) + at + buffer[at & 7] : 0;"),
    ("log_visit", "return fprintf((FILE *)p, \"%d\\n\", n);"),
    ("read_note", "return fgets(buffer, 9, (FILE *)p) != 0;"),
    ("check_stamp", "assert(buffer[n] == n + 2);"),
    ("free_middle", "char *m = malloc(96u * n); escape = m + 16; free(escape);"),
    ("poke_vtable", "return ((int (**)(int))p)[n + 1](n) + n;"),
    ("lower_name", "p[n] |= 0x20; return n;"),
    ("raise_flag", "raise(SIGFPE); return n;"),
];

/// The index of the first held-back cause.
///
/// These were written at the same time as the grouping rules, and no rule was changed for them.
const HELD_BACK: usize = 68;

/// Functions that contain a cause, if not the one named after it.
const ELSEWHERE: [(&str, &[&str]); 5] = [
    ("even_day", &["odd_day"]),
    ("hire_worker", &["worker_fails"]),
    ("set_alarm", &["alarm_fails"]),
    ("close_shop", &["farewell_fails"]),
    ("parse_list", &["parse_item", "parse_value"]),
];

/// Whether a function, by its name in the debug information, contains the cause.
pub(super) fn is_of(cause: &str, function: &str) -> bool {
    // GCC's copies have suffixes: `load.constprop.0`.
    let function = function.split('.').next().unwrap_or(function);
    let elsewhere = || ELSEWHERE.iter().find(|(name, _)| *name == cause).map_or(&[][..], |(_, functions)| functions);
    function == cause || elsewhere().contains(&function)
}

/// Whether the grouping rules were made without crashes of this cause.
pub(super) fn is_held_back(cause: &str) -> bool {
    CAUSES[HELD_BACK..].iter().any(|(name, _)| *name == cause)
}

const HEAD: &str = r#"
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <wchar.h>
struct node { struct node *next; int value; };
struct customer { char head[32]; char name[32]; };
static char buffer[4096];
char *volatile escape;
volatile int one = 1;
void *volatile nothing;
int odd_day(int n, char *p);
static int shared_read(char *p) { return *(volatile int *)(p + 16); }
static void shared_abort(int n) { if (n > 0) abort(); }
static void require(int ok) { if (!ok) abort(); }
static int pop(char *p) { return *(volatile int *)(p + 64); }
void *volatile table[4];
int parse_item(int n, char *p);
int parse_value(int n, char *p);
static void *worker_fails(void *p) { *(volatile int *)p = 1; return p; }
static void alarm_fails(int number) { *(volatile int *)nothing = number; }
static void farewell_fails(void) { *(volatile int *)nothing = 7; }
static int compare_price(const void *a, const void *b) { return *(volatile int *)((char *)nothing + 8) - (a == b); }
static int compare(const void *a, const void *b) { return *(volatile int *)nothing + (a == b); }
"#;

/// Three call paths to a cause, from which the caller chooses.
const TAIL: &str = r#"
__attribute__((noinline)) static int by_till(const char *name) { return serve(name) + one; }
__attribute__((noinline)) static int run_job(const char *name) { return serve(name) - one; }
__attribute__((noinline)) static int by_night(const char *name) { return run_job(name) + 2 * one; }
int main(int argc, char **argv) {
    memset(buffer, 'x', 4095);
    switch (argc > 2 ? argv[2][0] : '0') {
    case '1': return by_till(argv[1]) + one;
    case '2': return by_night(argv[1]) + one;
    default: return argc > 1 ? serve(argv[1]) : 2;
    }
}
"#;

/// Compilers and their options.
const BUILDS: [(&str, &[&str]); 8] = [
    ("gcc", &["-O0"]),
    ("gcc", &["-O1"]),
    ("gcc", &["-O2"]),
    ("gcc", &["-O3", "-fPIE"]),
    ("gcc", &["-Os"]),
    ("clang", &["-O0"]),
    ("clang", &["-O1"]),
    ("clang", &["-O2"]),
];

/// The number of call paths to a cause.
const WAYS: usize = 3;

/// Returns the crashes: a cause in a build, by one of the paths.
///
/// Each occurs once, in an order in which the first few cover many causes and all builds.
pub(super) fn deaths(programs: &[PathBuf]) -> Vec<(&PathBuf, &'static str, String)> {
    let mut deaths = Vec::new();
    for round in 0..programs.len() {
        for (number, (cause, _)) in CAUSES.iter().enumerate() {
            let program = (round + number) % programs.len();
            deaths.push((&programs[program], *cause, ((round + number / 5) % WAYS).to_string()));
        }
    }
    deaths
}

/// Builds the program in each configuration that is available here.
pub(super) fn build(desk: &Desk) -> anyhow::Result<Vec<PathBuf>> {
    let mut source = HEAD.to_owned();
    for (name, body) in CAUSES {
        // If inlined, as clang does, its frame would be that of every cause.
        let inlined = if name == "big_frame" { "__attribute__((noinline)) " } else { "" };
        source.push_str(&format!(
            "{inlined}int {name}(int n, char *p) {{\n    (void)p;\n    {body}\n    return n;\n}}\n"
        ));
    }
    source.push_str(
        "int odd_day(int n, char *p) { volatile int day = n; return n > 0 ? even_day(n + one, p) - day : 0; }\n",
    );
    source.push_str("int parse_item(int n, char *p) { volatile int item = n; return n > 0 ? parse_value(n + one, p) + item * buffer[1] : 0; }\n");
    source.push_str("int parse_value(int n, char *p) { volatile int item = n; return n > 0 ? parse_list(n + one, p) + item * buffer[2] : 0; }\n");
    source.push_str("static int serve(const char *name) {\n");
    for (name, _) in CAUSES {
        source.push_str(&format!("    if (!strcmp(name, \"{name}\")) return {name}(one, nothing);\n"));
    }
    source.push_str("    return 3;\n}\n");
    source.push_str(TAIL);
    write(&desk.path("causes.c"), &source)?;
    let mut programs = Vec::new();
    for (number, (compiler, options)) in BUILDS.iter().enumerate() {
        if !tools::on_path(compiler) {
            continue;
        }
        // Like a release's builds: each in another folder, with the same name.
        let folder = desk.path(&format!("build-{number}"));
        std::fs::create_dir_all(&folder)?;
        let program = folder.join("shop");
        let mut command = Command::new(compiler);
        command.args(["-g", "-w", "-pthread", "-o"]).arg(&program).args(*options).arg(desk.path("causes.c"));
        let built = command.output().with_context(|| format!("running {compiler}"))?;
        ensure!(built.status.success(), "{compiler}: {}", failure_text(&built));
        programs.push(program);
    }
    ensure!(!programs.is_empty(), "no C compiler found");
    Ok(programs)
}
