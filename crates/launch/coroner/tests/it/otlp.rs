//! From a crash to a log record at a server on this machine: real processes.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use coroner::{Breadcrumb, Config, HangWatch, OtlpSink, User};
use coroner_test_otlp_collector::{Request, Server};
use serde_json::json;

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";
const LONG: Duration = Duration::from_mins(1);

#[inline(never)]
fn dips_the_brush() {
    let nowhere = std::hint::black_box(0x10 as *mut u8);
    // SAFETY: it ends the process, which is what it is for.
    unsafe { nowhere.write_volatile(1) };
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let act = std::env::var(ACT).unwrap();
    let sink = OtlpSink::from_env().unwrap().expect("an endpoint is set");
    let config = Config::new("com.example.paint").version("2.1.0").store_dir(&store).sink(sink);
    let coroner = coroner::install(config.hang_threshold(Some(Duration::from_millis(100)))).unwrap();
    coroner::set_trace("4BF92F3577B34DA6A3CE929D0E0E4736", "00f067aa0ba902b7").unwrap();
    coroner::set_tag("channel", "beta").unwrap();
    coroner::set_user(Some(&User::new("4711"))).unwrap();
    coroner::add_breadcrumb(&Breadcrumb::new("opened https://ada:hunter2@example.com/").category("ui"));
    match act.as_str() {
        "crashes" => dips_the_brush(),
        "reports" => assert!(coroner::report_error(&std::io::Error::other("no ink"))),
        "hangs" => {
            let watch = HangWatch::new();
            watch.beat();
            let run = coroner.store_dir().join("runs").join(coroner.run_id().to_string());
            while !std::fs::read_dir(&run).unwrap().flatten().any(|file| file.file_name() == "report-9") {
                std::thread::yield_now();
            }
            watch.idle();
            // Its report waits to be whole, and for the hang's end: a flush before has nothing to
            // deliver, or not yet.
            let state = Path::new(&store).join("otlp/state.json");
            while !std::fs::read_to_string(&state).is_ok_and(|state| state.contains("\"done\":[\"")) {
                coroner.flush(LONG);
            }
            return;
        }
        "looks" => {}
        other => panic!("the app can't {other}"),
    }
    assert!(coroner.flush(LONG));
}

fn run(folder: &Path, server: &Server, act: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "otlp::app", "--nocapture", "--quiet", "--test-threads=1"]);
    command.env(STORE, folder.join("store")).env(ACT, act).current_dir(folder);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &server.url).env("OTEL_EXPORTER_OTLP_HEADERS", "api-key=of%20mine");
    command.env("OTEL_RESOURCE_ATTRIBUTES", "service.namespace=studio").output().unwrap()
}

fn one(server: &Server) -> Request {
    let mut requests = server.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    requests.remove(0)
}

#[test]
fn a_crash_arrives_at_the_next_launch_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let crashed = run(folder.path(), &server, "crashes");
    assert!(!crashed.status.success());
    assert_eq!(server.requests().len(), 0, "a dying process sends nothing");
    for _ in 0..2 {
        let looked = run(folder.path(), &server, "looks");
        assert!(looked.status.success(), "{looked:?}");
    }
    let request = one(&server);
    assert!(request.head.to_ascii_lowercase().contains("api-key: of mine\r\n"), "{}", request.head);
    let (record, all) = (request.record(), request.attributes());
    assert_eq!((record.event_name.as_str(), record.severity_text.as_str()), ("app.crash", "FATAL"));
    assert_eq!((record.trace_id.len(), record.span_id.len()), (16, 8));
    assert_eq!((&all["exception.type"], &all["channel"]), (&json!("SIGSEGV"), &json!("beta")));
    assert_eq!((&all["user.id"], &all["coroner.handled"]), (&json!("4711"), &json!(false)));
    assert_eq!(all["code.function.name"], json!("it::otlp::dips_the_brush"), "{all:#}");
    let file = all["code.file.path"].as_str().unwrap();
    assert!(file.ends_with("tests/it/otlp.rs"), "{file}");
    let stack = all["exception.stacktrace"].as_str().unwrap();
    assert!(stack.contains("otlp::app"), "{stack}");
    let session = all["session.id"].as_str().unwrap();
    assert_eq!((session.len(), session.matches('-').count()), (36, 4));
    let printed = all["coroner.breadcrumbs"][0]["message"].as_str().unwrap();
    assert!(printed.starts_with("opened https://") && !format!("{all}").contains("hunter2"), "{all}");
    let resource = request.resource();
    assert_eq!(
        (&resource["service.name"], &resource["service.version"]),
        (&json!("com.example.paint"), &json!("2.1.0"))
    );
    assert_eq!((&resource["service.namespace"], &resource["os.type"]), (&json!("studio"), &json!("linux")));
    let left = std::fs::read_dir(folder.path().join("store/otlp/queue")).unwrap().count();
    assert_eq!(left, 0);
}

#[test]
fn a_handled_error_arrives_from_the_process_itself() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let reported = run(folder.path(), &server, "reports");
    assert!(reported.status.success(), "{reported:?}");
    let request = one(&server);
    let (record, all) = (request.record(), request.attributes());
    assert_eq!((record.event_name.as_str(), record.severity_text.as_str()), ("exception", "ERROR"));
    assert_eq!((&all["exception.message"], &all["coroner.handled"]), (&json!("no ink"), &json!(true)));
}

#[test]
fn a_hang_that_ended_is_reported_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let hung = run(folder.path(), &server, "hangs");
    assert!(hung.status.success(), "{hung:?}");
    let request = one(&server);
    let (record, all) = (request.record(), request.attributes());
    assert_eq!((record.event_name.as_str(), record.severity_text.as_str()), ("coroner.hang", "ERROR"));
    assert!(all["coroner.hang.duration"].as_f64().unwrap() >= 0.1, "{all}");
    let message = all["exception.message"].as_str().unwrap();
    assert!(message.starts_with("the app did not respond for ") && !message.contains("at least"), "{message}");
}
