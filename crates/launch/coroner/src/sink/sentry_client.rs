//! For apps that use the `sentry` crate already: its client delivers what Coroner records, and its scope is in the reports.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use coroner_report::model::RunFacts;
use coroner_sentry::attachments;
use coroner_sentry::envelope::{Envelope, Item, item_type};
use coroner_sentry::event::{Event, EventOptions, OWN_CONTEXTS};
use coroner_sentry::session::{Reports, SessionMode, SessionTeller, SessionUpdate, is_counted_by_client};
use sentry_core::protocol::{self, EnvelopeError};
use sentry_core::{Breadcrumb, Client, ClientOptions, Hub, Integration, Scope as SentryScope};

use super::{FinishedRun, Sink, SinkAnswer, Submission};
use crate::locked::locked;
use crate::scope::{self, Scope};

/// How long the client may take to send one event.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Most bytes of the attachments of one event, as `SentrySink` has it by default.
const MAX_ATTACHMENTS: usize = 20 << 20;

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
/// What that client can't do is not done: it has no outbox, so an event that its transport loses in an outage is lost. Where it
/// tracks sessions (`auto_session_tracking`), which know of no crash, this sink adds those of runs that crashed or ended without a
/// trace: each run is one session. What the run declared as attachments goes with its event, 20 MiB of it at most. Its `before_send` and its sampling are for events of its own types
/// and do not see these; [`Delivery::before_deliver`](crate::Delivery::before_deliver) does. Where that is not good enough, give
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

    /// Makes events as `options` say. Where they set no release or environment, those are the ones of the run that crashed, which are the
    /// client's of that time: an app that was updated since has another release now.
    #[must_use]
    pub fn event_options(mut self, options: EventOptions) -> Self {
        self.options = options;
        self
    }
}

impl SentryClientSink {
    /// As the client's own events are made. What this run's client is of serves only where the run that ended has recorded nothing.
    fn options_beside(&self, client: &ClientOptions, run: Option<&RunFacts>) -> EventOptions {
        let text = |value: &Option<std::borrow::Cow<'static, str>>| value.as_deref().map(ToOwned::to_owned);
        let mut options = self.options.clone();
        let has_release = run.is_some_and(|run| run.release.is_some() || run.app.release.is_some());
        let has_environment = run.is_some_and(|run| run.environment.is_some() || run.app.environment.is_some());
        options.release = options.release.or_else(|| text(&client.release).filter(|_| !has_release));
        options.environment = options.environment.or_else(|| text(&client.environment).filter(|_| !has_environment));
        options.send_default_pii |= client.send_default_pii;
        options
    }
}

impl Sink for SentryClientSink {
    fn name(&self) -> &'static str {
        "sentry-client"
    }

    fn follows_runs(&self) -> bool {
        client_has_sessions()
    }

    fn run_ended(&self, run: &FinishedRun<'_>) {
        let Some(client) = Hub::main().client().filter(|_| client_has_sessions()) else { return };
        let EventOptions { release, environment, .. } = self.options_beside(client.options(), Some(run.facts));
        let teller = SessionTeller { release, environment, ..SessionTeller::default() };
        let reports = Reports { all: run.reports, crashes: run.crashes };
        let update = teller.ended(run.facts, reports).filter(|update| SessionMode::CrashesOnly.takes(update));
        let Some(update) = update else { return };
        let update = SessionUpdate { init: !is_counted_by_client(run.facts), ..update };
        let _ = send(&client, &Envelope::new().with(Item::json(item_type::SESSION, &update)));
    }

    fn feedback(&self, feedback: &crate::Feedback) -> bool {
        let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else { return false };
        let said = coroner_sentry::Feedback::from(feedback);
        send(&client, &said.envelope(&self.options_beside(client.options(), None), SystemTime::now())).is_ok()
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        let retry = |reason: &str| SinkAnswer::Retry { after: Duration::ZERO, reason: reason.to_owned() };
        let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else {
            return retry("the sentry crate has no client with a DSN; call `sentry::init` before `coroner::install`");
        };
        let report = submission.report;
        let mut event = Event::from_report(report, &self.options_beside(client.options(), report.run.as_ref()));
        let (mut attachments, left_out) = attachments::of_run(report, &mut event, MAX_ATTACHMENTS);
        attachments::limit(&mut attachments, MAX_ATTACHMENTS, left_out, &mut event);
        let mut envelope = Envelope::of_event(&event);
        envelope.items.extend(attachments.into_iter().map(Item::attachment));
        if let Err(error) = send(&client, &envelope) {
            return SinkAnswer::Rejected { reason: error.to_string() };
        }
        if client.flush(Some(TIMEOUT)) {
            SinkAnswer::Delivered
        } else {
            retry("the sentry crate's client could not send it in time")
        }
    }
}

/// Hands an envelope to the client. As bytes: its own types have no images of ELF and Mach-O.
fn send(client: &Client, envelope: &Envelope) -> Result<(), EnvelopeError> {
    let bytes = envelope.to_bytes_sent_at(SystemTime::now());
    client.send_envelope(sentry_core::Envelope::from_bytes_raw(bytes)?);
    Ok(())
}

/// Whether panics that have a report are Coroner's to tell the server: it has a sink that goes there.
static HAS_PANICS: AtomicBool = AtomicBool::new(false);

/// What the last event that was mirrored had, so that what is gone since can be removed.
static MIRRORED: Mutex<Mirrored> = Mutex::new(Mirrored::NONE);

#[derive(Debug)]
struct Mirrored {
    tags: BTreeSet<String>,
    extra: BTreeSet<String>,
    contexts: BTreeSet<String>,
    user: bool,
    fingerprint: bool,
}

impl Mirrored {
    const NONE: Self = Self {
        tags: BTreeSet::new(),
        extra: BTreeSet::new(),
        contexts: BTreeSet::new(),
        user: false,
        fingerprint: false,
    };
}

/// Is notified at install whether there is a sink for Sentry that gets panics. Where the client reports them, too, each would be two
/// events: [`SentryIntegration`] drops the client's.
pub(crate) fn beside_sentry_client(has_panics: bool) {
    HAS_PANICS.store(has_panics, Ordering::Release);
    let Some(client) = Hub::main().client().filter(|client| has_panics && client.is_enabled()) else { return };
    let has = |name: &str| client.options().integrations.iter().any(|integration| integration.name() == name);
    if has("panic") && !has(NAME) {
        log::warn!("coroner: panics will be two events: give `SentryIntegration` to the sentry crate's client");
    }
}

/// Whether the client that the app made tells of runs that end by themselves.
pub(super) fn client_has_sessions() -> bool {
    Hub::main().client().is_some_and(|client| {
        let options = client.options();
        client.is_enabled() && options.auto_session_tracking && options.release.is_some()
    })
}

/// What the app's client takes its events to be of, with Coroner's integration or without: crashes belong with its errors.
pub(crate) fn release_and_environment_of_client() -> (Option<String>, Option<String>) {
    let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else { return (None, None) };
    let text = |value: &Option<std::borrow::Cow<'static, str>>| value.as_deref().map(ToOwned::to_owned);
    (text(&client.options().release), text(&client.options().environment))
}

/// Name of the integration.
const NAME: &str = "coroner";

/// Keeps the scope of the `sentry` crate for reports: breadcrumbs as they come, everything else whenever an event is captured and
/// whenever [`mirror_scope`] is called. And it drops the client's event of a panic of which Coroner has a report, which says more:
/// one panic is one event.
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
        NAME
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
        let mechanism =
            |exception: &protocol::Exception| exception.mechanism.as_ref().map(|mechanism| mechanism.ty == "panic");
        #[cfg_attr(not(supported), allow(unused_variables))]
        let is_panic = event.exception.iter().any(|exception| mechanism(exception) == Some(true));
        #[cfg(supported)]
        if is_panic && HAS_PANICS.load(Ordering::Acquire) && crate::panic::is_reported() {
            return None;
        }
        // As the client itself counts errors of a session; a client with logs tries its integrations with an event of nothing.
        let says = !event.exception.is_empty() || event.message.is_some() || event.logentry.is_some();
        if says && matches!(event.level, protocol::Level::Error | protocol::Level::Fatal) {
            scope::count_error();
        }
        Some(event)
    }
}

/// Copies the scope of the current hub of the `sentry` crate to Coroner's: user, tags, contexts, extra, fingerprint, transaction and
/// level. What is no longer in it is removed there. To be called after it was changed.
///
/// ```ignore
/// sentry::configure_scope(|scope| scope.set_user(None));
/// coroner::mirror_scope();
/// ```
pub fn mirror_scope() {
    // A scope says only by changing an event what its level is.
    let with = |level| {
        let empty = protocol::Event { level, ..protocol::Event::default() };
        Hub::current().configure_scope(|scope: &mut SentryScope| scope.apply_to_event(empty))
    };
    let Some(event) = with(protocol::Level::Debug) else { return };
    let is_set = event.level != protocol::Level::Debug
        || with(protocol::Level::Info).is_some_and(|event| event.level == protocol::Level::Debug);
    scope::set_level(is_set.then(|| level(event.level)));
    mirror(&event);
}

/// Puts what an event has of a scope into Coroner's, and removes what the last one had and this one has not. What has no room there is
/// left out. A crash in the middle has the scope as it was.
fn mirror(event: &protocol::Event<'static>) {
    // The change's lock before the other: an app may capture an event within a change of its own. Without an installed run there is
    // nothing to change.
    let _ = scope::configure_scope(|scope| mirror_into(scope, event));
}

fn mirror_into(scope: &Scope, event: &protocol::Event<'static>) {
    // Each of its fields is valid at all times.
    let mut before = locked(&MIRRORED);
    let mut now = Mirrored::NONE;
    for (key, value) in &event.tags {
        let _ = scope.set_tag(key, value);
        now.tags.insert(key.clone());
    }
    if let Some(transaction) = &event.transaction {
        let _ = scope.set_tag("transaction", transaction);
        now.tags.insert("transaction".to_owned());
    }
    for (key, value) in &event.extra {
        let _ = scope.set_extra(key, value);
        now.extra.insert(key.clone());
    }
    // The client fills those of the system as Coroner does.
    for (name, context) in event.contexts.iter().filter(|(name, _)| !OWN_CONTEXTS.contains(&name.as_str())) {
        if let Ok(value) = serde_json::to_value(context) {
            let _ = scope.set_context(name, &value);
            now.contexts.insert(name.clone());
        }
    }
    if let Some(Ok(serde_json::Value::Object(fields))) = event.user.as_ref().map(serde_json::to_value)
        && !fields.is_empty()
    {
        let _ = scope.set_user(Some(
            &fields.into_iter().fold(scope::User::default(), |user, (key, value)| user.field(key, value)),
        ));
        now.user = true;
    }
    // `{{ default }}` is what an event has whose scope sets none.
    if !event.fingerprint.is_empty() && *event.fingerprint != ["{{ default }}"] {
        let parts: Vec<&str> = event.fingerprint.iter().map(AsRef::as_ref).collect();
        let _ = scope.set_fingerprint(&parts);
        now.fingerprint = true;
    }
    for key in before.tags.difference(&now.tags) {
        scope.remove_tag(key);
    }
    for key in before.extra.difference(&now.extra) {
        scope.remove_extra(key);
    }
    for name in before.contexts.difference(&now.contexts) {
        scope.remove_context(name);
    }
    if before.user && !now.user {
        let _ = scope.set_user(None);
    }
    if before.fingerprint && !now.fingerprint {
        let _ = scope.set_fingerprint(&[]);
    }
    *before = now;
}

fn level(level: protocol::Level) -> crate::Level {
    match level {
        protocol::Level::Debug => crate::Level::Debug,
        protocol::Level::Info => crate::Level::Info,
        protocol::Level::Warning => crate::Level::Warning,
        protocol::Level::Error => crate::Level::Error,
        protocol::Level::Fatal => crate::Level::Fatal,
    }
}

fn mirror_breadcrumb(breadcrumb: &Breadcrumb) {
    let data = serde_json::Value::Object(breadcrumb.data.clone().into_iter().collect());
    let mut own = scope::Breadcrumb::new(breadcrumb.message.as_deref().unwrap_or_default());
    own = own.level(level(breadcrumb.level));
    if !breadcrumb.data.is_empty() {
        own = own.data(&data);
    }
    own = own.category(breadcrumb.category.as_deref().unwrap_or_default());
    if breadcrumb.ty != "default" {
        own = own.kind(&breadcrumb.ty);
    }
    scope::add_breadcrumb(&own);
}
