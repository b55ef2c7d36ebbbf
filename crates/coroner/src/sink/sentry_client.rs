//! For apps that use the `sentry` crate already: its client delivers what Coroner records, and its scope is in the reports.

use std::sync::Arc;
use std::time::Duration;

use coroner_sentry::envelope::Envelope;
use coroner_sentry::event::{Event, EventOptions};
use sentry_core::protocol;
use sentry_core::{Breadcrumb, ClientOptions, Hub, Integration, Scope as SentryScope};

use super::{Delivery, Sink, Submission};
use crate::scope;

/// How long the client may take to send one event.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Delivers by the client that the app made with `sentry::init`, to the project of its DSN and by its transport.
///
/// Make the client before [`install`](crate::install), and give its options a [`SentryIntegration`], which keeps the client's scope
/// for reports:
///
/// ```ignore
/// let _guard = sentry::init(sentry::ClientOptions::new().dsn(DSN).add_integration(coroner::SentryIntegration::new()));
/// coroner::install(coroner::Config::new("com.example.paint").sink(coroner::SentryClientSink::new()))?;
/// ```
///
/// What that client can't do is not done: it has no outbox, so an event that its transport loses in an outage is lost, and the
/// sessions that it tells are its own, which know of no crash. Its `before_send` and its sampling are for events of its own types
/// and do not see these; [`Config::before_deliver`](crate::Config::before_deliver) does. Where that is not good enough, give
/// [`SentrySink`](super::SentrySink) the same DSN: [`SentryIntegration`] works with it as well.
#[derive(Debug, Clone, Default)]
pub struct SentryClientSink {
    options: EventOptions,
}

impl SentryClientSink {
    /// Delivers by the main hub's client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes events as `options` say. Release and environment are the client's where they are not set.
    #[must_use]
    pub fn event_options(mut self, options: EventOptions) -> Self {
        self.options = options;
        self
    }
}

impl Sink for SentryClientSink {
    fn name(&self) -> &'static str {
        "sentry-client"
    }

    fn deliver(&self, submission: &Submission<'_>) -> Delivery {
        let retry = |reason: &str| Delivery::Retry { after: Duration::ZERO, reason: reason.to_owned() };
        let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else {
            return retry("the sentry crate has no client with a DSN; call `sentry::init` before `coroner::install`");
        };
        let of_client = client.options();
        let text = |value: &Option<std::borrow::Cow<'static, str>>| value.as_deref().map(ToOwned::to_owned);
        let mut options = self.options.clone();
        options.release = options.release.or_else(|| text(&of_client.release));
        options.environment = options.environment.or_else(|| text(&of_client.environment));
        options.send_default_pii |= of_client.send_default_pii;
        let event = Event::from_report(submission.report, &options);
        // As bytes: the client's own types have no images of ELF and Mach-O.
        let bytes = Envelope::of_event(&event).to_bytes_sent_at(std::time::SystemTime::now());
        match sentry_core::Envelope::from_bytes_raw(bytes) {
            Ok(envelope) => client.send_envelope(envelope),
            Err(error) => return Delivery::Rejected { reason: error.to_string() },
        }
        if client.flush(Some(TIMEOUT)) {
            Delivery::Delivered
        } else {
            retry("the sentry crate's client could not send it in time")
        }
    }
}

/// Keeps the scope of the `sentry` crate for reports: breadcrumbs as they come, everything else whenever an event is captured and
/// whenever [`mirror_scope`] is called.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentryIntegration;

impl SentryIntegration {
    /// To be given to the client's options.
    pub fn new() -> Self {
        Self
    }
}

impl Integration for SentryIntegration {
    fn name(&self) -> &'static str {
        "coroner"
    }

    fn setup(&self, options: &mut ClientOptions) {
        let own = options.before_breadcrumb.take();
        options.before_breadcrumb = Some(Arc::new(move |breadcrumb| {
            // What the app's own hook drops is for nobody.
            let breadcrumb = match &own {
                Some(hook) => hook(breadcrumb)?,
                None => breadcrumb,
            };
            mirror_breadcrumb(&breadcrumb);
            Some(breadcrumb)
        }));
    }

    fn process_event(
        &self,
        event: protocol::Event<'static>,
        _options: &ClientOptions,
    ) -> Option<protocol::Event<'static>> {
        // The client has put its scope into the event.
        mirror(&event);
        // As the client itself counts errors of a session; a client with logs tries its integrations with an event of nothing.
        let says = !event.exception.is_empty() || event.message.is_some() || event.logentry.is_some();
        if says && matches!(event.level, protocol::Level::Error | protocol::Level::Fatal) {
            scope::count_error();
        }
        Some(event)
    }
}

/// Copies the scope of the current hub of the `sentry` crate to Coroner's: user, tags, contexts, extra and fingerprint. To be called
/// after it was changed.
///
/// ```ignore
/// sentry::configure_scope(|scope| scope.set_tag("channel", "beta"));
/// coroner::mirror_scope();
/// ```
pub fn mirror_scope() {
    let empty = protocol::Event::default();
    let mirrored = Hub::current().configure_scope(|scope: &mut SentryScope| scope.apply_to_event(empty));
    if let Some(event) = mirrored {
        mirror(&event);
    }
}

/// Puts what an event has of a scope into Coroner's. What has no room there is left out.
fn mirror(event: &protocol::Event<'static>) {
    for (key, value) in &event.tags {
        let _ = scope::set_tag(key, value);
    }
    for (key, value) in &event.extra {
        let _ = scope::set_extra(key, value);
    }
    for (name, context) in &event.contexts {
        if let Ok(value) = serde_json::to_value(context) {
            let _ = scope::set_context(name, &value);
        }
    }
    if let Some(user) = &event.user {
        let mut own = scope::User::new(user.id.clone().unwrap_or_default());
        if let Some(name) = &user.username {
            own = own.name(name.clone());
        }
        if let Some(email) = &user.email {
            own = own.email(email.clone());
        }
        let _ = scope::set_user(Some(&own));
    }
    // `{{ default }}` is what an event has whose scope sets none.
    if !event.fingerprint.is_empty() && *event.fingerprint != ["{{ default }}"] {
        let parts: Vec<&str> = event.fingerprint.iter().map(AsRef::as_ref).collect();
        let _ = scope::set_fingerprint(&parts);
    }
}

fn mirror_breadcrumb(breadcrumb: &Breadcrumb) {
    let level = match breadcrumb.level {
        protocol::Level::Debug => crate::Level::DEBUG,
        protocol::Level::Info => crate::Level::INFO,
        protocol::Level::Warning => crate::Level::WARNING,
        protocol::Level::Error => crate::Level::ERROR,
        protocol::Level::Fatal => crate::Level::FATAL,
    };
    let mut own = scope::Breadcrumb::new(breadcrumb.message.as_deref().unwrap_or_default()).level(level);
    own = own.category(breadcrumb.category.as_deref().unwrap_or_default());
    if breadcrumb.ty != "default" {
        own = own.kind(&breadcrumb.ty);
    }
    scope::add_breadcrumb(&own);
}
