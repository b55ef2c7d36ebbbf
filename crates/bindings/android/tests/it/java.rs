//! The Java class over JNI in a real Java process.
//!
//! It uses JDK 17, with stubs of Android's classes from `tests/java`. The tests cover an uncaught
//! exception, a crash in C++, the system's exit information about earlier processes, and the next
//! launch's processing of it. Without a JDK they are skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use coroner_test_otlp_collector::Server;
use coroner_test_support::has_program;
use serde_json::Value;
use tempfile::TempDir;

const NATIVE_CRASH: i32 = 5;
const TOMBSTONE: &str = include_str!("../../../../analysis/formats/tests/files/android-14.txt");

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn repository() -> PathBuf {
    crate_folder().join("../../..")
}

/// Returns the newest shared library that cargo built with this test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let candidates = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libcoroner_android") && name.ends_with(".so")
    });
    candidates.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).expect("the shared library")
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let value = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{value}{}", String::from_utf8_lossy(&output.stderr));
    value
}

fn java_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            java_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "java") {
            found.push(path);
        }
    }
}

/// Builds the classes and both libraries once; `None` without a JDK.
fn app() -> Option<&'static Path> {
    static APP: OnceLock<Option<PathBuf>> = OnceLock::new();
    let app = APP.get_or_init(|| {
        if !has_program("java", "javac") {
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("java");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut sources = Vec::new();
        java_files(&crate_folder().join("java"), &mut sources);
        java_files(&crate_folder().join("tests/java"), &mut sources);
        // The same options as in `cargo xtask aar`: for Android 5 and later.
        let javac = ["--release", "8", "-encoding", "UTF-8", "-Xlint:all,-options,-serial", "-Werror", "-d"];
        succeed(Command::new("javac").args(javac).arg(&folder).args(&sources));
        std::fs::copy(library(), folder.join("libcoroner_android.so")).unwrap();
        let jdk = jdk();
        let mut compiler = Command::new("c++");
        compiler.args([
            "-g",
            "-O1",
            "-fno-omit-frame-pointer",
            "-shared",
            "-fPIC",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-o",
        ]);
        compiler.arg(folder.join("libshop.so"));
        compiler.arg(repository().join("examples/android/app/src/main/cpp/shop.cpp"));
        compiler.arg("-I").arg(jdk.join("include")).arg("-I").arg(jdk.join("include/linux"));
        compiler.arg("-I").arg(repository().join("crates/bindings/ffi/include"));
        compiler.arg("-L").arg(&folder).args(["-lcoroner_android", "-Wl,-rpath,$ORIGIN"]);
        succeed(&mut compiler);
        Some(folder)
    });
    app.as_deref()
}

/// Returns the JDK's folder, to which `javac` is a link.
fn jdk() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap();
    let javac = std::env::split_paths(&path).map(|folder| folder.join("javac")).find(|javac| javac.is_file()).unwrap();
    javac.canonicalize().unwrap().ancestors().nth(2).unwrap().to_owned()
}

struct Device {
    app: &'static Path,
    files: TempDir,
}

/// A launch's output and exit.
struct Launch {
    pid: u32,
    lines: Vec<String>,
    status: std::process::ExitStatus,
}

impl Launch {
    fn value(&self, key: &str) -> &str {
        let line = self.lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {key} in {:?}", self.lines))
    }
}

impl Device {
    fn new() -> Option<Self> {
        Some(Self { app: app()?, files: tempfile::tempdir().unwrap() })
    }

    fn launch(&self, act: &str, options: &[String]) -> Launch {
        // No core files, and no hs_err files of HotSpot, in the repository.
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "ulimit -c 0; exec \"$@\"",
            "sh",
            "java",
            "-XX:ErrorFile=/dev/null",
            "-Dfile.encoding=UTF-8",
        ]);
        command.arg(format!("-Djava.library.path={}", self.app.display())).args(options).arg("-cp").arg(self.app);
        command.arg("com.example.shop.Shop").arg(self.files.path()).arg(act).current_dir(self.files.path());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().map(str::to_owned).collect();
        let launch = Launch { pid, lines, status: output.status };
        assert_eq!(launch.value("installed"), "true", "{text}{}", String::from_utf8_lossy(&output.stderr));
        launch
    }

    /// Returns the option that adds a process's native crash, with a tombstone, to the history.
    fn history(&self, died: &Launch) -> String {
        let (trace, history) = (self.files.path().join("tombstone"), self.files.path().join("history"));
        std::fs::write(&trace, TOMBSTONE.replace("4100", &died.pid.to_string())).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        std::fs::write(&history, format!("{}|{NATIVE_CRASH}|{now}|{}\n", died.pid, trace.display())).unwrap();
        format!("-Dhistory={}", history.display())
    }

    fn reports(&self) -> Vec<Value> {
        let Ok(entries) = std::fs::read_dir(self.files.path().join("coroner/reports")) else { return Vec::new() };
        let paths = entries.map(|entry| entry.unwrap().path());
        let json = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        json.map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }

    /// Returns the only report.
    fn report(&self) -> Value {
        let mut reports = self.reports();
        assert_eq!(reports.len(), 1, "{reports:#?}");
        reports.remove(0)
    }
}

fn functions(frames: &Value) -> Vec<&str> {
    frames.as_array().unwrap().iter().map(|frame| frame["function"].as_str().unwrap_or("?")).collect()
}

fn crashed_thread(report: &Value) -> &Value {
    report["threads"].as_array().unwrap().iter().find(|thread| thread["crashed"] == true).expect("a crashed thread")
}

#[test]
fn an_uncaught_java_exception_is_delivered_with_its_frames_and_the_native_threads() {
    let Some(device) = Device::new() else { return };
    let died = device.launch("uncaught", &[]);
    assert_eq!(died.value("outcome"), "FIRST_LAUNCH false");
    // The handler that was installed first was also called, and ended the process.
    assert_eq!(died.value("uncaught"), "checkout: java.lang.IllegalStateException: the cart is empty");
    assert_eq!(died.status.code(), Some(10));

    let next = device.launch("deliver", &[]);
    assert_eq!((next.value("outcome"), next.value("flushed")), ("CRASHED true", "true"));
    let report = device.report();
    let exceptions = report["exceptions"].as_array().unwrap();
    let types: Vec<_> = exceptions.iter().map(|exception| exception["type_name"].as_str().unwrap()).collect();
    assert_eq!(types, ["java.lang.IllegalStateException", "java.lang.NullPointerException"]);
    assert_eq!(exceptions[0]["message"], "the cart is empty");
    assert_eq!(functions(&exceptions[0]["frames"])[0], "com.example.shop.Shop.fails");
    assert_eq!(exceptions[0]["frames"][0]["file"], "Shop.java");
    assert_eq!(
        functions(&exceptions[1]["frames"])[..2],
        ["com.example.shop.Shop.total", "com.example.shop.Shop.fails"]
    );
    assert!(report["threads"].as_array().unwrap().len() > 5, "the Java runtime's threads are missing");
    assert!(crashed_thread(&report)["frames"].as_array().unwrap().len() > 2);

    let run = &report["run"];
    assert_eq!((&run["app"]["id"], &run["app"]["version"]), (&"com.example.shop".into(), &"2.1.0".into()));
    assert_eq!(run["app"]["release"], "com.example.shop@2.1.0+21");
    assert_eq!(run["tags"], serde_json::json!({ "cart": "3 äpples" }));
    assert_eq!(run["user"]["id"], "42");
    assert_eq!(
        (&run["contexts"]["device"]["model"], &run["contexts"]["order"]["number"]),
        (&"Phone \"4\"".into(), &7.into())
    );
    assert_eq!(run["contexts"]["android"]["api_level"], 35);
    let crumb = &run["breadcrumbs"][0];
    assert_eq!(
        (&crumb["message"], &crumb["category"], &crumb["level"]),
        (&"opens".into(), &"shop".into(), &"warning".into())
    );
}

#[test]
fn a_cpp_crash_called_from_java_is_delivered_beside_a_handled_exception() {
    let Some(device) = Device::new() else { return };
    let died = device.launch("native", &[]);
    assert!(!died.status.success(), "{:?}", died.status);

    // Android 10 has no process history: the class queries it from API level 30 on.
    let options = ["-Dapi=29".to_owned(), device.history(&died)];
    let next = device.launch("handled", &options);
    assert!(!next.lines.iter().any(|line| line.starts_with("trace of")), "{:?}", next.lines);
    assert_eq!(
        (next.value("outcome"), next.value("reported"), next.value("flushed")),
        ("CRASHED true", "true", "true")
    );

    let reports: BTreeMap<bool, Value> =
        device.reports().into_iter().map(|report| (report["crash"]["signal"].is_null(), report)).collect();
    assert_eq!(reports.len(), 2, "{reports:#?}");
    let (crash, handled) = (&reports[&false], &reports[&true]);
    assert_eq!(crash["crash"]["signal"]["name"], "SIGSEGV");
    let names = functions(&crashed_thread(crash)["frames"]);
    assert!(names[0].starts_with("shop::charge("), "{names:?}");
    assert_eq!(names[1], "Java_com_example_shop_Checkout_pay");
    // The scope set from C++ through the C API belongs to the same run.
    assert_eq!(crash["run"]["tags"]["card"], "debit");
    assert_eq!(crash["run"]["breadcrumbs"][1]["message"], "pays");
    assert_eq!(functions(&handled["exceptions"][0]["frames"])[0], "com.example.shop.Shop.fails");
    assert_eq!(handled["exceptions"][0]["message"], "the cart is empty");
}

#[test]
fn a_handled_java_exception_is_delivered_to_a_collector() {
    let Some(device) = Device::new() else { return };
    let server = Server::start(Vec::new());
    let launch = device.launch("handled", &[format!("-Dotlp={}", server.url)]);
    assert_eq!((launch.value("reported"), launch.value("flushed")), ("true", "true"));
    let requests = server.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    let (head, attributes) = (&requests[0].head, requests[0].attributes());
    assert!(head.contains("of mine"), "{head}");
    assert_eq!(requests[0].record().event_name, "exception");
    assert_eq!(attributes["exception.type"], "java.lang.IllegalStateException");
    assert_eq!((&attributes["coroner.app.state"], &attributes["cart"]), (&"foreground".into(), &"3 äpples".into()));
    assert!(attributes["coroner.device.storage.size"].as_u64().is_some_and(|size| size > 0), "{attributes}");
}

#[test]
fn exit_info_is_read_once_and_merged_into_the_report() {
    let Some(device) = Device::new() else { return };
    let died = device.launch("native", &[]);
    let history = [device.history(&died)];
    let next = device.launch("deliver", &history);
    let reads = |launch: &Launch| launch.lines.iter().filter(|line| line.starts_with("trace of")).count();
    assert_eq!((reads(&next), next.value("outcome")), (1, "CRASHED true"));
    let report = device.report();
    let names = functions(&crashed_thread(&report)["frames"]);
    assert!(names[0].starts_with("shop::charge("), "{names:?}");
    assert_eq!(report["run"]["contexts"]["system_report"]["reason"], "CRASH_NATIVE");
    assert!(report["annotations"].to_string().contains("[MTE]: Use After Free"), "{}", report["annotations"]);

    // The system returns the same history at each launch.
    let later = device.launch("deliver", &history);
    assert_eq!(reads(&later), 0, "{:?}", later.lines);
    assert_eq!(device.reports().len(), 1);
}

/// Only one class refers to a class of later API levels, so that other levels can load the rest.
#[test]
fn only_one_class_requires_api_level_30() {
    let Some(app) = app() else { return };
    let mut naming = Vec::new();
    for entry in std::fs::read_dir(app.join("dev/coroner")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let name = b"android/app/ApplicationExitInfo";
        if bytes.windows(name.len()).any(|window| window == name) {
            naming.push(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
    assert_eq!(naming, ["ExitInfos.class"]);
}
