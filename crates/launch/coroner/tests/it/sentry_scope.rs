//! The app's scope data, from its run to the envelope at the next launch: real processes and a
//! custom transport.
//!
//! The app is this test program, started again with `CORONER_TEST_STORE` set to run only [`app`].

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use coroner::sentry::envelope::Envelope;
use coroner::sentry::transport::{Answer, SendError, Transport};
use coroner::{Breadcrumb, Config, Delivery, Feedback, SentrySink, User};
use serde_json::{Value, json};

const STORE: &str = "CORONER_TEST_STORE";
const ACT: &str = "CORONER_TEST_ACT";

/// Writes each envelope to a file.
struct ToFiles(std::path::PathBuf);

impl Transport for ToFiles {
    fn send(&self, envelope: &[u8]) -> Result<Answer, SendError> {
        let number = std::fs::read_dir(&self.0).unwrap().count();
        // Whole or not at all: an app that aborts may be writing.
        let (written, sent) = (self.0.with_extension(number.to_string()), self.0.join(number.to_string()));
        std::fs::write(&written, envelope).unwrap();
        std::fs::rename(written, sent).unwrap();
        Ok(Answer { status: 200, ..Answer::default() })
    }
}

/// Not a test: the app, when the variables are set.
#[test]
fn app() {
    let Some(store) = std::env::var_os(STORE) else { return };
    let folder = Path::new(&store).parent().unwrap().to_owned();
    let sink = SentrySink::from_env().unwrap().expect("SENTRY_DSN is set").transport(ToFiles(folder.join("sent")));
    let config = Config::new("scope").store_dir(&store).sink(sink).delivery(Delivery::new().symbolicate(false));
    let config = config.before_breadcrumb(|breadcrumb| match breadcrumb.get_message() {
        "secret" => None,
        _ => Some(breadcrumb.category("changed")),
    });
    let coroner = coroner::install(config).unwrap();
    if std::env::var(ACT).unwrap() == "looks" {
        let event_id = coroner.last_run().event_id;
        let printed = Feedback::new("I only saved").event_id(event_id).email("a@example.com");
        assert!(coroner::feedback(&printed));
        assert!(coroner.flush(Duration::from_secs(30)));
        return;
    }
    coroner::set_trace("4BF92F3577B34DA6A3CE929D0E0E4736", "00f067aa0ba902b7").unwrap();
    assert_eq!(coroner::set_trace("0", "1"), Err(coroner::ScopeError::InvalidTrace));
    for flag in 0..110 {
        coroner::set_flag(&format!("flag-{flag}"), flag % 2 == 0).unwrap();
    }
    coroner::set_flag("flag-50", false).unwrap();
    coroner::set_user(Some(&User::new("7").ip_address("192.0.2.1").field("plan", "gold"))).unwrap();
    coroner::set_release("scope@9").unwrap();
    coroner::set_environment("staging").unwrap();
    coroner::add_breadcrumb(&Breadcrumb::new("secret"));
    coroner::add_breadcrumb(&Breadcrumb::new("asked").kind("http").data(&json!({"status": 404})));
    coroner::add_attachment("log.txt", &folder.join("log"), Some("text/plain")).unwrap();
    coroner::add_attachment("gone.txt", &folder.join("gone"), None).unwrap();
    assert_eq!(coroner.keep_attachment("../x", b"x", None), Err(coroner::ScopeError::InvalidName));
    coroner.keep_attachment("view.json", b"{}", Some("application/json")).unwrap();
    std::fs::write(folder.join("log"), "the last line").unwrap();
    std::process::abort();
}

fn run(folder: &Path, act: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "sentry_scope::app", "--nocapture", "--quiet", "--test-threads=1"]);
    command.env(STORE, folder.join("store")).env(ACT, act).current_dir(folder);
    command.env("SENTRY_DSN", "https://key@example.com/1").env("SENTRY_RELEASE", "scope@8");
    command.env("SENTRY_ENVIRONMENT", "test").output().unwrap()
}

#[test]
fn all_scope_data_arrives_in_the_envelope() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("sent")).unwrap();
    run(folder.path(), "crashes");
    let looked = run(folder.path(), "looks");
    assert!(looked.status.success(), "{looked:?}");

    let sent = std::fs::read_dir(folder.path().join("sent")).unwrap().flatten();
    let sent: Vec<Envelope> = sent.map(|file| Envelope::parse(&std::fs::read(file.path()).unwrap()).unwrap()).collect();
    let items: Vec<_> = sent.iter().flat_map(|envelope| &envelope.items).collect();
    let json = |kind: &str| -> Value {
        let item = items.iter().find(|item| item.kind() == kind).unwrap_or_else(|| panic!("no {kind}"));
        serde_json::from_slice(&item.payload).unwrap()
    };
    let event = json("event");
    let trace = json!({"type": "trace", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7"});
    assert_eq!(event["contexts"]["trace"], trace);
    let flags = event["contexts"]["flags"]["values"].as_array().unwrap();
    assert_eq!(flags.last().unwrap(), &json!({"flag": "flag-50", "result": false}));
    assert_eq!((flags.len(), &flags[0]["flag"]), (100, &json!("flag-10")));
    assert_eq!(event["user"], json!({"id": "7", "ip_address": "192.0.2.1", "data": {"plan": "gold"}}));
    assert_eq!((&event["release"], &event["environment"]), (&json!("scope@9"), &json!("staging")));
    let breadcrumbs = event["breadcrumbs"]["values"].as_array().unwrap();
    assert_eq!(breadcrumbs.len(), 1, "one was dropped");
    let breadcrumb = &breadcrumbs[0];
    assert_eq!((&breadcrumb["type"], &breadcrumb["category"]), (&json!("http"), &json!("changed")));
    assert_eq!(breadcrumb["data"], json!({"status": 404}));
    let missing = &event["contexts"]["coroner"]["missing_attachments"];
    assert!(missing["gone.txt"].as_str().is_some_and(|why| why.contains("No such file")), "{missing}");

    let attached: Vec<_> = items.iter().filter(|item| item.kind() == "attachment").collect();
    let attached = attached.iter().map(|item| (item.header["filename"].as_str().unwrap(), &item.payload[..]));
    assert_eq!(attached.collect::<Vec<_>>(), [("log.txt", &b"the last line"[..]), ("view.json", b"{}")]);

    let feedback = &json("feedback")["contexts"]["feedback"];
    assert_eq!(feedback["associated_event_id"], event["event_id"]);
    assert_eq!((&feedback["message"], &feedback["contact_email"]), (&json!("I only saved"), &json!("a@example.com")));
    // Without a word of the app's, the environment's; and a session keeps what it began with.
    for session in items.iter().filter(|item| item.kind() == "session") {
        let session: Value = serde_json::from_slice(&session.payload).unwrap();
        assert_eq!(session["attrs"], json!({"release": "scope@8", "environment": "test"}));
    }
}
