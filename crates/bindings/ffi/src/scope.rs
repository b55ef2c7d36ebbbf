//! The scope, set while the app runs: tags, user, contexts, breadcrumbs.
//!
//! It is stored in a mapped file that survives the process however it ends.

use std::ffi::{c_char, c_void};

use coroner::{Breadcrumb, ScopeError};

use crate::status::{Status, fail, guarded};
use crate::text::{optional, text};

/// The severity of a breadcrumb or of the app's events.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Details that only help a developer who debugs the app.
    Debug = 1,
    /// Normal operation, such as a page that was opened.
    Info = 2,
    /// Something unexpected that did not stop the operation.
    Warning = 3,
    /// An operation failed, and the app continues.
    Error = 4,
    /// The app can't continue.
    Fatal = 5,
}

/// A [`Level`] from C, which may pass any number. The header declares it as the enum.
pub type LevelArgument = i32;

/// Returns the installed run's scope, or [`Status::NotInstalled`]. Never waits.
fn scope() -> Result<coroner::Scope, Status> {
    coroner::scope().map_err(|error| fail(Status::NotInstalled, error.to_string()))
}

fn to_status(result: Result<(), ScopeError>) -> Result<(), Status> {
    result.map_err(|error| {
        let status = match error {
            ScopeError::NotInstalled => Status::NotInstalled,
            ScopeError::Full => Status::Full,
            _ => Status::InvalidArgument,
        };
        fail(status, error.to_string())
    })
}

/// Sets a tag, a short string by which reports can be searched. Replaces a tag with the same key.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_tag(key: *const c_char, value: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, value) = unsafe { (text(key, "key")?, text(value, "value")?) };
        to_status(coroner::set_tag(key, value))
    })
}

/// Changes the scope atomically: calls `change(context)` and commits its changes when it returns.
///
/// This covers what `change` sets and removes on this thread: tags, user, contexts, extra data,
/// fingerprint, attachments, flags, release, environment. The report of a crash during `change`
/// contains none of the changes. The call waits for other threads in this function. `change` must
/// return: it must not leave by an exception or `longjmp`.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_configure_scope(
    change: Option<unsafe extern "C" fn(context: *mut c_void)>,
    context: *mut c_void,
) -> Status {
    guarded(|| {
        let change = change.ok_or_else(|| fail(Status::InvalidArgument, "`change` is NULL"))?;
        // SAFETY: as the caller promises.
        to_status(coroner::configure_scope(|_| unsafe { change(context) }))
    })
}

/// Removes a tag. Does nothing if there is none.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_tag(key: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let key = unsafe { text(key, "key") }?;
        scope()?.remove_tag(key);
        Ok(())
    })
}

/// Sets the id of the app's current user; NULL for no user.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_user_id(id: *const c_char) -> Status {
    guarded(|| {
        if id.is_null() {
            return to_status(coroner::set_user(None));
        }
        // SAFETY: as the caller promises.
        let id = unsafe { text(id, "id") }?;
        to_status(coroner::set_user(Some(&coroner::User::new(id))))
    })
}

/// Sets the app's current user: the app's id for them, their name and email address.
///
/// `name` and `email` may be NULL.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_user(id: *const c_char, name: *const c_char, email: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let mut user = coroner::User::new(unsafe { text(id, "id") }?);
        if !name.is_null() {
            // SAFETY: not null, and a string as the caller promises.
            user = user.name(unsafe { text(name, "name") }?);
        }
        if !email.is_null() {
            // SAFETY: not null, and a string as the caller promises.
            user = user.email(unsafe { text(email, "email") }?);
        }
        to_status(coroner::set_user(Some(&user)))
    })
}

/// Sets a context: related data as a JSON object such as {"pages": 3, "template": {"kind":
/// "letter"}}.
///
/// Replaces a context with the same name.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_context(name: *const c_char, json: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (name, json) = unsafe { (text(name, "name")?, text(json, "json")?) };
        to_status(coroner::set_context(name, &parse_json(json)?))
    })
}

/// Removes a context. Does nothing if there is none.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_context(name: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name") }?;
        scope()?.remove_context(name);
        Ok(())
    })
}

/// Sets an extra value, as JSON, that is displayed but not searchable.
///
/// Replaces a value with the same key.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_extra(key: *const c_char, json: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, json) = unsafe { (text(key, "key")?, text(json, "json")?) };
        to_status(coroner::set_extra(key, &parse_json(json)?))
    })
}

/// Removes an extra value. Does nothing if there is none.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_extra(key: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let key = unsafe { text(key, "key") }?;
        scope()?.remove_extra(key);
        Ok(())
    })
}

/// Sets the strings by which a server groups reports, instead of its rules; 0 removes them.
///
/// # Safety
/// `parts` must point to `count` strings; it may be NULL if `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_fingerprint(parts: *const *const c_char, count: usize) -> Status {
    guarded(|| {
        if parts.is_null() && count > 0 {
            return Err(fail(Status::InvalidArgument, "`parts` is NULL"));
        }
        // SAFETY: `count` pointers to strings, as the caller promises.
        let texts = (0..count).map(|index| unsafe { text(*parts.add(index), "parts") });
        let texts: Vec<&str> = texts.collect::<Result<_, _>>()?;
        to_status(coroner::set_fingerprint(&texts))
    })
}

/// Sets the severity of the app's events, instead of the one that fits the crash.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_set_level(level: LevelArgument) -> Status {
    guarded(|| {
        let level = parse_level(level)?;
        scope()?;
        coroner::set_level(level);
        Ok(())
    })
}

/// Sets the app's current trace, to link reports to it. NULL for both ids removes it.
///
/// The ids have 32 and 16 hexadecimal digits, as in W3C's traceparent.
///
/// # Safety
/// `trace_id` and `span_id` must both be strings or both be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_trace(trace_id: *const c_char, span_id: *const c_char) -> Status {
    guarded(|| {
        if trace_id.is_null() && span_id.is_null() {
            scope()?.remove_trace();
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let (trace, span) = unsafe { (text(trace_id, "trace_id")?, text(span_id, "span_id")?) };
        to_status(coroner::set_trace(trace, span))
    })
}

/// Records the result of evaluating a feature flag.
///
/// The 100 most recently evaluated are kept, in that order.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_flag(flag: *const c_char, result: bool) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let flag = unsafe { text(flag, "flag") }?;
        to_status(coroner::set_flag(flag, result))
    })
}

/// Sets whether the app is in the foreground, for apps that can be.
///
/// Reports include it: it shows whether the user saw a hang.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_set_foreground(is_foreground: bool) -> Status {
    guarded(|| {
        scope()?;
        coroner::set_foreground(is_foreground);
        Ok(())
    })
}

/// Changes this run's release, for apps that learn it only after install.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_release(release: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let release = unsafe { text(release, "release") }?;
        to_status(coroner::set_release(release))
    })
}

/// Changes this run's environment, such as "production".
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_environment(environment: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let environment = unsafe { text(environment, "environment") }?;
        to_status(coroner::set_environment(environment))
    })
}

/// Adds a file to this run's reports under `name`.
///
/// The file is read when a report is sent: after a crash, at the next launch. `content_type` may be
/// NULL; a NULL `path` removes the attachment.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_add_attachment(
    name: *const c_char,
    path: *const c_char,
    content_type: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name") }?;
        if path.is_null() {
            scope()?.remove_attachment(name);
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let (path, content_type) = unsafe { (text(path, "path")?, optional(content_type, "content_type")?) };
        to_status(coroner::add_attachment(name, path.as_ref(), content_type))
    })
}

/// Copies `size` bytes into this run's directory, to attach them to its reports under `name`.
///
/// For a screenshot or a view tree of the app's last moment. Replaces an attachment with the same
/// name. At most 20 MiB; the name consists of letters, digits, `.`, `-` and `_`. `content_type` may
/// be NULL.
///
/// # Safety
/// `bytes` must point to `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_keep_attachment(
    name: *const c_char,
    bytes: *const u8,
    size: usize,
    content_type: *const c_char,
) -> Status {
    guarded(|| {
        if bytes.is_null() {
            return Err(fail(Status::InvalidArgument, "`bytes` is NULL"));
        }
        // SAFETY: as the caller promises.
        let (name, content_type) = unsafe { (text(name, "name")?, optional(content_type, "content_type")?) };
        // SAFETY: not null, and `size` bytes, as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size) };
        let coroner = crate::install::installed()?;
        to_status(coroner.keep_attachment(name, bytes, content_type))
    })
}

/// Delivers user feedback, usually about the last crash.
///
/// `event_id` is the crash's event id, 32 hexadecimal digits, or NULL. `name` and `email` may be
/// NULL. CORONER_STATUS_FULL if no sink accepted it.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_feedback(
    event_id: *const c_char,
    message: *const c_char,
    name: *const c_char,
    email: *const c_char,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (message, name, email) =
            unsafe { (text(message, "message")?, optional(name, "name")?, optional(email, "email")?) };
        // SAFETY: as the caller promises.
        let event_id = unsafe { optional(event_id, "event_id") }?;
        let event_id = event_id.map(|id| {
            let number = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32);
            let number = number.ok_or_else(|| fail(Status::InvalidArgument, "`event_id` is not 32 hexadecimal digits"));
            number.map(|number| coroner::Id(number.to_be_bytes()))
        });
        crate::install::installed()?;
        let mut feedback = coroner::Feedback::new(message).event_id(event_id.transpose()?);
        (feedback.name, feedback.email) = (name.map(ToOwned::to_owned), email.map(ToOwned::to_owned));
        if coroner::feedback(&feedback) {
            Ok(())
        } else {
            Err(fail(Status::Full, "can't deliver the feedback: no sink accepts feedback or has room for it"))
        }
    })
}

/// Counts a handled error for release health.
///
/// The session then counts as one with errors, unless the run crashes.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_count_error() -> Status {
    guarded(|| {
        scope()?;
        coroner::count_error();
        Ok(())
    })
}

fn parse_json(json: &str) -> Result<serde_json::Value, Status> {
    serde_json::from_str(json)
        .map_err(|error| fail(Status::InvalidArgument, format!("`json` is not valid JSON: {error}")))
}

fn parse_level(level: LevelArgument) -> Result<coroner::Level, Status> {
    Ok(match level {
        1 => coroner::Level::Debug,
        2 => coroner::Level::Info,
        3 => coroner::Level::Warning,
        4 => coroner::Level::Error,
        5 => coroner::Level::Fatal,
        other => {
            return Err(fail(Status::InvalidArgument, format!("invalid `level` {other}: expected a coroner_level")));
        }
    })
}

/// Adds a breadcrumb, an event such as "opened the document". `category` may be NULL.
///
/// A report contains the most recent breadcrumbs.
///
/// # Safety
/// The general rules apply.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_add_breadcrumb(
    category: *const c_char,
    message: *const c_char,
    level: LevelArgument,
) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let message = unsafe { text(message, "message") }?;
        let level = parse_level(level)?;
        let mut breadcrumb = Breadcrumb::new(message).level(level);
        if !category.is_null() {
            // SAFETY: not null, and a string as the caller promises.
            breadcrumb = breadcrumb.category(unsafe { text(category, "category") }?);
        }
        scope()?.add_breadcrumb(&breadcrumb);
        Ok(())
    })
}
