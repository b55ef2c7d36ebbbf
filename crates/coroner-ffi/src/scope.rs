//! What the app says of itself while it is well: tags, user, contexts, breadcrumbs. All of it is in a mapped file that outlives every
//! kind of death.

use std::ffi::c_char;

use coroner::{Breadcrumb, ScopeError};

use crate::status::{Status, fail, guarded};
use crate::text::text;

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

/// Removes a tag. It is no error if there is none.
///
/// # Safety
/// `key` is a text that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn coroner_remove_tag(key: *const c_char) -> Status {
    guarded(|| {
        // SAFETY: as the caller promises.
        let key = unsafe { text(key, "key") }?;
        done(coroner::remove_tag(key))
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
        done(coroner::remove_context(name))
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
        done(coroner::remove_extra(key))
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
        1 => coroner::Level::DEBUG,
        2 => coroner::Level::INFO,
        3 => coroner::Level::WARNING,
        4 => coroner::Level::ERROR,
        5 => coroner::Level::FATAL,
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
