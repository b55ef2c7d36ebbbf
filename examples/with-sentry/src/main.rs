//! An app that uses the `sentry` crate, with Coroner for the crashes that it can't see.
//!
//! ```sh
//! export SENTRY_DSN=https://KEY@HOST/PROJECT
//! cargo run -p with-sentry -- crash     # dies
//! cargo run -p with-sentry              # its client sends the report
//! ```

use std::time::Duration;

use coroner::{Config, SentryClientSink, SentryIntegration};
use sentry::ClientOptions;

fn main() {
    // The set-up that was there before, with one more integration. Without `SENTRY_DSN` nothing is sent.
    let options = ClientOptions::new().maybe_release(sentry::release_name!());
    let _sentry = sentry::init(options.add_integration(SentryIntegration::new()));
    let config = Config::new("com.example.with-sentry").sink(SentryClientSink::new());
    let installed = coroner::install(config);
    if let Err(error) = &installed {
        eprintln!("crashes will not be reported: {error}");
    }

    sentry::configure_scope(|scope| {
        scope.set_tag("channel", "beta");
        scope.set_user(Some(sentry::User { id: Some("4711".into()), ..Default::default() }));
    });
    coroner::mirror_scope();
    sentry::add_breadcrumb(sentry::Breadcrumb { message: Some("opened the document".into()), ..Default::default() });

    if std::env::args().any(|argument| argument == "crash") {
        // SAFETY: none: this is the crash.
        unsafe { std::ptr::null_mut::<u32>().write_volatile(7) };
    }
    if let Ok(coroner) = installed {
        println!("delivered: {}", coroner.flush(Duration::from_secs(60)));
    }
}
