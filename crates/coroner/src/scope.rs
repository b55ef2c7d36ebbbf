//! What the app says of itself while it is well: tags, user, contexts, breadcrumbs.
//!
//! All of it goes to the run state, a mapped file that outlives every kind of death (SIGKILL too), so that nothing has to be
//! gathered when the process dies. Setting a tag or leaving a breadcrumb allocates nothing and never waits, from any number
//! of threads. Of an update that a death cuts short, the value before it is there.
//!
//! There is room for 64 tags of 416 bytes each (key and value), 32 contexts, extras, user and fingerprint of 4 KiB each, and
//! the last 100 breadcrumbs of 512 bytes.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use coroner_report::model::{Id, Value};
use coroner_report::run_state::{self, ExitKind, Kind, Level, Refused, RunState, Scalar};
use coroner_report::wire::Encoder;

/// The scope of the installed run. A state is never freed: another thread may be using it while Coroner is uninstalled.
static ACTIVE: AtomicPtr<RunState<'static>> = AtomicPtr::new(std::ptr::null_mut());

/// Why something was not taken into the scope. What was there before stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// Coroner is not installed.
    #[error("Coroner is not installed")]
    NotInstalled,
    /// The key is longer than 200 bytes.
    #[error("the key is longer than 200 bytes")]
    KeyTooLong,
    /// The value is larger than there is room for, and is not text that could be cut.
    #[error("the value is too large (4 KiB is the limit)")]
    TooLarge,
    /// All places for values of its kind are taken by other keys.
    #[error("there is no room for another key (64 tags, 32 others)")]
    Full,
}

/// What the run state said to an update. A thread that set the same key at the same time and won is as good as one that came
/// just after.
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
/// let user = coroner::User::new("4711").name("Ada").email("ada@example.com");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct User {
    fields: Vec<(&'static str, String)>,
}

impl User {
    /// A user by the id that the app has for them.
    pub fn new(id: impl Into<String>) -> Self {
        Self { fields: vec![("id", id.into())] }
    }

    /// The name by which they know themselves.
    pub fn name(self, name: impl Into<String>) -> Self {
        self.with("username", name.into())
    }

    /// The address by which they can be asked.
    pub fn email(self, email: impl Into<String>) -> Self {
        self.with("email", email.into())
    }

    fn with(mut self, field: &'static str, value: String) -> Self {
        self.fields.retain(|(other, _)| *other != field);
        self.fields.push((field, value));
        self
    }

    fn to_cbor(&self) -> Vec<u8> {
        // The head of a text, and of the map, has nine bytes at most (RFC 8949, section 3).
        let sizes = self.fields.iter().map(|(field, value)| field.len() + value.len() + 18);
        let mut cbor = vec![0; sizes.sum::<usize>() + 9];
        let mut encoder = Encoder::new(&mut cbor);
        encoder.map(self.fields.len());
        for (field, value) in &self.fields {
            encoder.text(field.as_bytes());
            encoder.text(value.as_bytes());
        }
        let length = encoder.position();
        cbor.truncate(length);
        cbor
    }
}

/// Something that happened, left for who reads a report: what led up to the crash.
///
/// ```
/// use coroner::{Breadcrumb, Level};
///
/// let breadcrumb = Breadcrumb::new("opened the document").category("ui").level(Level::INFO);
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Breadcrumb<'a> {
    message: &'a str,
    category: &'a str,
    kind: &'a str,
    level: Level,
}

impl<'a> Breadcrumb<'a> {
    /// What happened, of level [`Level::INFO`]. It is cut where it is longer than about 480 bytes.
    pub fn new(message: &'a str) -> Self {
        Self { message, category: "", kind: "", level: Level::INFO }
    }

    /// Where it belongs, such as `ui.click`.
    pub fn category(self, category: &'a str) -> Self {
        Self { category, ..self }
    }

    /// What kind of thing it is for who shows it, such as `navigation` or `http`.
    pub fn kind(self, kind: &'a str) -> Self {
        Self { kind, ..self }
    }

    /// How grave it is.
    pub fn level(self, level: Level) -> Self {
        Self { level, ..self }
    }
}

/// What the app says of itself in one run. Most apps use the functions of this crate with the same names, which do nothing
/// but find the scope of the installed run.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    state: RunState<'static>,
}

impl Scope {
    pub(crate) fn new(state: RunState<'static>) -> Self {
        Self { state }
    }

    /// Makes it the one that this crate's functions find.
    pub(crate) fn activate(self) {
        // Never freed, see `ACTIVE`: some 100 bytes for each install.
        ACTIVE.store(Box::into_raw(Box::new(self.state)), Ordering::Release);
    }

    /// From here on this crate's functions find none.
    pub(crate) fn deactivate() {
        ACTIVE.store(std::ptr::null_mut(), Ordering::Release);
    }

    fn active() -> Result<Self, ScopeError> {
        // A child made by fork that says something of itself goes on as an app does.
        #[cfg(not(target_vendor = "apple"))]
        if coroner_capture::is_unsettled_child() {
            let _ = crate::after_fork();
        }
        let state = ACTIVE.load(Ordering::Acquire);
        // SAFETY: null, or from `Box::into_raw` in `activate`, and never freed or changed.
        unsafe { state.as_ref() }.map(|state| Self { state: *state }).ok_or(ScopeError::NotInstalled)
    }

    /// Begins the run's session, by which servers count how many runs crash: its id is the run's.
    pub(crate) fn begin_session(&self, run: Id) {
        let id = u128::from_be_bytes(run.0);
        self.state.set_scalar(Scalar::SESSION_ID_HIGH, (id >> 64) as u64);
        self.state.set_scalar(Scalar::SESSION_ID_LOW, id as u64);
        // Last: a session without a beginning is none.
        self.state.set_scalar(Scalar::SESSION_STARTED, now_ns());
    }

    /// Counts an error that the app got over, for release health: the run is then one with errors, if it doesn't crash.
    pub fn count_error(&self) {
        self.state.add_scalar(Scalar::SESSION_ERRORS, 1);
    }

    /// Notes how the run ends, and when.
    pub(crate) fn note_exit(&self, exit: ExitKind) {
        self.state.set_scalar(Scalar::EXIT_TIME, now_ns());
        self.state.set_scalar(Scalar::EXIT, exit.0.into());
    }

    /// Sets a tag: a short text by which reports can be searched.
    ///
    /// # Errors
    /// [`ScopeError::Full`] when 64 other tags are set, [`ScopeError::KeyTooLong`]. A value that is too long is cut.
    pub fn set_tag(&self, key: &str, value: &str) -> Result<(), ScopeError> {
        answer(self.state.set_text(Kind::TAG, key, value))
    }

    /// Removes a tag.
    ///
    /// # Errors
    /// None at present.
    pub fn remove_tag(&self, key: &str) -> Result<(), ScopeError> {
        answer(self.state.remove(Kind::TAG, key))
    }

    /// Sets who is using the app; `None` for nobody.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`].
    pub fn set_user(&self, user: Option<&User>) -> Result<(), ScopeError> {
        match user {
            Some(user) => answer(self.state.set_cbor(Kind::USER, "", &user.to_cbor())),
            None => answer(self.state.remove(Kind::USER, "")),
        }
    }

    /// Sets a context: something that belongs together, such as `document` with its size and kind. Values may be nested.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`].
    pub fn set_context(&self, name: &str, value: &serde_json::Value) -> Result<(), ScopeError> {
        answer(self.state.set_cbor(Kind::CONTEXT, name, &to_cbor(value)))
    }

    /// Removes a context.
    ///
    /// # Errors
    /// None at present.
    pub fn remove_context(&self, name: &str) -> Result<(), ScopeError> {
        answer(self.state.remove(Kind::CONTEXT, name))
    }

    /// Sets a value that is only shown.
    ///
    /// # Errors
    /// [`ScopeError::TooLarge`], [`ScopeError::Full`], [`ScopeError::KeyTooLong`].
    pub fn set_extra(&self, key: &str, value: &serde_json::Value) -> Result<(), ScopeError> {
        answer(self.state.set_cbor(Kind::EXTRA, key, &to_cbor(value)))
    }

    /// Removes a value that is only shown.
    ///
    /// # Errors
    /// None at present.
    pub fn remove_extra(&self, key: &str) -> Result<(), ScopeError> {
        answer(self.state.remove(Kind::EXTRA, key))
    }

    /// Sets the fingerprint by which a server puts reports together, instead of its own rules. An empty one removes it.
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

    /// Sets how grave the app takes its events to be, where that is not the crash's own level.
    pub fn set_level(&self, level: Level) {
        self.state.set_scalar(Scalar::LEVEL, level.0.into());
    }

    /// Leaves a breadcrumb, in the place of the oldest if there are 100.
    pub fn add_breadcrumb(&self, breadcrumb: &Breadcrumb<'_>) {
        let Breadcrumb { message, category, kind, level } = *breadcrumb;
        let time_ns = now_ns();
        self.state.breadcrumb(&run_state::Breadcrumb { time_ns, level, kind, category, message, data: None });
        crate::signal_owners::look(time_ns);
    }

    /// Forgets all breadcrumbs.
    pub fn clear_breadcrumbs(&self) {
        self.state.clear_breadcrumbs();
    }
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A JSON value as one CBOR item.
fn to_cbor(value: &serde_json::Value) -> Vec<u8> {
    convert(value).to_cbor()
}

fn convert(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Value::Unsigned(value),
            // CBOR holds -1 - value (RFC 8949, 3.1), which is the complement.
            (None, Some(value)) => Value::Negative(!value as u64),
            (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => Value::Array(items.iter().map(convert).collect()),
        serde_json::Value::Object(map) => {
            Value::Map(map.iter().map(|(key, value)| (Value::from(key.as_str()), convert(value))).collect())
        }
    }
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
    /// Removes a tag of the installed run.
    remove_tag(key: &str);
    /// Sets who is using the app; `None` for nobody.
    set_user(user: Option<&User>);
    /// Sets a context of the installed run: something that belongs together. Values may be nested.
    set_context(name: &str, value: &serde_json::Value);
    /// Removes a context of the installed run.
    remove_context(name: &str);
    /// Sets a value of the installed run that is only shown.
    set_extra(key: &str, value: &serde_json::Value);
    /// Removes a value of the installed run that is only shown.
    remove_extra(key: &str);
    /// Sets the fingerprint by which a server puts reports of the installed run together. An empty one removes it.
    set_fingerprint(parts: &[&str]);
}

/// The scope of the installed run, for what is called often: finding it never waits.
///
/// # Errors
/// [`ScopeError::NotInstalled`].
pub fn scope() -> Result<Scope, ScopeError> {
    Scope::active()
}

/// Sets how grave the app takes its events to be. Does nothing if Coroner is not installed.
pub fn set_level(level: Level) {
    if let Ok(scope) = Scope::active() {
        scope.set_level(level);
    }
}

/// Counts an error that the app got over, for release health. Does nothing if Coroner is not installed.
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
mod tests {
    use super::*;
    use coroner_report::RunFacts;
    use coroner_report::run_state::{Limits, ProcessIdentity};
    use serde_json::json;
    use std::sync::atomic::AtomicU64;

    fn scope() -> Scope {
        let limits = Limits::default();
        let words: Vec<AtomicU64> = (0..limits.size() / 8).map(|_| AtomicU64::new(0)).collect();
        Scope::new(RunState::create(words.leak(), &limits, [1; 16], &ProcessIdentity::default()).unwrap())
    }

    #[test]
    fn what_was_set_is_in_the_run_state() {
        let scope = scope();
        scope.set_tag("kept", "yes").unwrap();
        scope.set_tag("removed", "yes").unwrap();
        scope.remove_tag("removed").unwrap();
        scope.set_user(Some(&User::new("7").name("Ada").email("old").email("ada@example.com"))).unwrap();
        let context = json!({"size": 3, "below": -2, "ratio": 0.5, "nested": {"list": [true, null, "text"]}});
        scope.set_context("document", &context).unwrap();
        scope.set_extra("note", &json!("shown")).unwrap();
        scope.set_fingerprint(&["a", "b"]).unwrap();
        scope.set_level(Level::WARNING);
        scope.add_breadcrumb(&Breadcrumb::new("opened").category("ui").kind("navigation").level(Level::ERROR));
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
        assert_eq!(facts.level, Some(Level::WARNING));
        let breadcrumb = &facts.breadcrumbs[0];
        assert_eq!((breadcrumb.message.as_deref(), breadcrumb.category.as_deref()), (Some("opened"), Some("ui")));
        assert_eq!((breadcrumb.kind.as_deref(), breadcrumb.level), (Some("navigation"), Level::ERROR));
        assert_eq!(facts.lifecycle.exit, ExitKind::CLEAN);
        let session = facts.session.unwrap();
        assert_eq!((session.id, session.errors), (Id([0xab; 16]), 1));
        assert!(facts.problems.is_empty(), "{:?}", facts.problems);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_says_why() {
        let scope = scope();
        assert_eq!(scope.set_tag(&"k".repeat(300), "v"), Err(ScopeError::KeyTooLong));
        assert_eq!(scope.set_extra("big", &json!("x".repeat(10_000))), Err(ScopeError::TooLarge));
        let taken = (0..100).flat_map(|number| scope.set_tag(&format!("tag{number}"), "v")).count();
        assert_eq!(taken, 64);
        assert_eq!(scope.set_tag("one more", "v"), Err(ScopeError::Full));
    }
}
