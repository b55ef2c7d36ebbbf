//! The client's handling of answers and of their absence: HTTP requests to a local server.

use std::path::Path;
use std::sync::{Mutex, Once};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coroner_otlp::proto::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceResponse};
use coroner_otlp::{Captured, Client, Options, OutboxLimits};
use coroner_report::model::{Crash, Header, Id, Report};
use coroner_test_otlp_collector::{Answer, Server};
use prost::Message;

const LONG: Duration = Duration::from_secs(30);

fn report(event: u8) -> Report {
    let header = Header { event_id: Id([event; 16]), ..Header::default() };
    Report { header, crash: Some(Crash::default()), ..Report::default() }
}

fn options(server: &Server) -> Options {
    Options { retry_after: Duration::ZERO, ..Options::new(&server.url) }
}

fn client(directory: &Path, options: Options) -> Client {
    Client::open(options, directory).unwrap()
}

/// Returns the numbers of queued records and of those given up.
fn kept(client: &Client) -> (usize, usize) {
    (client.outbox().queue().unwrap().len(), client.outbox().given_up().unwrap().len())
}

/// Returns the log lines of all tests of this program.
fn logged() -> Vec<String> {
    struct Log;
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    static SET: Once = Once::new();
    impl log::Log for Log {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }
        fn log(&self, record: &log::Record<'_>) {
            LINES.lock().unwrap().push(format!("{}: {}", record.level(), record.args()));
        }
        fn flush(&self) {}
    }
    SET.call_once(|| {
        log::set_logger(&Log).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
    LINES.lock().unwrap().clone()
}

#[test]
fn a_record_arrives_once_in_the_protocols_form() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let client = client(folder.path(), options(&server).header("Api-Key", "hunter2"));
    assert_eq!(client.capture(&report(1)).unwrap(), Captured::Kept);
    assert!(client.flush(LONG));
    assert_eq!(client.capture(&report(1)).unwrap(), Captured::Known, "it was sent");
    assert!(client.flush(LONG));
    let [request] = &server.requests()[..] else { panic!("{:?}", server.requests()) };
    let head = request.head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1/logs http/1.1\r\n"), "{head}");
    for header in ["content-type: application/x-protobuf", "content-encoding: gzip", "api-key: hunter2"] {
        assert!(head.contains(header), "{head}");
    }
    assert_eq!(request.record().event_name, "app.crash");
    assert!(!format!("{client:?}").contains("hunter2"));
    let state = std::fs::read_to_string(folder.path().join("state.json")).unwrap();
    assert!(!state.contains("hunter2"), "{state}");
}

#[test]
fn a_custom_url_is_used_unchanged_and_compression_can_be_turned_off() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let options = Options { gzip: false, ..Options::with_logs_url(format!("{}/in?tenant=7", server.url)) };
    let client = client(folder.path(), options);
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    let head = server.requests()[0].head.to_ascii_lowercase();
    assert!(head.starts_with("post /in?tenant=7 http/1.1\r\n") && !head.contains("gzip\r\ncontent"), "{head}");
    assert!(!head.contains("content-encoding"), "{head}");
}

#[test]
fn a_record_that_the_server_defers_is_sent_again() {
    for status in [429, 502, 503, 504] {
        for headers in ["", "Retry-After: 0\r\n"] {
            let folder = tempfile::tempdir().unwrap();
            let server = Server::start(vec![Answer { status, headers, ..Answer::default() }]);
            let client = client(folder.path(), options(&server));
            client.capture(&report(1)).unwrap();
            while kept(&client).0 > 0 {
                std::thread::yield_now();
            }
            assert_eq!((server.requests().len(), kept(&client)), (2, (0, 0)), "{status} {headers}");
        }
    }
}

#[test]
fn a_login_page_does_not_accept_a_record() {
    let page = b"\r\n<!DOCTYPE html><html>Welcome to the hotel".to_vec();
    for status in [200, 302, 511] {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(vec![Answer { status, body: page.clone(), ..Answer::default() }]);
        let options = Options { retry_after: Duration::from_mins(15), ..options(&server) };
        let first = client(folder.path(), options.clone());
        first.capture(&report(1)).unwrap();
        assert!(!first.flush(LONG));
        assert_eq!((kept(&first), first.outbox().queue().unwrap()[0].tries), ((1, 0), 0), "{status}");
        // The server is there again, and takes another.
        first.capture(&report(2)).unwrap();
        assert!(first.flush(LONG));
        assert_eq!((server.requests().len(), kept(&first)), (3, (0, 0)), "{status}");
    }
}

#[test]
fn a_server_that_keeps_failing_is_asked_less_and_less_often() {
    let folder = tempfile::tempdir().unwrap();
    let answer = Answer { status: 429, headers: "Retry-After: 0\r\n", ..Answer::default() };
    let server = Server::start(vec![answer.clone(), answer]);
    let client = client(folder.path(), Options { retry_after: Duration::from_mins(15), ..options(&server) });
    client.capture(&report(1)).unwrap();
    while server.requests().len() < 2 {
        std::thread::yield_now();
    }
    assert!(!client.flush(LONG));
    let entry = client.outbox().queue().unwrap().remove(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(entry.tries == 2 && entry.not_before > now + 600, "{entry:?} {now}");
}

#[test]
fn the_servers_wait_applies_to_all_records() {
    let folder = tempfile::tempdir().unwrap();
    let answer = Answer { status: 503, headers: "Retry-After: 3600\r\n", ..Answer::default() };
    let server = Server::start(vec![answer]);
    let first = client(folder.path(), options(&server));
    first.capture(&report(1)).unwrap();
    assert!(!first.flush(LONG));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let entry = first.outbox().queue().unwrap().remove(0);
    assert_eq!(entry.tries, 1);
    assert!((now + 3590..=now + 3602).contains(&entry.not_before), "{entry:?} {now}");
    // Nothing else goes either, nor does the next launch send.
    first.capture(&report(2)).unwrap();
    assert!(!first.flush(LONG));
    drop(first);
    let second = client(folder.path(), options(&server));
    assert!(!second.flush(LONG));
    assert_eq!((server.requests().len(), kept(&second)), (1, (2, 0)));

    // Another server has not said so.
    let other = Server::start(Vec::new());
    drop(second);
    let third = client(folder.path(), options(&other));
    assert!(third.flush(LONG));
    assert_eq!((other.requests().len(), kept(&third)), (2, (0, 0)));
}

#[test]
fn rejected_records_are_set_aside_until_the_server_changes() {
    let statuses = [400, 401, 403, 404, 413, 500, 501];
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(statuses.map(Answer::status).to_vec());
    let refused = client(folder.path(), options(&server));
    for event in 1..=statuses.len() as u8 {
        refused.capture(&report(event)).unwrap();
    }
    assert!(refused.flush(LONG));
    assert_eq!((server.requests().len(), kept(&refused)), (statuses.len(), (0, statuses.len())));
    assert_eq!(refused.capture(&report(1)).unwrap(), Captured::Known);
    assert!(refused.flush(LONG));
    assert_eq!(server.requests().len(), statuses.len(), "none is sent again");
    drop(refused);
    let other = Server::start(Vec::new());
    let client = client(folder.path(), options(&other));
    assert!(client.flush(LONG));
    assert_eq!((other.requests().len(), kept(&client)), (statuses.len(), (0, 0)));
}

#[test]
fn a_partial_success_is_logged_and_not_sent_again() {
    logged();
    let body = |rejected_log_records, message: &str| {
        let partial_success = ExportLogsPartialSuccess { rejected_log_records, error_message: message.to_owned() };
        ExportLogsServiceResponse { partial_success: Some(partial_success) }.encode_to_vec()
    };
    let answers = [body(1, "too old for us"), body(0, "attributes were renamed")];
    let answers = answers.map(|body| Answer { status: 200, headers: "", body });
    let server = Server::start(answers.to_vec());
    let folder = tempfile::tempdir().unwrap();
    let client = client(folder.path(), options(&server));
    client.capture(&report(1)).unwrap();
    assert!(client.flush(LONG));
    assert_eq!(kept(&client), (0, 1), "it was rejected");
    client.capture(&report(2)).unwrap();
    assert!(client.flush(LONG));
    assert_eq!((server.requests().len(), kept(&client)), (2, (0, 1)), "the other was taken");
    let lines = logged();
    for printed in ["too old for us", "attributes were renamed"] {
        assert!(lines.iter().any(|line| line.starts_with("WARN") && line.contains(printed)), "{printed}: {lines:?}");
    }
}

#[test]
fn records_wait_until_the_server_is_reachable() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let offline =
        client(folder.path(), Options { retry_after: 100 * LONG, ..Options::new(&format!("http://{nobody}/")) });
    offline.capture(&report(1)).unwrap();
    assert!(!offline.flush(LONG));
    let entry = offline.outbox().queue().unwrap().remove(0);
    assert_eq!(entry.tries, 0, "without a connection there was no try");
    drop(offline);
    // The second is due; a portal answers it, then a server, and as soon as that takes it the first
    // is sent, too.
    let server = Server::start(vec![Answer::status(302)]);
    let client = client(folder.path(), options(&server));
    let first = client.outbox().queue().unwrap().remove(0);
    assert_eq!(first.not_before, 0, "another address is asked at once");
    client.outbox().put_off(&first, 0, SystemTime::now() + 100 * LONG).unwrap();
    client.capture(&report(2)).unwrap();
    while server.requests().len() < 2 {
        client.flush(LONG);
    }
    assert!(client.flush(LONG));
    let ids = server.requests().iter().map(|request| request.attributes()["app.crash.id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids, ["02".repeat(16), "02".repeat(16), "01".repeat(16)]);
    assert_eq!(kept(&client), (0, 0));
}

#[test]
fn nothing_leaves_without_consent() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let client = client(folder.path(), Options { require_consent: true, ..options(&server) });
    client.capture(&report(1)).unwrap();
    assert!(!client.flush(LONG));
    assert_eq!((server.requests().len(), kept(&client)), (0, (1, 0)));
    client.set_consent(true).unwrap();
    assert!(client.flush(LONG));
    assert_eq!(server.requests().len(), 1);
    client.set_consent(false).unwrap();
    assert_eq!(client.capture(&report(2)).unwrap(), Captured::Refused);
    assert!(client.flush(LONG));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn the_oldest_records_are_removed_at_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new());
    let limits = OutboxLimits { number: 2, ..OutboxLimits::default() };
    let client = client(folder.path(), Options { limits, require_consent: true, ..options(&server) });
    for event in 1..=4 {
        client.capture(&report(event)).unwrap();
        assert!(!client.flush(LONG));
    }
    client.set_consent(true).unwrap();
    assert!(client.flush(LONG));
    let ids: Vec<_> = server.requests().iter().map(|request| request.attributes()["app.crash.id"].clone()).collect();
    assert_eq!(ids, ["03".repeat(16), "04".repeat(16)]);
}

#[test]
fn a_record_that_is_too_old_is_tried_once_more() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(vec![Answer::status(503)]);
    let first = client(folder.path(), Options { retry_after: Duration::from_mins(15), ..options(&server) });
    first.capture(&report(1)).unwrap();
    assert!(!first.flush(LONG));
    // The clock of the next launch is two months ahead.
    let entry = first.outbox().queue().unwrap().remove(0);
    drop(first);
    let old = |seconds: u64| seconds - 60 * 24 * 60 * 60;
    let path = std::fs::read_dir(folder.path().join("queue")).unwrap().next().unwrap().unwrap().path();
    let (made, not_before) = (old(entry.made_ms / 1000) * 1000, old(entry.not_before));
    let name = format!("{made:013}-{}-{not_before}-{}-0.otlp", entry.tries, entry.event_id);
    std::fs::rename(&path, path.with_file_name(name)).unwrap();
    let next = client(folder.path(), options(&server));
    assert!(next.flush(LONG));
    assert_eq!((server.requests().len(), kept(&next)), (2, (0, 0)));
}

/// A default record contains only what the page on privacy lists, on each system.
#[test]
fn no_memory_is_sent_by_default() {
    use coroner_report::model::{Attachment, Bytes, RunFacts, StackMemory};
    use coroner_report::wire::Monitor;

    for monitor in [Monitor::SIGNAL, Monitor::MACH, Monitor::SEH] {
        let folder = tempfile::tempdir().unwrap();
        let dump = folder.path().join("minidump.dmp");
        std::fs::write(&dump, b"MDMP with hunter2 in it").unwrap();
        let server = Server::start(Vec::new());
        let client = client(folder.path(), options(&server));
        let attachment = Attachment {
            name: "minidump.dmp".to_owned(),
            path: dump.to_str().unwrap().to_owned(),
            content_type: Some(Attachment::MINIDUMP.to_owned()),
        };
        let bytes = Bytes(b"hunter2 on the stack".to_vec());
        let report = Report {
            crash: Some(Crash { monitor, ..Crash::default() }),
            stack_memory: vec![StackMemory { tid: 7, bytes, ..StackMemory::default() }],
            run: Some(RunFacts { attachments: vec![attachment], ..RunFacts::default() }),
            ..report(1)
        };
        client.capture(&report).unwrap();
        assert!(client.flush(LONG));
        let [request] = &server.requests()[..] else { panic!("one request") };
        let record = format!("{:?}", request.record());
        assert!(!record.contains("hunter2") && !record.contains("68756e74657232"), "{monitor}: {record}");
    }
}
