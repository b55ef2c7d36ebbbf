//! The fields of events and sessions that the types of `sentry-types` lack.
//!
//! | where | fields | reference |
//! |---|---|---|
//! | event | `level`: `error`, which the model leaves out as the default | [Event Payloads][event] |
//! | frame | `trust`, `platform` | [Stack Trace Interface][stacktrace]; `trust`: [Relay's `Frame`][frame] |
//! | stack | `instruction_addr_adjustment`, `snapshot` | [Stack Trace Interface][stacktrace] |
//! | mechanism | `exception_id`, `parent_id`, `source`, `meta.ns_error` | [Exception Interface][exception] |
//! | thread | `main`, `state`, `held_locks` | [Threads Interface][threads] |
//! | image | `type`: `elf`, `macho`, `pe`; `code_file`, `debug_id` | [Debug Meta Interface][debugmeta] |
//! | context | `type`: `culture`, Coroner's own, any that the app sets | [Contexts Interface][contexts] |
//! | session | `abnormal_mechanism` | [Sessions][sessions] |
//!
//! Until the event is written, a frame's fields are in its `vars` and a mechanism's in its `data`,
//! where a hook sees them. Those of threads, images and contexts are in [`Extensions`]. A stack's
//! are the same for all of Coroner's stacks, except that only a hang's is a snapshot.
//!
//! [event]: https://develop.sentry.dev/sdk/event-payloads/
//! [stacktrace]: https://develop.sentry.dev/sdk/event-payloads/stacktrace/
//! [frame]: https://getsentry.github.io/relay/relay_event_schema/protocol/struct.Frame.html
//! [exception]: https://develop.sentry.dev/sdk/event-payloads/exception/
//! [threads]: https://develop.sentry.dev/sdk/event-payloads/threads/
//! [debugmeta]: https://develop.sentry.dev/sdk/event-payloads/debugmeta/
//! [contexts]: https://develop.sentry.dev/sdk/event-payloads/contexts/
//! [sessions]: https://develop.sentry.dev/sdk/sessions/

use std::collections::BTreeMap;

use sentry_types::protocol::v7::Context;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The contexts that Coroner fills in.
pub const OWN_CONTEXTS: [&str; 7] = ["app", "device", "os", "runtime", "culture", "coroner", "fault"];

/// A frame's unwinding method: `context`, `cfi`, `fp`, `prewalked`, `scan`.
pub(crate) const TRUST: &str = "trust";
/// The language of a managed runtime's frame, such as `java`. Events themselves are of native code.
pub(crate) const PLATFORM: &str = "platform";
/// In a chain, the exception's index.
pub(crate) const EXCEPTION_ID: &str = "exception_id";
/// In a chain, the index of the exception that this one caused.
pub(crate) const PARENT_ID: &str = "parent_id";
/// In a chain, the attribute of the parent exception that holds this one.
pub(crate) const SOURCE: &str = "source";
/// The domain and the code of a Cocoa or Swift error that the app handled, in a mechanism's `meta`.
pub(crate) const NS_ERROR: &str = "ns_error";
const FRAME: [&str; 2] = [TRUST, PLATFORM];
const MECHANISM: [&str; 3] = [EXCEPTION_ID, PARENT_ID, SOURCE];
/// The mechanism of hangs, whose stack was captured while the thread ran.
pub(crate) const HANG: &str = "AppHang";
const DEFAULT_LEVEL: &str = "error";
/// The type that the model gives to a context of a type that it lacks.
const UNKNOWN: &str = "unknown";
/// The type that the model gives to an image of a native program, with its names for two fields.
const SYMBOLIC: &str = "symbolic";
const IMAGE: [(&str, &str); 2] = [("name", "code_file"), ("id", "debug_id")];

/// The fields that `sentry-types` lacks and that aren't inside its maps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Extensions {
    /// Threads by id.
    pub threads: BTreeMap<u64, ThreadExtensions>,
    /// Types of images (`elf`, `macho`, `pe`) by load address.
    pub images: BTreeMap<u64, &'static str>,
    /// Types of contexts, by name, that the app set.
    pub contexts: BTreeMap<String, Value>,
}

/// The fields of a thread that `sentry-types` lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ThreadExtensions {
    /// Whether this is the process's main thread.
    pub main: bool,
    /// Thread state: `running`, `blocked`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Locks that the thread holds or waits for, by address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub held_locks: BTreeMap<String, HeldLock>,
}

/// A lock that a thread holds or waits for (the protocol's `LockReason`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldLock {
    /// 1: held; 2: waiting, no thread holds it; 8: waiting until another thread releases it.
    #[serde(rename = "type")]
    pub reason: u8,
    /// The lock's address.
    pub address: String,
    /// The library that provides the lock, such as `glibc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_name: Option<String>,
    /// Lock type, such as `mutex`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// For a lock that a thread waits for: the thread that holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<u64>,
}

/// The field of a session update that `sentry-types` lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionExtensions {
    /// `anr_foreground` or `anr_background` if the session ended abnormally because of a hang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abnormal_mechanism: Option<String>,
}

impl Extensions {
    /// Adds the fields to an event's JSON.
    pub(crate) fn add(&self, event: &mut Value) {
        if let Some(event) = event.as_object_mut() {
            event.entry("level").or_insert_with(|| DEFAULT_LEVEL.into());
        }
        for exception in list(event, &["exception", "values"]) {
            let is_hang = exception["mechanism"]["type"] == HANG;
            if let Some(mechanism) = exception.get_mut("mechanism").and_then(Value::as_object_mut) {
                take_out(mechanism, "data", &MECHANISM);
                let mut meta = Map::from_iter(mechanism.get_mut("data").and_then(|data| remove(data, NS_ERROR)));
                if let Some(Value::Object(set)) = mechanism.get_mut("meta") {
                    meta.append(set);
                }
                if !meta.is_empty() {
                    mechanism.insert("meta".to_owned(), meta.into());
                }
                mechanism.retain(|key, value| key != "data" || *value != Value::Object(Map::new()));
            }
            add_to_stack(exception, is_hang);
        }
        for thread in list(event, &["threads", "values"]) {
            let id = thread["id"].as_u64();
            if let (Some(thread), Some(own)) = (thread.as_object_mut(), id.and_then(|id| self.threads.get(&id)))
                && let Ok(Value::Object(own)) = serde_json::to_value(own)
            {
                thread.extend(own);
            }
            add_to_stack(thread, false);
        }
        for image in list(event, &["debug_meta", "images"]).filter(|image| image["type"] == SYMBOLIC) {
            let address = image["image_addr"].as_str().and_then(|text| text.strip_prefix("0x"));
            let address = address.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let Some(kind) = address.and_then(|address| self.images.get(&address)) else { continue };
            image["type"] = (*kind).into();
            IMAGE.iter().for_each(|(model, name)| rename(image, model, name));
        }
        for (name, context) in event.get_mut("contexts").and_then(Value::as_object_mut).into_iter().flatten() {
            if context["type"] == UNKNOWN
                && let Some(context) = context.as_object_mut()
            {
                let own = || OWN_CONTEXTS.contains(&name.as_str()).then(|| name.as_str().into());
                match self.contexts.get(name).cloned().or_else(own) {
                    Some(kind) => context.insert("type".to_owned(), kind),
                    None => context.remove("type"),
                };
            }
        }
    }
}

/// Removes the extensions from an event's JSON, so that
/// [`sentry_types::protocol::v7::Event`] accepts it and returns it unchanged.
pub fn remove_all(event: &mut Value) {
    let remove_from_stack = |value: &mut Value| {
        let Some(stack) = value.get_mut("stacktrace") else { return };
        for frame in list(stack, &["frames"]) {
            FRAME.iter().for_each(|key| drop(remove(frame, key)));
        }
        ["instruction_addr_adjustment", "snapshot"].iter().for_each(|key| drop(remove(stack, key)));
    };
    if event["level"] == DEFAULT_LEVEL {
        remove(event, "level");
    }
    for exception in list(event, &["exception", "values"]) {
        if let Some(mechanism) = exception.get_mut("mechanism").and_then(Value::as_object_mut) {
            MECHANISM.iter().for_each(|key| drop(mechanism.remove(*key)));
            mechanism.get_mut("meta").map(|meta| remove(meta, NS_ERROR));
            mechanism.retain(|key, value| key != "meta" || *value != Value::Object(Map::new()));
        }
        remove_from_stack(exception);
    }
    for thread in list(event, &["threads", "values"]) {
        ["main", "state", "held_locks"].iter().for_each(|key| drop(remove(thread, key)));
        remove_from_stack(thread);
    }
    for image in list(event, &["debug_meta", "images"]) {
        image["type"] = SYMBOLIC.into();
        IMAGE.iter().for_each(|(model, name)| rename(image, name, model));
    }
    for context in event.get_mut("contexts").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        let read = serde_json::from_value::<Context>(context.clone()).ok();
        if read.and_then(|read| serde_json::to_value(read).ok()).as_ref() != Some(context) {
            context["type"] = UNKNOWN.into();
        }
    }
}

/// Adds the fields of the stack of an exception or a thread, and of its frames.
fn add_to_stack(value: &mut Value, is_snapshot: bool) {
    let Some(Value::Object(stack)) = value.get_mut("stacktrace") else { return };
    // Each `instruction_addr` is already inside its instruction. Return addresses have been
    // decremented, except in frames called from a signal frame, which a server couldn't detect.
    stack.insert("instruction_addr_adjustment".to_owned(), "none".into());
    if is_snapshot {
        stack.insert("snapshot".to_owned(), true.into());
    }
    for frame in stack.get_mut("frames").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(frame) = frame.as_object_mut() {
            take_out(frame, "vars", &FRAME);
        }
    }
}

/// Moves the values with these keys from the map `from` to its owner, and removes an empty map.
fn take_out(owner: &mut Map<String, Value>, from: &str, keys: &[&str]) {
    let Some(mut map) = owner.remove(from) else { return };
    owner.extend(keys.iter().filter_map(|key| remove(&mut map, key)));
    if map != Value::Object(Map::new()) {
        owner.insert(from.to_owned(), map);
    }
}

fn remove(map: &mut Value, key: &str) -> Option<(String, Value)> {
    map.as_object_mut()?.remove_entry(key)
}

fn rename(map: &mut Value, from: &str, to: &str) {
    if let Some((_, value)) = remove(map, from) {
        map[to] = value;
    }
}

/// Returns the elements of the list at this path of keys.
fn list<'v>(value: &'v mut Value, keys: &[&str]) -> impl Iterator<Item = &'v mut Value> {
    let list = keys.iter().try_fold(value, |value, key| value.get_mut(key));
    list.and_then(Value::as_array_mut).into_iter().flatten()
}
