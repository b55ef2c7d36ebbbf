use std::sync::atomic::AtomicU64;

use coroner_report::RunFacts;
use coroner_report::run_state::{Limits, ProcessIdentity};
use serde_json::json;

use super::*;

fn scope() -> Scope {
    let limits = Limits::default();
    let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
    Scope::new(RunState::create(words.leak(), &limits, [1; 16], &ProcessIdentity::default()).unwrap())
}

#[test]
fn values_are_in_the_run_state() {
    let scope = scope();
    scope.set_tag("kept", "yes").unwrap();
    scope.set_tag("removed", "yes").unwrap();
    scope.remove_tag("removed");
    scope.set_user(Some(&User::new("7").name("Ada").email("old").email("ada@example.com"))).unwrap();
    let context = json!({"size": 3, "below": -2, "ratio": 0.5, "nested": {"list": [true, null, "text"]}});
    scope.set_context("document", &context).unwrap();
    scope.set_extra("note", &json!("shown")).unwrap();
    scope.set_fingerprint(&["a", "b"]).unwrap();
    scope.set_level(Level::Warning);
    scope.add_breadcrumb(&Breadcrumb::new("opened").category("ui").kind("navigation").level(Level::Error));
    scope.begin_session(Id([0xab; 16]));
    scope.count_error();
    scope.note_exit(ExitKind::CLEAN);

    let facts = RunFacts::read(&scope.state.to_bytes()).unwrap();
    assert_eq!(facts.tags, [("kept".to_owned(), "yes".to_owned())].into());
    let user = json!({"id": "7", "username": "Ada", "email": "ada@example.com"});
    assert_eq!(facts.user.unwrap().to_json(), user);
    assert_eq!(facts.contexts["document"].to_json(), context);
    assert_eq!(facts.extra["note"].to_json(), json!("shown"));
    assert_eq!(facts.fingerprint, ["a", "b"]);
    assert_eq!(facts.level, Some(run_state::Level::WARNING));
    let breadcrumb = &facts.breadcrumbs[0];
    assert_eq!((breadcrumb.message.as_deref(), breadcrumb.category.as_deref()), (Some("opened"), Some("ui")));
    assert_eq!((breadcrumb.kind.as_deref(), breadcrumb.level), (Some("navigation"), run_state::Level::ERROR));
    assert_eq!(facts.lifecycle.exit, ExitKind::CLEAN);
    let session = facts.session.unwrap();
    assert_eq!((session.id, session.errors), (Id([0xab; 16]), 1));
    assert!(facts.problems.is_empty(), "{:?}", facts.problems);
}

#[test]
fn several_changes_take_effect_atomically() {
    let scope = scope();
    let tags = || RunFacts::read(&scope.state.to_bytes()).unwrap().tags;
    scope.set_tag("login", "1").unwrap();
    scope.configure(|change| {
        change.set_tag("login", "2").unwrap();
        // A nested change is part of it.
        scope.configure(|inner| inner.set_tag("plan", "free")).unwrap();
        assert_eq!(tags().into_iter().collect::<Vec<_>>(), [("login".to_owned(), "1".to_owned())]);
        // Another thread's change takes effect without waiting.
        std::thread::scope(|threads| threads.spawn(|| scope.set_tag("other", "yes")).join().unwrap()).unwrap();
        assert_eq!((tags().len(), tags()["other"].as_str()), (2, "yes"));
    });
    assert_eq!((tags()["login"].as_str(), tags()["plan"].as_str()), ("2", "free"));
    // The changes made before a panic take effect, and the next change works again.
    let panicked =
        std::panic::catch_unwind(|| scope.configure(|change| change.set_tag("login", "3").map(|()| panic!())));
    assert!(panicked.is_err() && !is_changing());
    assert_eq!(tags()["login"], "3");
}

#[test]
fn values_that_do_not_fit_are_rejected_with_a_reason() {
    let scope = scope();
    assert_eq!(scope.set_tag(&"k".repeat(300), "v"), Err(ScopeError::KeyTooLong));
    assert_eq!(scope.set_extra("big", &json!("x".repeat(10_000))), Err(ScopeError::TooLarge));
    let taken = (0..100).flat_map(|number| scope.set_tag(&format!("tag{number}"), "v")).count();
    assert_eq!(taken, 64);
    assert_eq!(scope.set_tag("one-more", "v"), Err(ScopeError::Full));
}

#[test]
fn values_that_a_server_would_drop_are_rejected() {
    let scope = scope();
    for key in ["", "two words", "line\nbreak", "\u{7f}"] {
        assert_eq!(scope.set_tag(key, "7"), Err(ScopeError::InvalidKey), "{key:?}");
    }
    assert_eq!(scope.set_tag("release", "7"), Err(ScopeError::Reserved("release")));
    assert_eq!(scope.set_context("device", &json!({"memory_size": "much"})), Err(ScopeError::WrongType("memory_size")));
    assert_eq!(scope.set_context("trace", &json!({"trace_id": "zz"})), Err(ScopeError::WrongType("trace_id")));
    assert_eq!(scope.set_context("os", &json!("Linux")), Err(ScopeError::WrongType("os")));
    scope.set_context("trace", &json!({"trace_id": "ab".repeat(16), "span_id": "cd".repeat(8)})).unwrap();
    scope.set_context("device", &json!({"memory_size": 7, "shape": "round"})).unwrap();
    scope.set_context("document", &json!({"memory_size": "much"})).unwrap();
}

#[test]
fn a_user_and_a_breadcrumb_have_data() {
    let scope = scope();
    scope.set_user(Some(&User::new("7").ip_address("192.0.2.7").field("plan", "free"))).unwrap();
    let data = json!({"pages": 3});
    scope.add_breadcrumb(&Breadcrumb::new("opened").data(&data));
    scope.set_level(Level::Warning);
    scope.set_level(None);
    let facts = RunFacts::read(&scope.state.to_bytes()).unwrap();
    assert_eq!(facts.user.unwrap().to_json(), json!({"id": "7", "ip_address": "192.0.2.7", "plan": "free"}));
    assert_eq!(facts.breadcrumbs[0].data.as_ref().unwrap().to_json(), json!({"pages": 3}));
    assert_eq!(facts.level, None);
}
