//! The scope: data that the app adds to its reports, such as tags, user, contexts and breadcrumbs.
//!
//! Everything is stored in the run state and copied to its file, which survives any end of the
//! process, even SIGKILL. Nothing has to be collected when the process dies. Setting a tag or
//! adding a breadcrumb doesn't allocate and never waits, from any number of threads. If the process
//! dies during an update, the previous value remains.
//!
//! There is room for 64 tags of 416 bytes each (key and value), 32 contexts, extras, user and
//! fingerprint of 4 KiB each, and 100 breadcrumbs of 512 bytes: the first 8 of the run, the last 16
//! of level warning and above, and the last 76 others. Equal ones in a row are counted as one.

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
/// Never freed, because another thread may be using it while Coroner is uninstalled.
static ACTIVE: AtomicPtr<Active> = AtomicPtr::new(std::ptr::null_mut());

struct Active {
    state: RunState<'static>,
    /// Gives a child created by fork its own run; returns whether the child has one now.
    #[cfg_attr(target_vendor = "apple", allow(dead_code, reason = "a child has no crash reporter on these systems"))]
    settle_child: fn() -> bool,
}

/// The reason that the scope rejected a change. The previous value remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScopeError {
    /// Coroner is not installed.
    NotInstalled,
    /// The key is longer than 200 bytes.
    KeyTooLong,
    /// The value is too large, and is not text that can be truncated.
    TooLarge,
    /// All slots for values of this kind are in use.
    Full,
    /// The tag's key is empty, or contains spaces or control characters.
    ///
    /// A server would drop the tag.
    InvalidKey,
    /// The tag's key is an event field that has its own setter. A server would drop the tag.
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
            ScopeError::TooLarge => "the value is too large; the limit is 4 KiB, and 20 MiB for an attached file",
            ScopeError::Full => "no space for another key; the limit is 64 tags and 32 other values",
            ScopeError::InvalidKey => "invalid tag key: it must not be empty or contain spaces or control characters",
            ScopeError::Reserved(what) => {
                return write!(f, "`{what}` can't be a tag because it is an event field; use its own setter");
            }
            ScopeError::WrongType(what) => {
                return write!(f, "the context is not a map, or its field `{what}` has the wrong type");
            }
            ScopeError::InvalidTrace => {
                "invalid trace: expected a trace id of 32 and a span id of 16 hexadecimal digits, not 0"
            }
            ScopeError::InvalidName => {
                "invalid file name: only letters, digits, `.`, `-` and `_` are allowed, the first a letter or digit"
            }
            ScopeError::NotWritten => "can't write the file to the run's directory",
        };
        f.write_str(text)
    }
}

/// Converts the run state's result of an update.
///
/// If another thread set the same key at the same time and won, this counts as success, as if that
/// thread had come later.
fn convert_result<T>(result: Result<T, Refused>) -> Result<(), ScopeError> {
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

/// An event that shows what led up to a crash.
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
    /// Creates a breadcrumb with level [`Level::Info`]. Messages are truncated to about 480 bytes.
    pub fn new(message: &'a str) -> Self {
        Self { message, category: "", kind: "", level: Level::Info, data: None }
    }

    /// Sets the category, such as `ui.click`.
    pub fn category(self, category: &'a str) -> Self {
        Self { category, ..self }
    }

    /// Sets the kind, such as `navigation` or `http`. Servers choose a presentation by it.
    pub fn kind(self, kind: &'a str) -> Self {
        Self { kind, ..self }
    }

    /// Sets the severity.
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// Sets a map of further data, such as the status of an HTTP request.
    ///
    /// The data is left out if message and data together are longer than about 480 bytes. Adding a
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

/// A callback that receives each breadcrumb and returns it, changed or not, or `None` to drop it.
pub(crate) type BeforeBreadcrumb = dyn for<'a> Fn(Breadcrumb<'a>) -> Option<Breadcrumb<'a>> + Send + Sync;

static BEFORE_BREADCRUMB: AtomicPtr<Arc<BeforeBreadcrumb>> = AtomicPtr::new(std::ptr::null_mut());

/// Feature flags and their results, in the order of their last evaluation.
pub(crate) static FLAGS: Mutex<Vec<(String, bool)>> = Mutex::new(Vec::new());

/// Held by the thread that is in [`Scope::configure`].
pub(crate) static CHANGE: Mutex<()> = Mutex::new(());

/// The pthread_self(3) of the thread that is in [`Scope::configure`]; 0 if there is none.
///
/// Not a thread-local variable, whose first access on a thread may allocate: a signal handler of
/// the app may set a tag.
static CHANGING: AtomicUsize = AtomicUsize::new(0);

/// Returns the address of a thread-local variable, which identifies the thread.
#[cfg(not(unix))]
fn this_thread() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own) as usize)
}

#[cfg(unix)]
fn this_thread() -> usize {
    nix::sys::pthread::pthread_self() as usize
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

/// One run's scope: data that the app adds to its reports.
///
/// Most apps use this crate's functions with the same names, which apply to the installed run's
/// scope.
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
    /// In a child created by fork, these functions call `settle_child` first.
    pub(crate) fn activate(self, settle_child: fn() -> bool) {
        // Never freed, see `ACTIVE`; about 100 bytes per install.
        ACTIVE.store(Box::into_raw(Box::new(Active { state: self.state, settle_child })), Ordering::Release);
    }

    /// Detaches this crate's functions from the scope.
    pub(crate) fn deactivate() {
        ACTIVE.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// Makes several changes atomically: a crash report contains all of them or none.
    ///
    /// The changes take effect when `change` returns. Changes by this crate's functions on this
    /// thread in the meantime are included; breadcrumbs, the level and counts take effect
    /// immediately. If `change` panics, the changes made so far take effect.
    ///
    /// The call waits for other threads in this function. A nested call is part of the outer one.
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
        // A child created by fork that uses the scope continues like an app and gets its own run.
        #[cfg(not(target_vendor = "apple"))]
        if is_unsettled_child() && !(active.settle_child)() && !cfg!(supported) {
            // The child has no run, and its parent's must not be changed.
            return Err(ScopeError::NotInstalled);
        }
        let state = active.state;
        #[cfg(supported)]
        if state.is_file_cut() {
            crate::system::capture::restore_state();
        }
        Ok(Self { state: if is_changing() { state.together() } else { state } })
    }

    /// Begins the run's session, which servers use to count crashed runs.
    ///
    /// The session's id is the run's.
    pub(crate) fn begin_session(&self, run: Id) {
        let id = u128::from_be_bytes(run.0);
        self.state.set_scalar(Scalar::SESSION_ID_HIGH, (id >> 64) as u64);
        self.state.set_scalar(Scalar::SESSION_ID_LOW, id as u64);
        // Stored last, because a session exists only with a start time.
        self.state.set_scalar(Scalar::SESSION_STARTED, now_ns());
    }

    /// Counts a handled error for release health.
    ///
    /// The session then counts as one with errors, unless the run crashes.
    pub fn count_error(&self) {
        self.state.add_scalar(Scalar::SESSION_ERRORS, 1);
    }

    /// Records how the run ends, and when.
    pub(crate) fn note_exit(&self, exit: ExitKind) {
        self.state.set_scalar(Scalar::EXIT_TIME, now_ns());
        self.state.set_scalar(Scalar::EXIT, exit.0.into());
    }

    /// Records whether the store has recorded a clean exit as the last run's outcome.
    pub(crate) fn set_clean_exit_noted(&self, is_noted: bool) {
        self.state.set_scalar(Scalar::CLEAN_EXIT_NOTED, is_noted.into());
    }

    /// Sets a tag, a short text by which reports can be searched. Long values are truncated.
    ///
    /// # Errors
    /// [`ScopeError::Full`] if 64 other tags are set, [`ScopeError::KeyTooLong`],
    /// [`ScopeError::InvalidKey`], [`ScopeError::Reserved`].
    pub fn set_tag(&self, key: &str, value: &str) -> Result<(), ScopeError> {
        known::check_tag(key)?;
        convert_result(self.state.set_text(Kind::TAG, key, value))
    }

    /// Removes a tag. Does nothing if there is none.
    pub fn remove_tag(&self, key: &str) {
        self.remove(Kind::TAG, key);
    }

    /// Sets the app's current user; `None` for no user.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`].
    pub fn set_user(&self, user: Option<&User>) -> Result<(), ScopeError> {
        match user {
            Some(user) => convert_result(self.state.set_cbor(Kind::USER, "", &convert_map(&user.fields).to_cbor())),
            None => convert_result(self.state.remove(Kind::USER, "")),
        }
    }

    /// Sets a context: related data, such as `document` with its size and kind.
    ///
    /// Values may be nested. To a context that Coroner sets itself (`app`, `device`, `os`,
    /// `runtime`, `culture`), only fields that Coroner doesn't set are added.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`],
    /// [`ScopeError::WrongType`].
    pub fn set_context(&self, name: &str, value: &serde_json::Value) -> Result<(), ScopeError> {
        known::check_context(name, value)?;
        convert_result(self.state.set_cbor(Kind::CONTEXT, name, &to_cbor(value)))
    }

    /// Removes a context. Does nothing if there is none.
    pub fn remove_context(&self, name: &str) {
        self.remove(Kind::CONTEXT, name);
    }

    /// Sets an extra value, which is displayed but not searchable.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`].
    pub fn set_extra(&self, key: &str, value: &serde_json::Value) -> Result<(), ScopeError> {
        convert_result(self.state.set_cbor(Kind::EXTRA, key, &to_cbor(value)))
    }

    /// Removes an extra value. Does nothing if there is none.
    pub fn remove_extra(&self, key: &str) {
        self.remove(Kind::EXTRA, key);
    }

    /// Sets the fingerprint by which a server groups reports, instead of its rules. Empty removes
    /// it.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`].
    pub fn set_fingerprint(&self, parts: &[&str]) -> Result<(), ScopeError> {
        if parts.is_empty() {
            return convert_result(self.state.remove(Kind::FINGERPRINT, ""));
        }
        let parts = Value::Array(parts.iter().map(|part| Value::from(*part)).collect());
        convert_result(self.state.set_cbor(Kind::FINGERPRINT, "", &parts.to_cbor()))
    }

    /// Sets the severity of the app's events; `None` for the one that fits each event.
    ///
    /// Fatal events always have the level `fatal`.
    pub fn set_level(&self, level: impl Into<Option<Level>>) {
        self.state.set_scalar(Scalar::LEVEL, level.into().map_or(0, |level| run_state::Level::from(level).0.into()));
    }

    /// Sets whether the app is in the foreground, for apps that can be.
    ///
    /// Reports include it: it shows whether the user saw a hang. The call also updates the device's
    /// state (storage, battery) in the background.
    pub fn set_foreground(&self, is_foreground: bool) {
        let foreground = if is_foreground { Foreground::FOREGROUND } else { Foreground::BACKGROUND };
        self.state.set_scalar(Scalar::FOREGROUND, foreground.0.into());
        self.state.set_scalar(Scalar::FOREGROUND_CHANGED, now_ns());
        own_run::wake();
    }

    /// Sets the app's current trace, to link reports to it.
    ///
    /// The ids have 32 and 16 hexadecimal digits, as in W3C Trace Context and OpenTelemetry.
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
        convert_result(self.state.set_cbor(Kind::CONTEXT, "trace", &to_cbor(&trace)))
    }

    /// Removes the trace. Does nothing if there is none.
    pub fn remove_trace(&self) {
        self.remove(Kind::CONTEXT, "trace");
    }

    fn remove(&self, kind: Kind, key: &str) {
        // This fails only if another thread is setting or removing the same key; its change then
        // applies.
        let _ = self.state.remove(kind, key);
    }

    /// Records the result of evaluating a feature flag.
    ///
    /// The 100 most recently evaluated flags are kept, fewer if their names need more than 4 KiB.
    /// The call waits for other threads in this function.
    ///
    /// # Errors
    /// [`ScopeError::Full`].
    pub fn set_flag(&self, flag: &str, result: bool) -> Result<(), ScopeError> {
        // The list is consistent at each point where a panic could happen.
        let mut flags = fork_locks::lock(&FLAGS);
        flags.retain(|(other, _)| other != flag);
        flags.push((flag.to_owned(), result));
        let excess = flags.len().saturating_sub(MAX_FLAGS);
        flags.drain(..excess);
        loop {
            let values: Vec<_> =
                flags.iter().map(|(flag, result)| serde_json::json!({ "flag": flag, "result": result })).collect();
            let context = to_cbor(&serde_json::json!({ "values": values }));
            match convert_result(self.state.set_cbor(Kind::CONTEXT, "flags", &context)) {
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
        convert_result(self.state.set_text(Kind::CHANGED_FACT, "release", release))
    }

    /// Changes this run's environment, such as `production`.
    ///
    /// # Errors
    /// [`ScopeError::Full`].
    pub fn set_environment(&self, environment: &str) -> Result<(), ScopeError> {
        convert_result(self.state.set_text(Kind::CHANGED_FACT, "environment", environment))
    }

    /// Adds a file to this run's reports under `name`. Replaces an attachment with the same name.
    ///
    /// The file is read when a report is sent: after a crash, at the next launch.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`].
    pub fn add_attachment(&self, name: &str, path: &Path, content_type: Option<&str>) -> Result<(), ScopeError> {
        // Absolute, because the app's working directory may change.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut declared = serde_json::json!({ "path": path.to_string_lossy() });
        if let Some(content_type) = content_type {
            declared["content_type"] = content_type.into();
        }
        convert_result(self.state.set_cbor(Kind::ATTACHMENT, name, &to_cbor(&declared)))
    }

    /// Removes an attachment. Does nothing if there is none.
    pub fn remove_attachment(&self, name: &str) {
        self.remove(Kind::ATTACHMENT, name);
    }

    /// Adds a breadcrumb. If there are already 100, it replaces the oldest.
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
            self.note_signal_owners(Some(time_ns));
        }
        vitals::note_at(&self.state, time_ns);
    }

    /// Logs which handler has taken a crash signal from Coroner, and records it in a tag, if that
    /// is new. With a time, checks at most once a second.
    #[cfg(supported)]
    pub(crate) fn note_signal_owners(&self, now_ns: Option<u64>) {
        if let Some(taken) = now_ns.map_or_else(signal_owners::look_now, signal_owners::look) {
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
        #[doc = concat!("[`ScopeError::NotInstalled`], and the errors of [`Scope::", stringify!($name), "`].")]
        pub fn $name($($argument: $type),*) -> Result<(), ScopeError> {
            Scope::active()?.$name($($argument),*)
        }
    )*};
}

of_the_installed_run! {
    /// Sets a tag of the installed run, a short text by which reports can be searched.
    set_tag(key: &str, value: &str);
    /// Sets the installed run's current trace by its ids of 32 and 16 hexadecimal digits.
    set_trace(trace_id: &str, span_id: &str);
    /// Records the result of evaluating a feature flag in the installed run.
    set_flag(flag: &str, result: bool);
    /// Changes the installed run's release.
    set_release(release: &str);
    /// Changes the installed run's environment.
    set_environment(environment: &str);
    /// Adds a file to the installed run's reports. It is read when a report is sent.
    add_attachment(name: &str, path: &Path, content_type: Option<&str>);
    /// Sets the app's current user; `None` for no user.
    set_user(user: Option<&User>);
    /// Sets a context of the installed run: related data, which may be nested.
    set_context(name: &str, value: &serde_json::Value);
    /// Sets an extra value of the installed run, which is displayed but not searchable.
    set_extra(key: &str, value: &serde_json::Value);
    /// Sets the fingerprint by which a server groups the installed run's reports. Empty removes it.
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
    /// Removes an attachment of the installed run's reports.
    remove_attachment(name: &str);
    /// Removes the installed run's current trace.
    remove_trace();
}

/// Returns the installed run's scope, for code that uses it often. Never waits.
///
/// # Errors
/// [`ScopeError::NotInstalled`].
pub fn scope() -> Result<Scope, ScopeError> {
    Scope::active()
}

/// Makes several changes of the installed run's scope atomically (see [`Scope::configure`]).
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

/// Sets the severity of the app's events; `None` for the one that fits each event.
///
/// Fatal events always have the level `fatal`. Does nothing if Coroner is not installed.
pub fn set_level(level: impl Into<Option<Level>>) {
    if let Ok(scope) = Scope::active() {
        scope.set_level(level);
    }
}

/// Sets whether the app is in the foreground ([`Scope::set_foreground`]).
///
/// Does nothing if Coroner is not installed.
pub fn set_foreground(is_foreground: bool) {
    if let Ok(scope) = Scope::active() {
        scope.set_foreground(is_foreground);
    }
}

/// Counts a handled error for release health.
///
/// Does nothing if Coroner is not installed.
pub fn count_error() {
    if let Ok(scope) = Scope::active() {
        scope.count_error();
    }
}

/// Adds a breadcrumb to the installed run. Does nothing if Coroner is not installed.
pub fn add_breadcrumb(breadcrumb: &Breadcrumb<'_>) {
    if let Ok(scope) = Scope::active() {
        scope.add_breadcrumb(breadcrumb);
    }
}

#[cfg(test)]
mod tests;
