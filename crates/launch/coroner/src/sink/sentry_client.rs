//! Delivers with the `sentry` crate's client, and mirrors that client's scope to reports.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use coroner_report::model::RunFacts;
use coroner_sentry::attachments;
use coroner_sentry::envelope::{Envelope, Item, item_type};
use coroner_sentry::event::{Event, EventOptions, OWN_CONTEXTS};
use coroner_sentry::session::{Reports, SessionMode, SessionTeller, is_counted_by_client};
use sentry_core::protocol::{self, EnvelopeError};
use sentry_core::{Breadcrumb, Client, ClientOptions, Hub, Integration, Scope as SentryScope};

use super::{FinishedRun, Sink, SinkAnswer, Submission};
use crate::locked::locked;
use crate::scope::{self, Scope};

/// Maximum time for the client to send one event.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum total size of an event's attachments in bytes, the default of `SentrySink`.
const MAX_ATTACHMENTS: usize = 20 << 20;

/// Delivers with the client that the app created with `sentry::init`.
///
/// Events go to the project of the client's DSN, through the client's transport. Create the client
/// before [`install`](crate::install), and add a [`SentryIntegration`] to its options, which copies
/// the client's scope to reports:
///
/// ```ignore
/// let _guard = sentry::init(sentry::ClientOptions::new().dsn(DSN).add_integration(coroner::SentryIntegration::new()));
/// coroner::install(coroner::Config::new("com.example.paint").sink(coroner::SentryClientSink::new()))?;
/// ```
///
/// The client has no outbox, so an event that its transport loses in an outage is lost. If the
/// client tracks sessions (`auto_session_tracking`), which don't include crashes, this sink adds
/// the sessions of runs that crashed or ended without a trace: each run is one session. The run's
/// attachments are sent with its event, 20 MiB at most.
///
/// The client's `before_send` and sampling only handle the client's own events; for Coroner's
/// events use [`Delivery::before_deliver`](crate::Delivery::before_deliver). If these limits are a
/// problem, use [`SentrySink`](super::SentrySink) with the same DSN, which works with
/// [`SentryIntegration`], too.
#[derive(Debug, Clone, Default)]
pub struct SentryClientSink {
    options: EventOptions,
}

impl SentryClientSink {
    /// Creates a sink that delivers with the main hub's client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options for the events.
    ///
    /// If they set no release or environment, the crashed run's are used: an app that was updated
    /// since has another release now.
    #[must_use]
    pub fn event_options(mut self, options: EventOptions) -> Self {
        self.options = options;
        self
    }
}

impl SentryClientSink {
    /// Returns the options that match the client's own events.
    ///
    /// This run's release and environment are used only if the ended run recorded none.
    fn options_like(&self, client: &ClientOptions, run: Option<&RunFacts>) -> EventOptions {
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
        let EventOptions { release, environment, .. } = self.options_like(client.options(), Some(run.facts));
        let teller = SessionTeller { release, environment, ..SessionTeller::default() };
        let reports = Reports { all: run.reports, crashes: run.crashes };
        let update = teller.ended(run.facts, reports).filter(|update| SessionMode::CrashesOnly.takes(update));
        let Some(update) = update else { return };
        let update = update.with_init(!is_counted_by_client(run.facts));
        let _ = send(&client, &Envelope::new().with(Item::json(item_type::SESSION, &update)));
    }

    fn feedback(&self, feedback: &crate::Feedback) -> bool {
        let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else { return false };
        let feedback = coroner_sentry::Feedback::from(feedback);
        send(&client, &feedback.envelope(&self.options_like(client.options(), None), SystemTime::now())).is_ok()
    }

    fn deliver(&self, submission: &Submission<'_>) -> SinkAnswer {
        let retry = |reason: &str| SinkAnswer::Retry { after: Duration::ZERO, reason: reason.to_owned() };
        let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else {
            return retry("the sentry crate has no client with a DSN; call `sentry::init` before `coroner::install`");
        };
        let report = submission.report;
        let mut event = Event::from_report(report, &self.options_like(client.options(), report.run.as_ref()));
        let (mut attachments, left_out) = attachments::from_run(report, &mut event, MAX_ATTACHMENTS, false);
        attachments::limit(&mut attachments, MAX_ATTACHMENTS, left_out, &mut event);
        let mut envelope = Envelope::from_event(&event);
        envelope.items.extend(attachments.into_iter().map(Item::attachment));
        if let Err(error) = send(&client, &envelope) {
            return SinkAnswer::Rejected { reason: error.to_string() };
        }
        if client.flush(Some(TIMEOUT)) {
            SinkAnswer::Delivered
        } else {
            retry("the sentry crate's client did not send the event in time")
        }
    }
}

/// Passes an envelope to the client as bytes, because the client's types can't contain ELF and
/// Mach-O images.
fn send(client: &Client, envelope: &Envelope) -> Result<(), EnvelopeError> {
    let bytes = envelope.to_bytes_sent_at(SystemTime::now());
    client.send_envelope(sentry_core::Envelope::from_bytes_raw(bytes)?);
    Ok(())
}

/// Whether a sink of Coroner's sends reported panics to Sentry.
static HAS_PANICS: AtomicBool = AtomicBool::new(false);

/// The contents of the last mirrored event, to remove values that are no longer set.
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

/// Records at install whether a sink sends panics to Sentry.
///
/// If the client reports panics, too, each would be two events. [`SentryIntegration`] drops the
/// client's.
pub(crate) fn note_sentry_sink(has_panics: bool) {
    HAS_PANICS.store(has_panics, Ordering::Release);
    let Some(client) = Hub::main().client().filter(|client| has_panics && client.is_enabled()) else { return };
    let has = |name: &str| client.options().integrations.iter().any(|integration| integration.name() == name);
    if has("panic") && !has(NAME) {
        log::warn!("coroner: each panic will be two events; add `SentryIntegration` to the sentry crate's client");
    }
}

/// Whether the app's client reports sessions of runs that end cleanly.
pub(super) fn client_has_sessions() -> bool {
    Hub::main().client().is_some_and(|client| {
        let options = client.options();
        client.is_enabled() && options.auto_session_tracking && options.release.is_some()
    })
}

/// Returns the release and environment of the app's client, so that crashes are grouped with its
/// errors.
///
/// The client need not have Coroner's integration.
pub(crate) fn client_release_and_environment() -> (Option<String>, Option<String>) {
    let Some(client) = Hub::main().client().filter(|client| client.is_enabled()) else { return (None, None) };
    let text = |value: &Option<std::borrow::Cow<'static, str>>| value.as_deref().map(ToOwned::to_owned);
    (text(&client.options().release), text(&client.options().environment))
}

/// The integration's name.
const NAME: &str = "coroner";

/// Copies the `sentry` crate's scope to Coroner's, so that reports contain it.
///
/// Breadcrumbs are copied as they arrive, everything else whenever an event is captured or
/// [`mirror_scope`] is called. The integration also drops the client's event for a panic that
/// Coroner reports, so that one panic is one event.
#[derive(Debug, Clone, Copy, Default)]
pub struct SentryIntegration;

impl SentryIntegration {
    /// Creates the integration, to be added to the client's options.
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
            // Breadcrumbs that the app's own hook drops are not mirrored.
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
        // The client has added its scope to the event.
        mirror(&event);
        let mechanism =
            |exception: &protocol::Exception| exception.mechanism.as_ref().map(|mechanism| mechanism.ty == "panic");
        #[cfg_attr(not(supported), allow(unused_variables))]
        let is_panic = event.exception.iter().any(|exception| mechanism(exception) == Some(true));
        #[cfg(supported)]
        if is_panic && HAS_PANICS.load(Ordering::Acquire) && crate::panic::is_reported() {
            return None;
        }
        // The client itself counts a session's errors in this way. A client with logs calls its
        // integrations with an empty event.
        let has_content = !event.exception.is_empty() || event.message.is_some() || event.logentry.is_some();
        if has_content && matches!(event.level, protocol::Level::Error | protocol::Level::Fatal) {
            scope::count_error();
        }
        Some(event)
    }
}

/// Copies the scope of the `sentry` crate's current hub to Coroner's scope. Call it after a change.
///
/// It copies user, tags, contexts, extra, fingerprint, transaction and level, and removes values
/// that are no longer set.
///
/// ```ignore
/// sentry::configure_scope(|scope| scope.set_user(None));
/// coroner::mirror_scope();
/// ```
pub fn mirror_scope() {
    // A scope's level can only be read by applying the scope to an event.
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

/// Copies an event's scope to Coroner's, and removes values that only the last event had.
///
/// Values that don't fit into Coroner's scope are left out. The report of a crash in the meantime
/// contains the previous scope.
fn mirror(event: &protocol::Event<'static>) {
    // Take the scope's lock before the other one, because an app may capture an event inside its
    // own change of the scope. Without an installed run there is nothing to change.
    let _ = scope::configure_scope(|scope| mirror_into(scope, event));
}

fn mirror_into(scope: &Scope, event: &protocol::Event<'static>) {
    // Each field is always valid.
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
    // Coroner sets the system's contexts itself.
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
    // `{{ default }}` means that the scope sets no fingerprint.
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
