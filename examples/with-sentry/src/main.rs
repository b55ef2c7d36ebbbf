//! An app that uses the `sentry` crate, with Coroner for the crashes that it can't see.
//!
//! ```sh
//! export SENTRY_DSN=https://KEY@HOST/PROJECT
//! cargo run -p with-sentry -- crash     # crashes
//! cargo run -p with-sentry              # its client sends the report
//! cargo run -p with-sentry -- panic     # the same with a panic, of which the client's own event gives way
//! cargo run -p with-sentry -- logout crash
//! cargo run -p with-sentry -- trace crash
//! cargo run -p with-sentry -- attach crash
//! cargo run -p with-sentry -- feedback  # what a user says of the last crash
//! ```

use std::time::Duration;

use coroner::{Config, SentryClientSink, SentryIntegration};
use sentry::ClientOptions;

fn main() {
    // The set-up that was there before, with one more integration. Without `SENTRY_DSN` nothing is
    // sent.
    let release = std::env::var("SENTRY_RELEASE").ok().map(Into::into).or(sentry::release_name!());
    let mut options = ClientOptions::new().maybe_release(release).auto_session_tracking(true);
    let words: Vec<String> = std::env::args().collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    if has("options") {
        options = options.environment("canary");
    }
    let _sentry = sentry::init(options.add_integration(SentryIntegration::new()));
    let config = Config::new("com.example.with-sentry").sink(SentryClientSink::new());
    let installed = coroner::install(config);
    if let Err(error) = &installed {
        eprintln!("crashes will not be reported: {error}");
    }

    sentry::configure_scope(|scope| {
        scope.set_tag("channel", "beta");
        scope.set_transaction(Some("editor"));
        let plan = ("plan".to_owned(), "free".into());
        let address = "192.0.2.7".parse().ok();
        scope.set_user(Some(sentry::User {
            id: Some("4711".into()),
            ip_address: address,
            other: [plan].into(),
            ..Default::default()
        }));
    });
    coroner::mirror_scope();
    let pages = ("pages".to_owned(), 3.into());
    let message = Some("opened the document".into());
    sentry::add_breadcrumb(sentry::Breadcrumb { message, data: [pages].into(), ..Default::default() });

    if has("logout") {
        sentry::configure_scope(|scope| {
            scope.set_user(None);
            scope.remove_tag("channel");
        });
        coroner::mirror_scope();
    }
    if has("trace") {
        // A crash is linked to the trace that the app was at work on.
        let transaction = sentry::start_transaction(sentry::TransactionContext::new("open", "task"));
        println!("trace {}", transaction.get_trace_context().trace_id);
        sentry::configure_scope(|scope| scope.set_span(Some(transaction.into())));
        coroner::mirror_scope();
    }
    if has("attach") {
        let _ =
            coroner::add_attachment("Cargo.toml", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").as_ref(), None);
    }
    if has("feedback")
        && let Ok(coroner) = &installed
    {
        let message = "I was only saving the document".to_owned();
        let event_id = coroner.last_run().event_id;
        coroner::feedback(&coroner::Feedback::new(message).event_id(event_id));
    }
    if has("crash") {
        // SAFETY: none: this is the crash.
        unsafe { std::ptr::null_mut::<u32>().write_volatile(7) };
    }
    assert!(!has("panic"), "the app panics");
    if let Ok(coroner) = installed {
        println!("delivered: {}", coroner.flush(Duration::from_secs(60)));
    }
}
