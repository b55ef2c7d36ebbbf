//! The scope, set while the app runs: tags, user, contexts, breadcrumbs.

use coroner::{Breadcrumb, Level, User};
use jni::errors::LogErrorAndDefault;
use jni::objects::{JClass, JString};
use jni::sys::{jboolean, jint};
use jni::{Env, NativeMethod, native_method};

use super::{Failure, optional};

const _: [NativeMethod; 5] = [
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_set_tag(key: JString, value: JString),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_set_user(id: JString, name: JString, email: JString),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_set_context(name: JString, json: JString),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_add_breadcrumb(category: JString, message: JString, level: jint),
    },
    native_method! {
        java_type = "dev.coroner.Coroner",
        error_policy = LogErrorAndDefault,
        static extern fn native_set_foreground(is_foreground: jboolean),
    },
];

fn native_set_tag(env: &mut Env<'_>, _: JClass<'_>, key: JString<'_>, value: JString<'_>) -> Result<(), Failure> {
    let key = key.try_to_string(env)?;
    match optional(env, &value)? {
        Some(value) => coroner::set_tag(&key, &value)?,
        None => coroner::remove_tag(&key),
    }
    Ok(())
}

fn native_set_user(
    env: &mut Env<'_>,
    _: JClass<'_>,
    id: JString<'_>,
    name: JString<'_>,
    email: JString<'_>,
) -> Result<(), Failure> {
    let Some(id) = optional(env, &id)? else { return Ok(coroner::set_user(None)?) };
    let mut user = User::new(id);
    if let Some(name) = optional(env, &name)? {
        user = user.name(name);
    }
    if let Some(email) = optional(env, &email)? {
        user = user.email(email);
    }
    Ok(coroner::set_user(Some(&user))?)
}

fn native_set_context(env: &mut Env<'_>, _: JClass<'_>, name: JString<'_>, json: JString<'_>) -> Result<(), Failure> {
    let name = name.try_to_string(env)?;
    match optional(env, &json)? {
        Some(json) => coroner::set_context(&name, &serde_json::from_str(&json)?)?,
        None => coroner::remove_context(&name),
    }
    Ok(())
}

/// Converts the Java class's level number.
fn parse_level(number: jint) -> Level {
    match number {
        ..=1 => Level::Debug,
        2 => Level::Info,
        3 => Level::Warning,
        4 => Level::Error,
        5.. => Level::Fatal,
    }
}

fn native_add_breadcrumb(
    env: &mut Env<'_>,
    _: JClass<'_>,
    category: JString<'_>,
    message: JString<'_>,
    level: jint,
) -> Result<(), Failure> {
    let (category, message) = (optional(env, &category)?, message.try_to_string(env)?);
    let mut breadcrumb = Breadcrumb::new(&message).level(parse_level(level));
    if let Some(category) = &category {
        breadcrumb = breadcrumb.category(category);
    }
    coroner::add_breadcrumb(&breadcrumb);
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "the same type as the other methods")]
fn native_set_foreground(_: &mut Env<'_>, _: JClass<'_>, is_foreground: jboolean) -> Result<(), Failure> {
    coroner::set_foreground(is_foreground);
    Ok(())
}
