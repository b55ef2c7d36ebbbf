//! `coroner symbolicate` and `coroner symbols`, on reports of real crashes and on Apple's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

#[cfg(target_os = "linux")]
use crate::terminal;

struct Bench {
    folder: tempfile::TempDir,
}

#[derive(Debug)]
struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

impl CommandOutput {
    fn new(output: &Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Bench {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run_as(&self, program: &Path, arguments: &[&str]) -> CommandOutput {
        CommandOutput::new(&self.command(program, arguments).output().unwrap())
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder.path());
        // Both at their default paths, in this test's own home.
        command.env("CORONER_STORE", self.path("store")).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("HOME", self.folder.path()).env_remove("CORONER_CACHE");
        // Don't query a server.
        command.env_remove("DEBUGINFOD_URLS");
        command
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.run_as(Path::new(env!("CARGO_BIN_EXE_coroner")), arguments)
    }

    /// Returns the report and the debug file of a stripped copy of this command.
    ///
    /// The copy crashed and was deleted.
    #[cfg(target_os = "linux")]
    fn crash_of_a_stripped_app(&self) -> (String, PathBuf) {
        let (app, debug) = (self.path("app"), self.path("symbols/deep/app.debug"));
        std::fs::create_dir_all(debug.parent().unwrap()).unwrap();
        let tool = |arguments: &[&str]| {
            let output = Command::new("objcopy").args(arguments).output().expect("binutils");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let original = env!("CARGO_BIN_EXE_coroner");
        tool(&["--only-keep-debug", original, debug.to_str().unwrap()]);
        tool(&["--strip-all", original, app.to_str().unwrap()]);
        let demo = self.run_as(&app, &["demo"]);
        assert_eq!(demo.code, 0, "{demo:?}");
        std::fs::remove_file(&app).unwrap();
        let list = self.run(&["list", "--format", "json"]).json();
        (list[0]["path"].as_str().unwrap().to_owned(), debug)
    }
}

fn fixture(name: &str) -> String {
    format!("{}/../../../fixtures/symbols/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the crashed thread's functions, `?` for a frame without one.
#[cfg(target_os = "linux")]
fn functions(report: &Value) -> Vec<String> {
    let crashed = report["threads"].as_array().unwrap().iter().find(|thread| thread["crashed"] == true).unwrap();
    let frames = crashed["frames"].as_array().unwrap();
    frames.iter().map(|frame| frame["function"].as_str().unwrap_or("?").to_owned()).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn a_stripped_apps_report_is_symbolicated_from_a_folder() {
    let bench = Bench::new();
    let (report, debug) = bench.crash_of_a_stripped_app();
    let debug = debug.to_str().unwrap();
    let has_names = |result: &CommandOutput| functions(&result.json()).iter().any(|name| name.contains("chain_c"));
    let symbolicate = ["symbolicate", &report, "--format", "json"];
    let with = |more: &[&str]| bench.run(&[&symbolicate, more].concat());

    let without = with(&[]);
    assert!(without.code == 1 && !has_names(&without), "none of the program's frames: {without:?}");
    assert!(without.err.contains("no frame of the program `app` has a name; give its debug file"), "{}", without.err);
    assert!(without.err.contains("app: 0 of ") && without.err.contains("no symbols with ID "), "{}", without.err);

    let unnamed = bench.run(&["show", &report]);
    let id = without.err.split("give its debug file (").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let why = format!("functions of `app` have no names: no symbols with ID {id} found; give its debug file");
    assert!(unnamed.code == 0 && unnamed.out.contains(&why), "{why}: {}", unnamed.out);

    let named = with(&["--symbols", "symbols"]);
    assert!(named.code == 0 && has_names(&named), "{named:?}");
    let json = named.json();
    let crashed = json["threads"].as_array().unwrap().iter().find(|thread| thread["crashed"] == true).unwrap();
    assert!(crashed["frames"][0]["line"].as_u64().is_some() && named.err.contains(" a source line"), "{}", named.err);

    // As text, by the event id, and to a file, without colors.
    let id = json["header"]["event_id"].as_str().unwrap();
    let text = bench.run(&["symbolicate", &id[..8], "--symbols", "symbols"]);
    assert!(text.code == 0 && text.out.contains("chain_c") && !text.out.contains("\"network\""), "{text:?}");
    let file = bench.run(&["symbolicate", id, "--symbols", "symbols", "--output", "named.txt", "--thread", "all"]);
    assert!(file.code == 0 && file.out.is_empty(), "{file:?}");
    let written = std::fs::read_to_string(bench.path("named.txt")).unwrap();
    assert!(written.contains("\"network\"") && !written.contains('\x1b'), "{written}");

    // The folder is cached: an index that assigns its file to another image is trusted, unless the
    // cache is disabled.
    let caches: Vec<PathBuf> =
        std::fs::read_dir(bench.path("cache/coroner")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(caches.len(), 1, "{caches:?}");
    let index = std::fs::read_to_string(&caches[0]).unwrap();
    let build_id = bench.run(&["symbols", debug, "--format", "json"]).json()[0]["debug_id"].clone();
    let build_id = build_id.as_str().unwrap();
    assert!(index.contains(build_id) && index.contains("app.debug"), "{index}");
    std::fs::write(&caches[0], index.replace(build_id, "00ff")).unwrap();
    assert!(!has_names(&with(&["--symbols", "symbols"])), "the cache isn't used");
    assert!(has_names(&with(&["--symbols", "symbols", "--no-cache"])), "it is used all the same");
    let show = ["show", &report, "--format", "json", "--symbols", "symbols"];
    assert!(!has_names(&bench.run(&show)), "`show` doesn't use it");
    assert!(has_names(&bench.run(&[&show[..], &["--no-cache"]].concat())));
    let shown = bench.run(&["show", id, "--symbols", "symbols", "--no-cache"]);
    assert!(shown.out.contains("chain_c") && !shown.out.contains("have no names"), "{shown:?}");
    assert!(has_names(&with(&["--symbols", "symbols", "--cache", "elsewhere"])) && bench.path("elsewhere").is_dir());

    // Breakpad's text has names, too. Its addresses are relative to the image's first byte.
    let symbols = bench.run(&["symbols", debug, "--format", "json"]).json();
    let breakpad_id = symbols[0]["breakpad_id"].as_str().unwrap();
    let offset = crashed["frames"][0]["module_offset"].as_str().unwrap().trim_start_matches("0x").to_owned();
    let (name, arch) = ("a_name_that_stands_there_alone", std::env::consts::ARCH);
    std::fs::create_dir(bench.path("breakpad")).unwrap();
    std::fs::write(
        bench.path("breakpad/app.sym"),
        format!("MODULE Linux {arch} {breakpad_id} app\nFILE 0 alone.c\nFUNC {offset} 1 0 {name}\n{offset} 1 17 0\n"),
    )
    .unwrap();
    let by_breakpad = with(&["--symbols", "breakpad"]);
    let json = by_breakpad.json();
    assert_eq!(functions(&json)[0], name, "{by_breakpad:?}");
    let crashed = json["threads"].as_array().unwrap().iter().find(|thread| thread["crashed"] == true).unwrap();
    assert_eq!((&crashed["frames"][0]["file"], &crashed["frames"][0]["line"]), (&"alone.c".into(), &17.into()));
    let left_over = "frames named; the file with ID ";
    let result = &by_breakpad.err;
    assert!(
        result.contains("app: 1 of ") && result.contains(left_over) && result.contains("has no other names"),
        "{result}"
    );

    // The file's description, and its match with the report.
    let symbols = bench.run(&["symbols", debug, "--report", &report, "--format", "json"]);
    assert_eq!(symbols.code, 0, "{symbols:?}");
    let file = &symbols.json()[0];
    assert_eq!((&file["format"], &file["has_lines"]), (&"ELF".into(), &true.into()));
    assert!(file["symbols"]["symbol table"].as_u64().unwrap() > 1000, "{file}");
    assert_eq!((&file["images"][0]["matches"], &file["images"][0]["debug_id"]), (&true.into(), &build_id.into()));
    let other = bench.run(&["symbols", &fixture("cpp.elf"), "--report", &report]);
    assert!(other.code == 1 && other.out.contains("no matching image"), "{other:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn symbol_search_progress_is_shown_only_on_a_terminal() {
    let bench = Bench::new();
    let report = ips(&bench);
    std::fs::create_dir(bench.path("symbols")).unwrap();
    for number in 0..100 {
        let module = format!("MODULE mac arm64 {number:032X}0 lib{number}\nPUBLIC 10 0 f\n");
        std::fs::write(bench.path(&format!("symbols/lib{number:02}.sym")), module).unwrap();
    }
    let dsym = fixture("program.dylib.dSYM");
    let arguments = ["symbolicate", report.to_str().unwrap(), "--symbols", "symbols", "--symbols", &dsym, "--no-cache"];
    let shown = std::sync::Mutex::default();
    let command = bench.command(Path::new(env!("CARGO_BIN_EXE_coroner")), &arguments);
    let result = CommandOutput::new(&terminal::run(command, &shown));
    assert_eq!(result.code, 0, "{result:?}");
    assert!(result.err.contains("reading symbol files: 1, lib00.sym"), "{result:?}");
    assert!(result.err.contains("1 of 1 frames have a name"), "{result:?}");
    let elsewhere = bench.run(&arguments);
    assert!(elsewhere.code == 0 && !elsewhere.err.contains("reading"), "{elsewhere:?}");
}

/// Returns an Apple crash report with one frame in the dSYM's image.
fn ips(bench: &Bench) -> PathBuf {
    let slices = bench.run(&["symbols", &fixture("program.dylib"), "--format", "json"]).json();
    let arm64 = slices.as_array().unwrap().iter().find(|slice| slice["arch"] == "arm64").unwrap();
    let uuid = &arm64["debug_id"];
    let path = bench.path("Program-2026.ips");
    let text = format!(
        "{{\"bug_type\":\"309\"}}\n{{\"threads\":[{{\"frames\":[{{\"imageOffset\":1348,\"imageIndex\":0}}]}}],\n\
         \"usedImages\":[{{\"arch\":\"arm64\",\"base\":4294967296,\"size\":16384,\"uuid\":{uuid},\"path\":\"/A/program.dylib\"}}]}}\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn an_apple_report_is_symbolicated_from_a_dsym() {
    let bench = Bench::new();
    let report = ips(&bench);
    let report = report.to_str().unwrap();
    let named = bench.run(&["symbolicate", report, "--symbols", &fixture("program.dylib.dSYM")]);
    assert_eq!(named.code, 0, "{named:?}");
    assert!(named.out.contains("\"symbol\":\"deep(int)\"") && named.out.contains("\"inline\":true"), "{}", named.out);
    assert!(named.err.contains("1 of 1 frames have a name, 1 have a source line"), "{}", named.err);

    let nothing = bench.run(&["symbolicate", report]);
    assert_eq!(nothing.code, 1, "no frame has a name: {nothing:?}");
    assert_eq!(nothing.out, std::fs::read_to_string(report).unwrap());
    let json = bench.run(&["symbolicate", report, "--format", "json"]);
    assert!(json.code == 1 && json.err.contains("omit `--format`"), "{json:?}");

    let matches = bench.run(&["symbols", &fixture("program.dylib.dSYM"), "--report", report]);
    assert!(matches.code == 0 && matches.out.contains("matches /A/program.dylib"), "{matches:?}");
    assert!(matches.out.contains("another build of /A/program.dylib"), "the x86_64 half: {}", matches.out);

    std::fs::write(bench.path("broken.ips"), "{\"bug_type\":\"309\"}\n{\"threads\":[,").unwrap();
    let broken = bench.run(&["symbolicate", "broken.ips"]);
    assert!(broken.code == 1 && broken.err.contains("`broken.ips`: at byte 3"), "{broken:?}");
}

#[test]
fn symbol_files_are_described() {
    let bench = Bench::new();
    let text = bench.run(&["symbols", &fixture("classes-arm64.dylib"), &fixture("cpp.elf")]);
    assert_eq!(text.code, 0, "{text:?}");
    for result in
        ["Mach-O, arm64", "Objective-C methods", "ELF, x86_64", "symbol table", "PLT stubs", "yes, with inlined calls"]
    {
        assert!(text.out.contains(result), "{result} in {}", text.out);
    }
    std::fs::write(
        bench.path("app.sym"),
        "MODULE Linux x86_64 67452301AB89EFCD0123456789ABCDEF0 app\nFUNC 10 8 0 f\nFUNC zz\n",
    )
    .unwrap();
    let breakpad = bench.run(&["symbols", "app.sym", "--format", "json"]).json();
    assert_eq!(breakpad[0]["breakpad_id"], "67452301AB89EFCD0123456789ABCDEF0");
    assert!(breakpad[0]["problems"][0].as_str().unwrap().contains("at byte 72"), "{breakpad}");

    std::fs::write(bench.path("notes.txt"), "nothing").unwrap();
    std::fs::create_dir(bench.path("folder")).unwrap();
    for (arguments, code, result) in [
        (&["symbols", "notes.txt"][..], 1, "not an ELF, Mach-O, PE or breakpad file"),
        (&["symbols", "missing"], 1, "missing: No such file"),
        (&["symbols", "folder"], 1, "not a dSYM bundle"),
        (&["symbols", "app.sym", "--report", "notes.txt"], 1, "not a Coroner report"),
        (&["symbols"], 2, "FILE"),
        (&["symbolicate", "notes.txt"], 1, "not a Coroner report"),
        (&["symbolicate", "missing"], 1, "no file `missing`"),
        (&["symbolicate", "notes.txt", "--symbols", "nowhere"], 1, "not a Coroner report"),
        (&["symbolicate", "notes.txt", "--format", "xml"], 2, "possible values"),
        (&["symbolicate", "notes.txt", "--cache", "x", "--no-cache"], 2, "cannot be used with"),
        (&["symbolicate"], 1, "no store at"),
    ] {
        let failed = bench.run(arguments);
        assert_eq!(failed.code, code, "{arguments:?} {failed:?}");
        assert!(failed.err.contains(result), "{arguments:?} {failed:?}");
    }
    for command in ["symbolicate", "symbols"] {
        let help = bench.run(&[command, "--help"]);
        assert!(help.code == 0 && help.out.contains("Examples:") && help.out.contains("Exit status:"), "{}", help.out);
    }
}

#[test]
fn an_unreadable_file_does_not_hide_the_others() {
    let bench = Bench::new();
    std::fs::write(bench.path("noise"), [7; 4096]).unwrap();
    std::fs::create_dir(bench.path("folder")).unwrap();
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let result = bench.run(&["symbols", "noise", own, "folder", "missing", "--format", "json"]);
    assert_eq!(result.code, 1, "{result:?}");
    let described = result.json();
    assert_eq!(described.as_array().map(Vec::len), Some(1), "{result:?}");
    assert_eq!(described[0]["path"], own);
    for name in ["noise", "folder", "missing"] {
        assert!(result.err.contains(name), "{name} is not named: {}", result.err);
    }
    let alone = bench.run(&["symbols", "noise"]);
    assert!(alone.code == 1 && alone.out.is_empty() && alone.err.contains("noise"), "{alone:?}");
}
