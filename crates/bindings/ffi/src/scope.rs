//! What the app says of itself while it is well: tags, user, contexts, breadcrumbs. All of it is in a mapped file that outlives every
//! kind of death.

use std::ffi::{c_char, c_void};

use coroner::{Breadcrumb, ScopeError};

use crate::status::{Status, fail, guarded};
use crate::text::{optional, text};

/// How grave a breadcrumb is.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// For developers.
    Debug = 1,
    /// As it should be.
    Info = 2,
    /// Not quite.
    Warning = 3,
    /// Wrong.
    Error = 4,
    /// The end.
    Fatal = 5,
}

/// The scope of the installed run, or the status for there being none; it never waits.
fn scope() -> Result<coroner::Scope, Status> {
    coroner::scope().map_err(|error| fail(Status::NotInstalled, error.to_string()))
}

fn done(result: Result<(), ScopeError>) -> Result<(), Status> {
    result.map_err(|error| {
        let status = match error {
            ScopeError::NotInstalled => Status::NotInstalled,
            ScopeError::Full => Status::Full,
            _ => Status::InvalidArgument,
        };
        fail(status, error.to_string())
    })
}

/// Sets a tag: a short text by which reports can be searched. It replaces one with the same key.
///
/// # Safety
/// Both are texts that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_tag(key: *const c_char, value: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, value) = unsafe { (text(key, "key")?, text(value, "value")?) };
        done(coroner::set_tag(key, value))
    })
}

/// Changes several things at once: calls `change(context)`, and what that sets and removes on this thread (tags, user, contexts, extra data,
/// fingerprint, attachments, flags, release, environment) counts when it has returned. A crash in the middle has none of it in its report. It
/// waits for another thread that is just doing the same. `change` must return: it may not leave by an exception or `longjmp`.
///
/// # Safety
/// `change` can be called with `context`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_configure_scope(
    change: Option<unsafe extern "C" fn(context: *mut c_void)>,
    context: *mut c_void,
) -> Status {
    guarded(|| {
        let change = change.ok_or_else(|| fail(Status::InvalidArgument, "`change` is NULL"))?;
        // SAFETY: as the caller promises.
        done(coroner::configure_scope(|_| unsafe { change(context) }))
    })
}

/// Removes a tag. It is no error if there is none.
///
/// # Safety
/// `key` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_tag(key: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let key = unsafe { text(key, "key") }?;
        scope()?.remove_tag(key);
        Ok(())
    })
}

/// Sets the id of the user who is using the app, as the app knows them; NULL for nobody.
///
/// # Safety
/// `id` is NULL or a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_user_id(id: *const c_char) -> Status {
    guarded(|| {
        if id.is_null() {
            return done(coroner::set_user(None));
        }
        // SAFETY: as the caller promises.
        let id = unsafe { text(id, "id") }?;
        done(coroner::set_user(Some(&coroner::User::new(id))))
    })
}

/// Sets who is using the app: the id as the app knows them, the name by which they know themselves, and their address. `name`
/// and `email` may be NULL.
///
/// # Safety
/// `id` is a text that ends with a NUL, the others are such texts or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_user(id: *const c_char, name: *const c_char, email: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let mut user = coroner::User::new(unsafe { text(id, "id") }?);
        if !name.is_null() {
            // SAFETY: not null, and a text as the caller promises.
            user = user.name(unsafe { text(name, "name") }?);
        }
        if !email.is_null() {
            // SAFETY: not null, and a text as the caller promises.
            user = user.email(unsafe { text(email, "email") }?);
        }
        done(coroner::set_user(Some(&user)))
    })
}

/// Sets a context: something that belongs together, as a JSON object such as {"pages": 3, "of": {"kind": "letter"}}. It
/// replaces one with the same name.
///
/// # Safety
/// Both are texts that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_context(name: *const c_char, json: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (name, json) = unsafe { (text(name, "name")?, text(json, "json")?) };
        done(coroner::set_context(name, &parse(json)?))
    })
}

/// Removes a context. It is no error if there is none.
///
/// # Safety
/// `name` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_context(name: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name") }?;
        scope()?.remove_context(name);
        Ok(())
    })
}

/// Sets a value that is only shown, as JSON. It replaces one with the same key.
///
/// # Safety
/// Both are texts that end with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_extra(key: *const c_char, json: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let (key, json) = unsafe { (text(key, "key")?, text(json, "json")?) };
        done(coroner::set_extra(key, &parse(json)?))
    })
}

/// Removes a value that is only shown. It is no error if there is none.
///
/// # Safety
/// `key` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_extra(key: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let key = unsafe { text(key, "key") }?;
        scope()?.remove_extra(key);
        Ok(())
    })
}

/// Sets the texts by which a server puts reports together, instead of its own rules; a count of 0 takes them away.
///
/// # Safety
/// `parts` points to `count` texts that end with a NUL; with a count of 0 it may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_fingerprint(parts: *const *const c_char, count: usize) -> Status {
    guarded(|| {
        if parts.is_null() && count > 0 {
            return Err(fail(Status::InvalidArgument, "`parts` is NULL"));
        }
        // SAFETY: so many pointers to texts, as the caller promises.
        let texts = (0..count).map(|place| unsafe { text(*parts.add(place), "parts") });
        let texts: Vec<&str> = texts.collect::<Result<_, _>>()?;
        done(coroner::set_fingerprint(&texts))
    })
}

/// Sets how grave the app takes its events to be, where that is not the crash's own level. `level` is one of coroner_level.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_set_level(level: i32) -> Status {
    guarded(|| {
        let level = parse_level(level)?;
        scope()?;
        coroner::set_level(level);
        Ok(())
    })
}

/// Sets which trace the app is at work on, so that a report is linked to it: 32 and 16 hexadecimal digits, as in W3C's traceparent. NULL for
/// both: none any more.
///
/// # Safety
/// Both are texts that end with a NUL, or both NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_trace(trace_id: *const c_char, span_id: *const c_char) -> Status {
    guarded(|| {
        if trace_id.is_null() && span_id.is_null() {
            scope()?.remove_trace();
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let (trace, span) = unsafe { (text(trace_id, "trace_id")?, text(span_id, "span_id")?) };
        done(coroner::set_trace(trace, span))
    })
}

/// Notes what a feature flag was evaluated to. The last 100 are kept, in the order of their last evaluation.
///
/// # Safety
/// `flag` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_flag(flag: *const c_char, result: bool) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let flag = unsafe { text(flag, "flag") }?;
        done(coroner::set_flag(flag, result))
    })
}

/// Says whether the app is in front, where it is of a kind that ever is: a report says so, and whether a hang was one that the user saw.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_set_foreground(is_foreground: bool) -> Status {
    guarded(|| {
        scope()?;
        coroner::set_foreground(is_foreground);
        Ok(())
    })
}

/// Changes the release of this run, where the app learns it only after install.
///
/// # Safety
/// `release` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_release(release: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let release = unsafe { text(release, "release") }?;
        done(coroner::set_release(release))
    })
}

/// Changes the environment of this run, such as "production".
///
/// # Safety
/// `environment` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_set_environment(environment: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let environment = unsafe { text(environment, "environment") }?;
        done(coroner::set_environment(environment))
    })
}

/// Declares a file that goes with this run's reports, under `name`. It is read when a report is sent, as it is then: at the next launch, after
/// a crash. `content_type` may be NULL; a `path` of NULL: it does not go with them any more.
///
/// # Safety
/// `name` is a text that ends with a NUL, the others are such texts or NULL.
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
        done(coroner::add_attachment(name, path.as_ref(), content_type))
    })
}

/// Keeps `size` bytes in this run's directory, to go with its reports under `name`: a screenshot or a view tree of the app's last moment. It
/// replaces what has the same name. At most 20 MiB; the name has letters, digits, `.`, `-` and `_`. `content_type` may be NULL.
///
/// # Safety
/// `name` is a text that ends with a NUL, `content_type` one or NULL, and `bytes` points to so many bytes.
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
        // SAFETY: not null, and so many bytes, as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size) };
        let coroner = crate::install::installed()?;
        done(coroner.keep_attachment(name, bytes, content_type))
    })
}

/// Delivers what a user says, most often of the last crash: `event_id` are the 32 hexadecimal digits of its event, or NULL. `name` and `email`
/// may be NULL. CORONER_STATUS_FULL if no sink took it.
///
/// # Safety
/// `message` is a text that ends with a NUL, the others are such texts or NULL.
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
        let mut said = coroner::Feedback::new(message).event_id(event_id.transpose()?);
        (said.name, said.email) = (name.map(ToOwned::to_owned), email.map(ToOwned::to_owned));
        if coroner::feedback(&said) {
            Ok(())
        } else {
            Err(fail(Status::Full, "no sink takes feedback, or has room for it"))
        }
    })
}

/// Counts an error that the app got over, for release health: the run is then one with errors, if it doesn't crash.
#[unsafe(no_mangle)]
pub extern "C" fn coroner_count_error() -> Status {
    guarded(|| {
        scope()?;
        coroner::count_error();
        Ok(())
    })
}

fn parse(json: &str) -> Result<serde_json::Value, Status> {
    serde_json::from_str(json).map_err(|error| fail(Status::InvalidArgument, format!("`json` is no JSON: {error}")))
}

fn parse_level(level: i32) -> Result<coroner::Level, Status> {
    Ok(match level {
        1 => coroner::Level::Debug,
        2 => coroner::Level::Info,
        3 => coroner::Level::Warning,
        4 => coroner::Level::Error,
        5 => coroner::Level::Fatal,
        other => return Err(fail(Status::InvalidArgument, format!("{other} is no `coroner_level`"))),
    })
}

/// Leaves a breadcrumb: something that happened, such as "opened the document". The last ones before a crash are in its
/// report. `category` may be NULL. `level` is one of coroner_level.
///
/// # Safety
/// `message` is a text that ends with a NUL, `category` one or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_add_breadcrumb(category: *const c_char, message: *const c_char, level: i32) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let message = unsafe { text(message, "message") }?;
        let level = parse_level(level)?;
        let mut breadcrumb = Breadcrumb::new(message).level(level);
        if !category.is_null() {
            // SAFETY: not null, and a text as the caller promises.
            breadcrumb = breadcrumb.category(unsafe { text(category, "category") }?);
        }
        scope()?.add_breadcrumb(&breadcrumb);
        Ok(())
    })
}
