//! Core dumps in all forms in which systems keep them, and `coroner collect`.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use coroner_tests::report_json;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

const PROGRAM: &str = r#"
__attribute__((noinline)) static int total(int *cart) { return *(volatile int *)cart; }
__attribute__((noinline)) static int pay(int *cart, int n) { return total(cart) + n; }
int main(int argc, char **argv) { return pay(0, argc) + 1; }
"#;
const STACK: [&str; 3] = ["total", "pay", "main"];

/// A folder with a crashed program. Other users have access to it.
struct Death {
    /// Kept while its program is needed.
    _folder: tempfile::TempDir,
    /// Its core dump; `None` if this system keeps core dumps elsewhere, and gdb is missing.
    core: Option<Vec<u8>>,
}

static DEATH: LazyLock<Death> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let core = core_of_a_death(folder.path());
    Death { _folder: folder, core }
});

/// Returns the core dump of a program that is built and crashes in `folder`.
fn core_of_a_death(folder: &Path) -> Option<Vec<u8>> {
    let path = |name: &str| folder.join(name);
    std::fs::write(path("cart.c"), PROGRAM).unwrap();
    let built = Command::new("cc").args(["-g", "-O1", "-o"]).args([path("cart"), path("cart.c")]).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let command = match pattern.starts_with(['|', '/', '@']) {
        true => "exec gdb -q -nx -batch -ex run -ex 'gcore core' ./cart",
        false => "ulimit -c unlimited; exec ./cart",
    };
    let _ = Command::new("sh").args(["-c", command]).current_dir(folder).output().unwrap();
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let core = files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with("core"));
    let core = core.map(|path| std::fs::read(path).unwrap());
    if core.is_none() {
        eprintln!("skipped: core dumps of this system go to `{}`, and there is no gdb", pattern.trim());
    }
    core
}

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coroner"));
        command.args(arguments).current_dir(self.folder.path());
        command.env("CORONER_STORE", self.path("store")).env("HOME", self.folder.path());
        command.env_remove("DEBUGINFOD_URLS").env_remove("COLUMNS").env_remove("XDG_CACHE_HOME");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        let json = String::from_utf8(output.stdout).unwrap();
        if arguments[0] != "list" {
            report_json::keep(|| json.clone()).unwrap();
        }
        serde_json::from_str(&json).unwrap()
    }
}

fn functions(report: &Value) -> Vec<&str> {
    let frames = report["threads"][0]["frames"].as_array().unwrap().iter();
    frames.filter_map(|frame| frame["function"].as_str()).take(STACK.len()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstandard(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// Formats it like apport's `problem_report.py`.
fn apport(core: &[u8]) -> String {
    let mut text = "ProblemType: Crash\nArchitecture: amd64\nDate: Sun Nov 24 16:00:00 2024\nDistroRelease: Ubuntu 24.04\n\
        ExecutablePath: /opt/shop/cart-of-a-long-name\nPackage: shop 1.2-3ubuntu4 [modified: opt/shop/cart]\nProcMaps:\n 00400000-00401000 r-xp\n\
        Signal: 11\nUname: Linux 6.8.0-41-generic x86_64\nCoreDump: base64\n"
        .to_owned();
    for piece in gzip(core).chunks(1000) {
        text.push_str(&format!(" {}\n", STANDARD.encode(piece)));
    }
    text + "UserGroups: N/A\n"
}

#[test]
fn a_core_dump_gives_the_same_report_in_each_format() {
    let Some(core) = &DEATH.core else { return };
    let bench = Bench::new();
    bench.write("plain", core);
    bench.write("core.gz", &gzip(core));
    bench.write("core.zst", &zstandard(core));
    bench.write("shop.crash", apport(core).as_bytes());
    let plain = bench.json(&["show", "plain", "--format", "json"]);
    assert_eq!(functions(&plain), STACK, "{plain:#}");
    // As much as in a report by the process itself; the rest stays in the core dump.
    let memory = plain["stack_memory"].as_array().unwrap();
    assert!(memory.iter().all(|piece| piece["tid"] == plain["crash"]["tid"]), "{memory:#?}");
    let mut forms = vec!["core.gz", "core.zst", "shop.crash"];
    for (form, program) in [("core.xz", "xz"), ("core.lz4", "lz4"), ("core.bz2", "bzip2")] {
        let packed = Command::new(program).args(["-c", "plain"]).current_dir(bench.folder.path()).output();
        match packed {
            Ok(packed) if packed.status.success() => bench.write(form, &packed.stdout),
            _ => {
                eprintln!("skipped: {form}, for which there is no `{program}`");
                continue;
            }
        }
        forms.push(form);
    }
    for form in forms {
        let report = bench.json(&["show", form, "--format", "json"]);
        assert_eq!((&report["threads"], &report["images"]), (&plain["threads"], &plain["images"]), "{form}");
        assert_eq!(report["header"]["event_id"], plain["header"]["event_id"], "{form}");
        assert_eq!(report["complete"], true, "{form}: {:#}", report["problems"]);
    }
    let apport = bench.json(&["show", "shop.crash", "--format", "json"]);
    assert_eq!(apport["header"]["process_name"], "cart-of-a-long-name");
    assert_eq!(apport["run"]["app"]["version"], "1.2-3ubuntu4");
    assert_eq!(
        (&apport["run"]["tags"]["package"], &apport["run"]["os"]["distribution"]),
        (&"shop".into(), &"ubuntu".into())
    );
    assert_eq!(apport["run"]["os"]["kernel_version"], "6.8.0-41-generic");
    // The file was written long after that.
    assert_eq!(apport["crash"]["time"], "2024-11-24T16:00:00Z");

    // `dump --core`, and a minidump made from it.
    let dumped = bench.json(&["dump", "--core", "core.zst", "--minidump", "shop.dmp", "--format", "json"]);
    assert_eq!(functions(&dumped), STACK);
    let minidump = bench.json(&["show", "shop.dmp", "--format", "json"]);
    assert_eq!(functions(&minidump), STACK);
    let both = bench.run(&["dump", "1", "--core", "plain"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");

    // Truncated dumps, and files that aren't dumps.
    let zst = zstandard(core);
    bench.write("cut.zst", &zst[..zst.len() * 9 / 10]);
    bench.write("cut.gz", &gzip(core)[..200]);
    bench.write("other.gz", &gzip(&[b'x'; 4096]));
    bench.write("other.xz", b"\xfd7zXZ\0 and so on, and so on, and so on");
    for (file, why) in [("cut.gz", "truncated"), ("other.gz", "neither a core dump"), ("other.xz", "truncated")] {
        let refused = bench.run(&["show", file]);
        let result = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && result.contains(why) && result.contains(file), "{file}: {result}");
    }
    let cut = bench.run(&["show", "cut.zst", "--format", "json"]);
    let result = String::from_utf8_lossy(&cut.stdout).into_owned() + &String::from_utf8_lossy(&cut.stderr);
    assert!(cut.status.code().is_some_and(|code| code < 2) && result.contains("truncated"), "{result:.2000}");
}

#[test]
fn minidump_stacks_are_walked_with_the_named_files() {
    let bench = Bench::new();
    let Some(core) = core_of_a_death(bench.folder.path()) else { return };
    bench.write("core-of-cart", &core);
    bench.json(&["dump", "--core", "core-of-cart", "--minidump", "shop.dmp", "--format", "json"]);
    // The reader has the program elsewhere, like the machine that built it.
    std::fs::create_dir(bench.path("archive")).unwrap();
    std::fs::rename(bench.path("cart"), bench.path("archive/cart")).unwrap();
    let without = bench.json(&["show", "shop.dmp", "--format", "json"]);
    assert!(functions(&without).iter().all(|name| !STACK.contains(name)), "{without:#}");
    let with = bench.json(&["show", "shop.dmp", "--symbols", "archive", "--format", "json"]);
    assert_eq!(functions(&with), STACK, "{with:#}");
}

#[test]
fn systemd_notes_on_a_core_dump_are_in_the_report() {
    let Some(core) = &DEATH.core else { return };
    let bench = Bench::new();
    std::fs::create_dir(bench.path("coredump")).unwrap();
    let name = "coredump/core.cart.1000.0123456789abcdef0123456789abcdef.4711.1732464000123456.zst";
    bench.write(name, &zstandard(core));
    bench.write("coredump/notes.txt", b"no core dump");
    let path = std::ffi::CString::new(bench.path(name).into_os_string().into_encoded_bytes()).unwrap();
    let value = "/opt/shop/cart-by-attribute";
    // SAFETY: the strings end in zero, and the value is as long as given.
    unsafe { libc::setxattr(path.as_ptr(), c"user.coredump.exe".as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    // A journal.
    std::fs::create_dir(bench.path("bin")).unwrap();
    let journal = "#!/bin/sh\ncase \"$*\" in *COREDUMP_FILENAME=/*.zst*) echo '{\"COREDUMP_EXE\":\"/opt/shop/cart-by-journal\",\
        \"COREDUMP_UNIT\":\"shop.service\",\"COREDUMP_PACKAGE_NAME\":\"shop\",\"COREDUMP_PACKAGE_VERSION\":\"1.2\"}';; esac\n";
    bench.write("bin/journalctl", journal.as_bytes());
    std::fs::set_permissions(bench.path("bin/journalctl"), Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap());
    let imported = bench.command(&["import", "coredump"]).env("PATH", path).output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    let report = bench.json(&["show", "--format", "json"]);
    assert_eq!(functions(&report), STACK);
    assert_eq!(report["crash"]["time"], "2024-11-24T16:00:00.123456Z");
    assert_eq!(report["header"]["process_name"], "cart-by-journal");
    assert_eq!(
        (&report["run"]["tags"]["systemd.unit"], &report["run"]["app"]["version"]),
        (&"shop.service".into(), &"1.2".into())
    );
    // Importing the same file again gives the same report.
    assert!(bench.run(&["import", "coredump"]).status.success());
    assert_eq!(bench.json(&["list", "--format", "json"]).as_array().unwrap().len(), 1);
    let none = bench.run(&["import", "bin"]);
    assert!(
        none.status.code() == Some(1)
            && String::from_utf8_lossy(&none.stderr).contains("no core dumps, minidumps or Apport reports in"),
        "{none:?}"
    );
}

/// Passes the core dump to the collector, as the kernel does.
fn collect(bench: &Bench, core: &[u8], arguments: &[&str]) -> Output {
    let store = bench.path("machine");
    let mut command = bench.command(&["collect", "--store", store.to_str().unwrap()]);
    let mut child =
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It reads no more than it needs.
    let _ = child.stdin.take().unwrap().write_all(core);
    child.wait_with_output().unwrap()
}

#[test]
fn collect_reports_the_core_dumps_that_the_kernel_passes() {
    let Some(core) = &DEATH.core else { return };
    let bench = Bench::new();
    let is_root = nix::unistd::geteuid().is_root();
    let (user, group) = match is_root {
        true => (4711, 4712),
        false => (nix::unistd::getuid().as_raw(), nix::unistd::getgid().as_raw()),
    };
    let (user_text, group_text) = (user.to_string(), group.to_string());
    // No process has this id.
    let of = |time: &str, more: &[&str]| {
        let all = [&["4194999", &user_text, &group_text, time, "1"][..], more].concat();
        collect(&bench, core, &all)
    };
    let collected = of("1732464000", &[]);
    assert!(collected.status.success(), "{collected:?}");
    let store = bench.path("machine").join(&user_text);
    let report = bench.json(&["show", "--store", store.to_str().unwrap(), "--format", "json"]);
    assert_eq!(functions(&report), STACK, "{:#}", report["problems"]);
    assert_eq!(
        (&report["crash"]["time"], &report["crash"]["signal"]["name"]),
        (&"2024-11-24T16:00:00Z".into(), &"SIGSEGV".into())
    );
    assert!(report.get("stack_memory").is_none());
    // Only the user has access.
    let folder = std::fs::metadata(&store).unwrap();
    assert_eq!((folder.uid(), folder.gid(), folder.mode() & 0o777), (user, group, 0o700));
    let reports = || std::fs::read_dir(store.join("reports")).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert!(reports().all(|file| file.uid() == user && file.mode() & 0o077 == 0));

    // Limits of the reports kept, and of those made per minute.
    for time in ["1732464001", "1732464002", "1732464003"] {
        assert!(of(time, &["--keep", "2"]).status.success());
    }
    assert_eq!(reports().count(), 2);
    let too_many = of("1732464004", &["--per-minute", "2"]);
    let result = String::from_utf8_lossy(&too_many.stderr);
    assert!(too_many.status.code() == Some(1) && result.contains("in the last minute"), "{result}");
    // Nothing is kept for a file that isn't a core dump.
    let none = collect(&bench, b"no core dump, and nothing else that is known", &["4194999", &user_text, &group_text]);
    assert!(none.status.code() == Some(1) && String::from_utf8_lossy(&none.stderr).contains("core dump"), "{none:?}");

    if is_root {
        // A process's user may not read data of another user.
        assert!(collect(&bench, core, &["4194999", "4711", "4712", "1732464000", "2"]).status.success());
        assert!(collect(&bench, core, &["4194999", "0", "0", "1732464005", "1"]).status.success());
        let roots = std::fs::metadata(bench.path("machine/0")).unwrap();
        assert_eq!((roots.uid(), roots.mode() & 0o777), (65_534, 0o700), "nothing is read as root");
        assert_eq!(std::fs::read_dir(bench.path("machine/0/reports")).unwrap().count(), 2);
        // A folder that belongs to another user is not written to.
        std::os::unix::fs::symlink(bench.path("elsewhere"), bench.path("machine/4713")).unwrap();
        std::fs::create_dir(bench.path("elsewhere")).unwrap();
        let refused = collect(&bench, core, &["4194999", "4713", "4713"]);
        assert!(refused.status.code() == Some(1), "{refused:?}");
        assert_eq!(std::fs::read_dir(bench.path("elsewhere")).unwrap().count(), 0);
    }
}

#[test]
fn endless_files_are_rejected() {
    // The kernel reports an empty regular file, but it has eight bytes for each page of the address
    // space.
    let path = "/proc/self/pagemap";
    if std::fs::File::open(path).is_err() {
        eprintln!("skipped: {path} may not be read here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for part in ["show", "import", "symbolicate", "send"] {
        let mut command = Command::new("timeout");
        command.args(["20", env!("CARGO_BIN_EXE_coroner"), part, "--store"]).arg(folder.path()).arg(path);
        if part == "send" {
            command.args(["--otlp", "http://127.0.0.1:9"]);
        }
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{part}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("the file is endless"), "{part}: {output:?}");
    }
}

#[test]
fn a_rebuilt_program_is_reported_as_another_build() {
    let bench = Bench::new();
    let Some(core) = core_of_a_death(bench.folder.path()) else { return };
    bench.write("died.core", &core);
    let report = || bench.json(&["show", "died.core", "--format", "json"]);
    let before = report();
    let images = before["images"].as_array().unwrap();
    let id = images.iter().find(|image| image["is_main"] == true).unwrap()["build_id"].as_str().unwrap();
    assert!(functions(&before).contains(&"pay") && !before["problems"].to_string().contains("another build"));
    let other = "0123456789abcdef0123456789abcdef01234567";
    let option = format!("-Wl,--build-id=0x{other}");
    let built = bench.folder.path().join("cart");
    let built = Command::new("cc").args(["-g", "-O1", &option, "-o"]).args([built, bench.path("cart.c")]).output();
    assert!(built.unwrap().status.success());
    let after = report();
    let result = after["problems"].to_string();
    assert!(
        result.contains("cart` is a different build than cart") && result.contains(id) && result.contains(other),
        "{result}"
    );
    assert!(!functions(&after).contains(&"pay"), "{after}");
}

/// The type of the note with a signal's information.
const NT_SIGINFO: [u8; 4] = 0x5349_4749_u32.to_le_bytes();

#[test]
fn a_core_dump_without_signal_information_claims_no_sender() {
    let Some(core) = &DEATH.core else { return };
    let bench = Bench::new();
    let place = core.windows(4).position(|bytes| bytes == NT_SIGINFO).unwrap();
    let mut without = core.clone();
    without[place..place + 4].fill(0);
    bench.write("plain", &without);
    let report = bench.json(&["show", "plain", "--format", "json"]);
    let signal = &report["crash"]["signal"];
    assert_eq!((&signal["name"], signal.get("sender_pid"), signal.get("code_name")), (&"SIGSEGV".into(), None, None));
    // The instruction shows what the kernel would have reported.
    assert_eq!(report["explanation"]["kind"], "null_pointer", "{:#}", report["explanation"]);
    assert!(report["explanation"]["facts"].to_string().contains("is missing"), "{:#}", report["explanation"]);
}

#[test]
fn a_debuggers_dump_of_a_running_process_is_not_a_crash() {
    let bench = Bench::new();
    let mut child = Command::new("sleep").arg("100").spawn().unwrap();
    let gcore = ["-o", "core", &child.id().to_string()];
    let dumped = Command::new("gcore").args(gcore).current_dir(bench.folder.path()).output();
    child.kill().unwrap();
    child.wait().unwrap();
    let core = format!("core.{}", child.id());
    if !dumped.is_ok_and(|dumped| dumped.status.success()) {
        eprintln!("skipped: `gcore` can't be run, or may not trace");
        return;
    }
    let report = bench.json(&["show", &core, "--format", "json"]);
    assert_eq!(report["crash"].get("signal"), None, "{:#}", report["crash"]);
    assert_eq!(report["crash"]["exception_type"], "dump of a running process");
    assert_eq!(report["explanation"]["kind"], "requested", "{:#}", report["explanation"]);
}

#[test]
fn each_mapped_program_is_one_image_even_without_its_headers() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.starts_with(['|', '/', '@']) {
        eprintln!("skipped: core dumps of this system go to `{}`", pattern.trim());
        return;
    }
    let bench = Bench::new();
    bench.write("cart.c", PROGRAM.as_bytes());
    // The first page of such a program is mapped a second time, 2 MiB higher, for its data.
    let layout = ["-no-pie", "-Wl,-z,noseparate-code", "-Wl,-z,norelro", "-Wl,-z,max-page-size=0x200000"];
    for (filter, is_kept) in [("0x33", true), ("0x23", true), ("0x23", false)] {
        let options = [&layout[..], &["-g", "-O1", "-o", "cart", "cart.c"]].concat();
        let built = Command::new("gcc").args(options).current_dir(bench.folder.path()).status().unwrap();
        assert!(built.success());
        let crash = format!("echo {filter} > /proc/self/coredump_filter; ulimit -c unlimited; exec ./cart");
        let _ = Command::new("sh").args(["-c", &crash]).current_dir(bench.folder.path()).output().unwrap();
        let files = std::fs::read_dir(bench.folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let core = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("core")).last().unwrap();
        if !is_kept {
            std::fs::remove_file(bench.path("cart")).unwrap();
        }
        let report = bench.json(&["show", core.to_str().unwrap(), "--format", "json"]);
        std::fs::remove_file(core).unwrap();
        let images = report["images"].as_array().unwrap();
        let own: Vec<_> = images.iter().filter(|image| image["path"].as_str().unwrap().ends_with("/cart")).collect();
        assert_eq!(own.len(), 1, "{filter}, {is_kept}: {own:#?}");
        assert_eq!((&own[0]["load_address"], &own[0]["is_main"]), (&"0x400000".into(), &true.into()), "{own:#?}");
        assert!(images.iter().any(|image| image["path"].as_str().unwrap().contains("/libc.so.6")), "{images:#?}");
        assert_eq!(functions(&report) == STACK, is_kept, "{report:#}");
    }
}

#[test]
fn lists_and_groups_use_the_named_symbols() {
    let bench = Bench::new();
    let folder = bench.folder.path();
    let Some(core) = core_of_a_death(folder) else { return };
    bench.write("died.core", &core);
    std::fs::create_dir(bench.path("archive")).unwrap();
    std::fs::rename(bench.path("cart"), bench.path("archive/cart")).unwrap();
    let stripped = Command::new("objcopy").args(["--strip-all", "archive/cart", "cart"]).current_dir(folder).status();
    assert!(stripped.unwrap().success());
    assert!(bench.run(&["import", "died.core", "--output", "reports"]).status.success());
    // Another program with a longer name.
    let first = std::fs::read_dir(bench.path("reports")).unwrap().next().unwrap().unwrap().path();
    let mut report: Value = serde_json::from_slice(&std::fs::read(&first).unwrap()).unwrap();
    report["header"]["process_name"] = "cart-of-a-long-name".into();
    report["header"]["event_id"] = "00000000000000000000000000004711".into();
    bench.write("reports/another.json", report.to_string().as_bytes());

    let text = |arguments: &[&str]| String::from_utf8(bench.run(arguments).stdout).unwrap();
    let without = text(&["list", "reports"]);
    assert!(!without.contains("total ("), "{without}");
    let with = text(&["list", "reports", "--symbols", "archive"]);
    let columns: Vec<_> = with.lines().map(|line| line.find("null pointer in total (cart.c:2)")).collect();
    assert!(columns.len() == 2 && columns[0].is_some() && columns[0] == columns[1], "{with}");
    let groups = text(&["group", "reports", "--symbols", "archive"]);
    assert!(groups.contains("null pointer in total (cart.c:2)"), "{groups}");

    assert!(!with.contains('\x1b') && !text(&["list", "reports", "--color", "never"]).contains('\x1b'));
    assert!(text(&["--color=always", "list", "reports"]).contains('\x1b'));
}
