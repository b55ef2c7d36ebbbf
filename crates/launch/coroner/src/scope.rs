//! The app's records about itself while it runs: tags, user, contexts, breadcrumbs.
//!
//! Everything is stored in the run state, a mapped file that survives any end of the process
//! (SIGKILL too), so that nothing has to be collected when the process dies. Setting a tag or
//! leaving a breadcrumb doesn't allocate and never waits, from any number of threads. If the
//! process dies during an update, the previous value remains.
//!
//! There is room for 64 tags of 416 bytes each (key and value), 32 contexts, extras, user and
//! fingerprint of 4 KiB each, and the last 100 breadcrumbs of 512 bytes.

mod known;

use std::fmt;
use std::path::Path;
#[cfg(supported)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use coroner_report::model::{Id, Value};
use coroner_report::run_state::{self, ExitKind, Foreground, Kind, Refused, RunState, Scalar};

use crate::clock::now_ns;
use crate::fork_locks;
#[cfg(supported)]
use crate::last_run::SIGNALS_TAKEN;
use crate::level::Level;
use crate::own_run;
#[cfg(supported)]
use crate::signal_owners;
#[cfg(not(target_vendor = "apple"))]
use crate::system::capture::is_unsettled_child;
use crate::vitals;

/// The installed run's scope.
///
/// It is never freed, because another thread may be using it while Coroner is uninstalled.
static ACTIVE: AtomicPtr<Active> = AtomicPtr::new(std::ptr::null_mut());

struct Active {
    state: RunState<'static>,
    /// Gives a child created by fork its own run; returns whether the child has one now.
    #[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "a child has no crash reporter there"))]
    settle_child: fn() -> bool,
}

/// The reason why the scope rejected a change. The previous value remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScopeError {
    /// Coroner is not installed.
    NotInstalled,
    /// The key is longer than 200 bytes.
    KeyTooLong,
    /// The value is larger than the room for it, and is not text that can be cut.
    TooLarge,
    /// All slots for values of this kind are taken by other keys.
    Full,
    /// The tag's key is empty, or contains spaces or control characters.
    ///
    /// A server would drop the tag.
    InvalidKey,
    /// The tag's key is an event field that has a setter of its own: a server would drop the tag.
    Reserved(&'static str),
    /// A context with a well-known name is not a map, or its named field has the wrong type.
    ///
    /// Types are text, number and boolean. A server would drop such a context.
    WrongType(&'static str),
    /// A trace id is not 32 hexadecimal digits, a span id is not 16 of them, or one of them is 0.
    InvalidTrace,
    /// A file name is empty, or has an invalid character.
    ///
    /// It must begin with a letter or digit, and contain only letters, digits, `.`, `-` and `_`.
    InvalidName,
    /// The file could not be written to the run's directory.
    NotWritten,
}

impl std::error::Error for ScopeError {}

impl fmt::Display for ScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ScopeError::NotInstalled => "Coroner is not installed",
            ScopeError::KeyTooLong => "the key is longer than 200 bytes",
            ScopeError::TooLarge => "the value is too large (4 KiB is the limit, of a file to keep 20 MiB)",
            ScopeError::Full => "there is no room for another key (64 tags, 32 others)",
            ScopeError::InvalidKey => {
                "the key of a tag must not be empty, and must have no spaces or control characters"
            }
            ScopeError::Reserved(what) => {
                return write!(f, "`{what}` is no tag but a field of an event, which is set another way");
            }
            ScopeError::WrongType(what) => {
                return write!(f, "the context must be a map, and of its fields `{what}` is of another type");
            }
            ScopeError::InvalidTrace => {
                "a trace id must have 32 hexadecimal digits and a span id 16, and neither may be 0"
            }
            ScopeError::InvalidName => {
                "the name of a file to keep must have letters, digits, `.`, `-` and `_` only, and begin with a letter or a digit"
            }
            ScopeError::NotWritten => "the file could not be written to the run's directory",
        };
        f.write_str(text)
    }
}

/// Converts the run state's answer to an update.
///
/// If a thread set the same key at the same time and won, this counts as success, as if that thread
/// had come just after.
fn answer<T>(result: Result<T, Refused>) -> Result<(), ScopeError> {
    match result.err() {
        None | Some(Refused::Overtaken | Refused::AlreadySet) => Ok(()),
        Some(Refused::KeyTooLong) => Err(ScopeError::KeyTooLong),
        Some(Refused::Full) => Err(ScopeError::Full),
        Some(_) => Err(ScopeError::TooLarge),
    }
}

/// A user of the app.
///
/// ```
/// let user = coroner::User::new("4711").name("Ada").email("ada@example.com").field("plan", "free");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct User {
    fields: serde_json::Map<String, serde_json::Value>,
}

impl User {
    /// Creates a user with the app's id for them.
    pub fn new(id: impl Into<String>) -> Self {
        Self { fields: serde_json::Map::new() }.field("id", id.into())
    }

    /// Sets the user name.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.field("username", name.into())
    }

    /// Sets the email address.
    pub fn email(self, email: impl Into<String>) -> Self {
        self.field("email", email.into())
    }

    /// Sets the IP address.
    pub fn ip_address(self, address: impl Into<String>) -> Self {
        self.field("ip_address", address.into())
    }

    /// Sets another field, with a name that the app chooses.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.fields.insert(name.into(), value.into());
        self
    }
}

/// A recorded event that shows what led up to a crash.
///
/// ```
/// use coroner::{Breadcrumb, Level};
///
/// let breadcrumb = Breadcrumb::new("opened the document").category("ui").level(Level::Info);
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Breadcrumb<'a> {
    message: &'a str,
    category: &'a str,
    kind: &'a str,
    level: Level,
    data: Option<&'a serde_json::Value>,
}

impl<'a> Breadcrumb<'a> {
    /// Creates a breadcrumb of level [`Level::Info`]. A message longer than about 480 bytes is cut.
    pub fn new(message: &'a str) -> Self {
        Self { message, category: "", kind: "", level: Level::Info, data: None }
    }

    /// Sets the category, such as `ui.click`.
    pub fn category(self, category: &'a str) -> Self {
        Self { category, ..self }
    }

    /// Sets the kind, such as `navigation` or `http`, by which viewers choose a presentation.
    pub fn kind(self, kind: &'a str) -> Self {
        Self { kind, ..self }
    }

    /// Sets the severity.
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Sets further data, such as the status of an HTTP request: a map.
    ///
    /// The data is left out if message and data together are longer than about 480 bytes. Leaving a
    /// breadcrumb with data allocates.
    pub fn data(self, data: &'a serde_json::Value) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Returns the message.
    pub fn get_message(&self) -> &'a str {
        self.message
    }

    /// Returns the category, which may be empty.
    pub fn get_category(&self) -> &'a str {
        self.category
    }
}

/// Callback that gets each breadcrumb before it is kept, and changes it or drops it by returning
/// `None`.
pub(crate) type BeforeBreadcrumb = dyn for<'a> Fn(Breadcrumb<'a>) -> Option<Breadcrumb<'a>> + Send + Sync;

static BEFORE_BREADCRUMB: AtomicPtr<Arc<BeforeBreadcrumb>> = AtomicPtr::new(std::ptr::null_mut());

/// Feature flags and their results, in the order of their last evaluation.
pub(crate) static FLAGS: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());

/// Held by the thread that changes several things at once.
pub(crate) static CHANGE: Mutex<()> = Mutex::new(());

/// The pthread_self(3) of the thread that is in [`Scope::configure`]; 0 if there is none.
///
/// (A thread-local variable may allocate at a thread's first access, and an app's signal handler
/// may set a tag.)
static CHANGING: AtomicUsize = AtomicUsize::new(0);

/// Returns the address of a thread-local variable, which identifies the thread.
#[cfg(not(unix))]
fn this_thread() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own) as usize)
}

#[cfg(unix)]
fn this_thread() -> usize {
    // SAFETY: pthread_self has no requirements.
    unsafe { libc::pthread_self() as usize }
}

/// Whether this thread is in [`Scope::configure`].
fn is_changing() -> bool {
    let thread = CHANGING.load(Ordering::Relaxed);
    thread != 0 && thread == this_thread()
}

/// Maximum number of flags that are kept.
const MAX_FLAGS: usize = 100;

/// Sets the hook for breadcrumbs.
///
/// The previous hook is never freed, because another thread may be using it.
pub(crate) fn set_before_breadcrumb(hook: Option<Arc<BeforeBreadcrumb>>) {
    let hook = hook.map_or(std::ptr::null_mut(), |hook| Box::into_raw(Box::new(hook)));
    BEFORE_BREADCRUMB.store(hook, Ordering::Release);
}

/// The scope of one run: what the app records about itself.
///
/// Most apps use this crate's functions with the same names, which find the installed run's scope
/// and call its methods.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    state: RunState<'static>,
}

impl Scope {
    pub(crate) fn new(state: RunState<'static>) -> Self {
        Self { state }
    }

    /// Makes this scope the one that this crate's functions use.
    ///
    /// In a child created by fork they call `settle_child` first.
    pub(crate) fn activate(self, settle_child: fn() -> bool) {
        // Never freed, see `ACTIVE`: some 100 bytes for each install.
        ACTIVE.store(Box::into_raw(Box::new(Active { state: self.state, settle_child })), Ordering::Release);
    }

    /// Makes this crate's functions find no scope.
    pub(crate) fn deactivate() {
        ACTIVE.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// Changes several things at once: a crash report contains all of them or none.
    ///
    /// They take effect when `change` returns. Changes by this crate's functions on this thread in
    /// the meantime are part of it too; breadcrumbs, the level and counts take effect at once. If
    /// `change` panics, what it has set takes effect.
    ///
    /// It waits for another thread that is doing the same. Inside another change, it is part of
    /// that one.
    pub fn configure<R>(&self, change: impl FnOnce(&Scope) -> R) -> R {
        /// Commits the change on return and on panic.
        struct Commit(RunState<'static>);
        impl Drop for Commit {
            fn drop(&mut self) {
                CHANGING.store(0, Ordering::Relaxed);
                self.0.commit();
            }
        }
        if is_changing() {
            return change(&Self { state: self.state.together() });
        }
        let _one_at_a_time = fork_locks::lock(&CHANGE);
        CHANGING.store(this_thread(), Ordering::Relaxed);
        let _commit = Commit(self.state);
        change(&Self { state: self.state.together() })
    }

    fn active() -> Result<Self, ScopeError> {
        // SAFETY: null, or from `Box::into_raw` in `activate`, and never freed or changed.
        let active = unsafe { ACTIVE.load(Ordering::Acquire).as_ref() }.ok_or(ScopeError::NotInstalled)?;
        // A child created by fork that records something about itself continues as an app does.
        #[cfg(not(target_vendor = "apple"))]
        if is_unsettled_child() && !(active.settle_child)() && !cfg!(supported) {
            // The child has no run, and its parent's is not its own.
            return Err(ScopeError::NotInstalled);
        }
        let state = active.state;
        Ok(Self { state: if is_changing() { state.together() } else { state } })
    }

    /// Begins the run's session, by which servers count crashing runs.
    ///
    /// The session's id is the run's.
    pub(crate) fn begin_session(&self, run: Id) {
        let id = u128::from_be_bytes(run.0);
        self.state.set_scalar(Scalar::SESSION_ID_HIGH, (id >> 64) as u64);
        self.state.set_scalar(Scalar::SESSION_ID_LOW, id as u64);
        // Stored last: a session without a start time is not a session.
        self.state.set_scalar(Scalar::SESSION_STARTED, now_ns());
    }

    /// Counts an error that the app recovered from, for release health.
    ///
    /// A run that does not crash then counts as errored.
    pub fn count_error(&self) {
        self.state.add_scalar(Scalar::SESSION_ERRORS, 1);
    }

    /// Records how the run ends, and when.
    pub(crate) fn note_exit(&self, exit: ExitKind) {
        self.state.set_scalar(Scalar::EXIT_TIME, now_ns());
        self.state.set_scalar(Scalar::EXIT, exit.0.into());
    }

    /// Records whether the store's record of the last run is of a clean end.
    pub(crate) fn set_clean_exit_noted(&self, is_noted: bool) {
        self.state.set_scalar(Scalar::CLEAN_EXIT_NOTED, is_noted.into());
    }

    /// Sets a tag: a short text by which reports can be searched.
    ///
    /// A value that is too long is cut.
    ///
    /// # Errors
    /// [`ScopeError::Full`] if 64 other tags are set, [`ScopeError::KeyTooLong`],
    /// [`ScopeError::InvalidKey`], [`ScopeError::Reserved`].
    pub fn set_tag(&self, key: &str, value: &str) -> Result<(), ScopeError> {
        known::check_tag(key)?;
        answer(self.state.set_text(Kind::TAG, key, value))
    }

    /// Removes a tag, if there is one.
    pub fn remove_tag(&self, key: &str) {
        self.remove(Kind::TAG, key);
    }

    /// Sets the app's user; `None` means nobody.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`].
    pub fn set_user(&self, user: Option<&User>) -> Result<(), ScopeError> {
        match user {
            Some(user) => answer(self.state.set_cbor(Kind::USER, "", &convert_map(&user.fields).to_cbor())),
            None => answer(self.state.remove(Kind::USER, "")),
        }
    }

    /// Sets a context: values that belong together, such as `document` with its size and kind.
    ///
    /// Values may be nested. A context that Coroner fills itself (`app`, `device`, `os`, `runtime`,
    /// `culture`) gets the fields that Coroner doesn't set.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`],
    /// [`ScopeError::WrongType`].
    pub fn set_context(&self, name: &str, value: &serde_json::Value) -> Result<(), ScopeError> {
        known::check_context(name, value)?;
        answer(self.state.set_cbor(Kind::CONTEXT, name, &to_cbor(value)))
    }

    /// Removes a context, if there is one.
    pub fn remove_context(&self, name: &str) {
        self.remove(Kind::CONTEXT, name);
    }

    /// Sets an extra value, which is shown but not searched.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`].
    pub fn set_extra(&self, key: &str, value: &serde_json::Value) -> Result<(), ScopeError> {
        answer(self.state.set_cbor(Kind::EXTRA, key, &to_cbor(value)))
    }

    /// Removes an extra value, if there is one.
    pub fn remove_extra(&self, key: &str) {
        self.remove(Kind::EXTRA, key);
    }

    /// Sets the fingerprint by which a server groups reports instead of by its own rules.
    ///
    /// An empty one removes it.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`].
    pub fn set_fingerprint(&self, parts: &[&str]) -> Result<(), ScopeError> {
        if parts.is_empty() {
            return answer(self.state.remove(Kind::FINGERPRINT, ""));
        }
        let parts = Value::Array(parts.iter().map(|part| Value::from(*part)).collect());
        answer(self.state.set_cbor(Kind::FINGERPRINT, "", &parts.to_cbor()))
    }

    /// Sets the severity of the app's events, or `None` for their own level.
    ///
    /// The end of the process is always fatal.
    pub fn set_level(&self, level: impl Into<Option<Level>>) {
        self.state.set_scalar(Scalar::LEVEL, level.into().map_or(0, |level| run_state::Level::from(level).0.into()));
    }

    /// Records whether the app is in the foreground, for apps that ever are.
    ///
    /// Reports contain this, and whether a hang was visible to the user. It also refreshes storage,
    /// battery and the like in the background.
    pub fn set_foreground(&self, is_foreground: bool) {
        let foreground = if is_foreground { Foreground::FOREGROUND } else { Foreground::BACKGROUND };
        self.state.set_scalar(Scalar::FOREGROUND, foreground.0.into());
        self.state.set_scalar(Scalar::FOREGROUND_CHANGED, now_ns());
        own_run::wake();
    }

    /// Sets the trace that the app is working on, so that reports are linked to it.
    ///
    /// The ids are those of W3C Trace Context and OpenTelemetry, in hexadecimal digits.
    ///
    /// # Errors
    /// [`ScopeError::InvalidTrace`], [`ScopeError::Full`].
    pub fn set_trace(&self, trace_id: &str, span_id: &str) -> Result<(), ScopeError> {
        let is_id = |id: &str, digits| {
            id.len() == digits && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && id.bytes().any(|byte| byte != b'0')
        };
        if !is_id(trace_id, 32) || !is_id(span_id, 16) {
            return Err(ScopeError::InvalidTrace);
        }
        let (trace_id, span_id) = (trace_id.to_ascii_lowercase(), span_id.to_ascii_lowercase());
        let trace = serde_json::json!({ "type": "trace", "trace_id": trace_id, "span_id": span_id });
        answer(self.state.set_cbor(Kind::CONTEXT, "trace", &to_cbor(&trace)))
    }

    /// Removes the trace, if there is one.
    pub fn remove_trace(&self) {
        self.remove(Kind::CONTEXT, "trace");
    }

    fn remove(&self, kind: Kind, key: &str) {
        // This fails only if another thread is setting or removing the same key, whose change then
        // counts.
        let _ = self.state.remove(kind, key);
    }

    /// Records a feature flag's evaluation.
    ///
    /// The last 100 flags are kept, in the order of their last evaluation; fewer if their names
    /// need more than 4 KiB. It waits for another thread that is doing the same.
    ///
    /// # Errors
    /// [`ScopeError::Full`].
    pub fn set_flag(&self, flag: &str, result: bool) -> Result<(), ScopeError> {
        // The list is valid at each point where a panic could happen.
        let mut flags = fork_locks::lock(&FLAGS);
        flags.retain(|(other, _)| other != flag);
        flags.push((flag.to_owned(), result));
        let excess = flags.len().saturating_sub(MAX_FLAGS);
        flags.drain(..excess);
        loop {
            let values: Vec<_> =
                flags.iter().map(|(flag, result)| serde_json::json!({ "flag": flag, "result": result })).collect();
            let context = to_cbor(&serde_json::json!({ "values": values }));
            match answer(self.state.set_cbor(Kind::CONTEXT, "flags", &context)) {
                Err(ScopeError::TooLarge) if !flags.is_empty() => drop(flags.remove(0)),
                done => return done,
            }
        }
    }

    /// Changes this run's release, for an app that learns it only after install.
    ///
    /// # Errors
    /// [`ScopeError::Full`].
    pub fn set_release(&self, release: &str) -> Result<(), ScopeError> {
        answer(self.state.set_text(Kind::CHANGED_FACT, "release", release))
    }

    /// Changes this run's environment, such as `production`.
    ///
    /// # Errors
    /// [`ScopeError::Full`].
    pub fn set_environment(&self, environment: &str) -> Result<(), ScopeError> {
        answer(self.state.set_text(Kind::CHANGED_FACT, "environment", environment))
    }

    /// Declares a file as an attachment of this run's reports. It replaces one with the same name.
    ///
    /// The file is read when a report is sent, with its contents at that time: after a crash, at
    /// the next launch.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`].
    pub fn add_attachment(&self, name: &str, path: &Path, content_type: Option<&str>) -> Result<(), ScopeError> {
        // The app's working directory may have changed by then.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut declared = serde_json::json!({ "path": path.to_string_lossy() });
        if let Some(content_type) = content_type {
            declared["content_type"] = content_type.into();
        }
        answer(self.state.set_cbor(Kind::ATTACHMENT, name, &to_cbor(&declared)))
    }

    /// Removes a file from the attachments of this run's reports, if it is one.
    pub fn remove_attachment(&self, name: &str) {
        self.remove(Kind::ATTACHMENT, name);
    }

    /// Leaves a breadcrumb. If there are 100 already, it replaces the oldest.
    pub fn add_breadcrumb(&self, breadcrumb: &Breadcrumb<'_>) {
        // SAFETY: null, or from `Box::into_raw` in `set_before_breadcrumb`, and never freed or
        // changed.
        let hook = unsafe { BEFORE_BREADCRUMB.load(Ordering::Acquire).as_ref() };
        let kept = hook.map_or(Some(*breadcrumb), |hook| hook(*breadcrumb));
        let Some(Breadcrumb { message, category, kind, level, data }) = kept else { return };
        let (time_ns, level) = (now_ns(), level.into());
        let data = data.map(to_cbor);
        let data = data.as_deref();
        self.state.breadcrumb(&run_state::Breadcrumb { time_ns, level, kind, category, message, data });
        #[cfg(supported)]
        {
            static IS_FIRST: AtomicBool = AtomicBool::new(true);
            if IS_FIRST.load(Ordering::Relaxed) && IS_FIRST.swap(false, Ordering::Relaxed) {
                own_run::note_storage();
            }
            self.note_signal_owners(time_ns);
        }
        vitals::note_at(&self.state, time_ns);
    }

    /// Records in the log and in a tag which handler has taken a crash signal from Coroner, if that
    /// is new.
    #[cfg(supported)]
    pub(crate) fn note_signal_owners(&self, now_ns: u64) {
        if let Some(taken) = signal_owners::look(now_ns) {
            log::warn!("coroner: {taken}");
            let _ = self.set_tag(SIGNALS_TAKEN, &taken);
        }
    }

    /// Removes all breadcrumbs.
    pub fn clear_breadcrumbs(&self) {
        self.state.clear_breadcrumbs();
    }
}

/// Converts a JSON value to one CBOR item.
fn to_cbor(value: &serde_json::Value) -> Vec<u8> {
    convert(value).to_cbor()
}

fn convert(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Value::Unsigned(value),
            // CBOR stores -1 - value (RFC 8949, 3.1), which is the complement.
            (None, Some(value)) => Value::Negative(!value as u64),
            (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::Array(items.iter().map(convert).collect()),
        serde_json::Value::Object(map) => convert_map(map),
    }
}

fn convert_map(map: &serde_json::Map<String, serde_json::Value>) -> Value {
    Value::Map(map.iter().map(|(key, value)| (Value::from(key.as_str()), convert(value))).collect())
}

macro_rules! of_the_installed_run {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        #[doc = concat!("Those of [`Scope::", stringify!($name), "`], and [`ScopeError::NotInstalled`].")]
        pub fn $name($($argument: $type),*) -> Result<(), ScopeError> {
            Scope::active()?.$name($($argument),*)
        }
    )*};
}

of_the_installed_run! {
    /// Sets a tag of the installed run: a short text by which reports can be searched.
    set_tag(key: &str, value: &str);
    /// Sets the trace that the installed run is working on: ids in hexadecimal digits.
    set_trace(trace_id: &str, span_id: &str);
    /// Records a feature flag's evaluation in the installed run.
    set_flag(flag: &str, result: bool);
    /// Changes the release of the installed run.
    set_release(release: &str);
    /// Changes the environment of the installed run.
    set_environment(environment: &str);
    /// Declares a file as an attachment of the installed run's reports, read when a report is sent.
    add_attachment(name: &str, path: &Path, content_type: Option<&str>);
    /// Sets the app's user; `None` means nobody.
    set_user(user: Option<&User>);
    /// Sets a context of the installed run: values that belong together. Values may be nested.
    set_context(name: &str, value: &serde_json::Value);
    /// Sets an extra value of the installed run, which is shown but not searched.
    set_extra(key: &str, value: &serde_json::Value);
    /// Sets the fingerprint by which a server groups the installed run's reports.
    ///
    /// An empty one removes it.
    set_fingerprint(parts: &[&str]);
}

macro_rules! removed_from_the_installed_run {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        #[doc = "Does nothing if there is none, or if Coroner is not installed."]
        pub fn $name($($argument: $type),*) {
            if let Ok(scope) = Scope::active() {
                scope.$name($($argument),*);
            }
        }
    )*};
}

removed_from_the_installed_run! {
    /// Removes a tag of the installed run.
    remove_tag(key: &str);
    /// Removes a context of the installed run.
    remove_context(name: &str);
    /// Removes an extra value of the installed run.
    remove_extra(key: &str);
    /// Removes a file from the attachments of the installed run's reports.
    remove_attachment(name: &str);
    /// Removes the trace of the installed run.
    remove_trace();
}

/// Returns the installed run's scope, for code that uses it often: this never waits.
///
/// # Errors
/// [`ScopeError::NotInstalled`].
pub fn scope() -> Result<Scope, ScopeError> {
    Scope::active()
}

/// Changes several things of the installed run at once, see [`Scope::configure`]:
///
/// ```no_run
/// coroner::configure_scope(|scope| {
///     scope.set_user(Some(&coroner::User::new("4711")))?;
///     scope.set_tag("plan", "free")
/// })??;
/// # Ok::<(), coroner::ScopeError>(())
/// ```
///
/// # Errors
/// [`ScopeError::NotInstalled`].
pub fn configure_scope<R>(change: impl FnOnce(&Scope) -> R) -> Result<R, ScopeError> {
    Ok(Scope::active()?.configure(change))
}

/// Sets the severity of the app's events, or `None` for their own level.
///
/// The end of the process is always fatal. Does nothing if Coroner is not installed.
pub fn set_level(level: impl Into<Option<Level>>) {
    if let Ok(scope) = Scope::active() {
        scope.set_level(level);
    }
}

/// Records whether the app is in the foreground ([`Scope::set_foreground`]).
///
/// Does nothing if Coroner is not installed.
pub fn set_foreground(is_foreground: bool) {
    if let Ok(scope) = Scope::active() {
        scope.set_foreground(is_foreground);
    }
}

/// Counts an error that the app recovered from, for release health.
///
/// Does nothing if Coroner is not installed.
pub fn count_error() {
    if let Ok(scope) = Scope::active() {
        scope.count_error();
    }
}

/// Leaves a breadcrumb in the installed run. Does nothing if Coroner is not installed.
pub fn add_breadcrumb(breadcrumb: &Breadcrumb<'_>) {
    if let Ok(scope) = Scope::active() {
        scope.add_breadcrumb(breadcrumb);
    }
}

#[cfg(test)]
mod tests;
