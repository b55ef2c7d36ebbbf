//! Servers' limits: lengths of strings and the size of an event. Cuts are marked.

use serde_json::{Value, json};

/// Maximum size of an event, in bytes. Servers accept 1 MiB (develop.sentry.dev, *Envelopes*, "Size
/// Limits"); the difference allows for a server's own JSON encoding.
pub(crate) const LARGEST_EVENT: usize = 1_000_000;

// Lengths in characters at which Relay's normaliser cuts (`max_chars` of its schema).
const MESSAGE: usize = 8192;
const SYMBOL: usize = 512;
const PATH: usize = 256;
const NAME: usize = 128;
const EXTRA_TEXT: usize = 8192;
/// Maximum size of one context, and of all extra data together, in bytes.
///
/// It is `bag_size` of Relay's schema, minus an allowance for its way of counting.
const CONTEXT: usize = 7_600;
const EXTRA: usize = 240_000;
/// Maximum length of a user field, in characters.
const USER: usize = 128;
// Maximum nesting of maps and lists in one context, in one extra value, and in one data value of a
// breadcrumb or mechanism.
const CONTEXT_LEVELS: usize = 6;
const EXTRA_LEVELS: usize = 5;
const DATA_LEVELS: usize = 3;
const RELEASE: usize = 200;
const ENVIRONMENT: usize = 64;

/// Number of frames that a stack keeps in a much too large event, half from either end.
const FEW_FRAMES: usize = 32;

/// Returns an event as JSON of at most servers' size limit, without the least important parts.
pub(super) fn fitted(event: Value) -> Vec<u8> {
    let json = event.to_string().into_bytes();
    if json.len() <= LARGEST_EVENT { json } else { without_least(event, LARGEST_EVENT) }
}

/// Shrinks an event for a server that rejected it as too large; `None` if nothing is left to drop.
pub(crate) fn shrink(json: &[u8]) -> Option<Vec<u8>> {
    let event = serde_json::from_slice(json).ok()?;
    Some(without_least(event, json.len() / 2)).filter(|shrunk| shrunk.len() < json.len())
}

fn without_least(mut event: Value, most: usize) -> Vec<u8> {
    let mut dropped = Vec::new();
    for (what, drop) in STEPS {
        if drop(&mut event) {
            dropped.push(*what);
        }
        if size(&event) <= most {
            break;
        }
    }
    note(&mut event, &dropped);
    event.to_string().into_bytes()
}

/// Returns the length of a value's JSON, in bytes.
fn size(value: &Value) -> usize {
    value.to_string().len()
}

/// Records in the event what was dropped.
fn note(event: &mut Value, dropped: &[&str]) {
    let Some(event) = event.as_object_mut().filter(|_| !dropped.is_empty()) else { return };
    let contexts = event.entry("contexts").or_insert_with(|| json!({}));
    let Value::Object(contexts) = contexts else { return };
    let coroner = contexts.entry("coroner").or_insert_with(|| json!({ "type": "coroner" }));
    if let Value::Object(context) = coroner {
        let list = context.entry("dropped_for_size").or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            for what in dropped {
                if !list.iter().any(|known| known == what) {
                    list.push((*what).into());
                }
            }
        }
    }
}

/// Parts that can be dropped, the least important first. Each step returns whether it dropped
/// anything.
type Step = fn(&mut Value) -> bool;
const STEPS: &[(&str, Step)] = &[
    ("registers of other threads", |event| {
        let removed =
            |stack: &mut Value| stack.as_object_mut().is_some_and(|stack| stack.remove("registers").is_some());
        stacks(event).fold(false, |any, stack| removed(stack) | any)
    }),
    ("images without frames", drop_unused_images),
    ("middle frames of other threads", |event| {
        stacks(event).fold(false, |any, stack| {
            let Some(frames) = list(stack, &["frames"]) else { return any };
            let long = frames.len() > FEW_FRAMES;
            if long {
                frames.drain(FEW_FRAMES / 2..frames.len() - FEW_FRAMES / 2);
            }
            any || long
        })
    }),
    ("stacks of the last threads", drop_stacks),
    ("threads without a stack", |event| {
        let Some(threads) = list(event, &["threads", "values"]) else { return false };
        let before = threads.len();
        threads.retain(|thread| !thread["stacktrace"].is_null() || is_about(thread));
        threads.len() < before
    }),
    ("extra", |event| event.as_object_mut().is_some_and(|event| event.remove("extra").is_some())),
    ("older breadcrumbs", |event| {
        let Some(crumbs) = list(event, &["breadcrumbs", "values"]) else { return false };
        let half = crumbs.len() / 2;
        crumbs.drain(..half);
        half > 0
    }),
    ("contexts of the app", |event| {
        let own = ["app", "os", "device", "culture", "coroner"];
        let Some(contexts) = event.get_mut("contexts").and_then(Value::as_object_mut) else { return false };
        let before = contexts.len();
        contexts.retain(|name, _| own.contains(&name.as_str()));
        contexts.len() < before
    }),
];

/// Returns the list at this path of keys.
fn list<'v>(value: &'v mut Value, keys: &[&str]) -> Option<&'v mut Vec<Value>> {
    keys.iter().try_fold(value, |value, key| value.get_mut(key))?.as_array_mut()
}

/// Whether the event is about the thread.
fn is_about(thread: &Value) -> bool {
    thread["crashed"] == true || thread["current"] == true
}

/// Returns the threads that the event is not about.
fn other_threads(event: &mut Value) -> impl DoubleEndedIterator<Item = &mut Value> {
    list(event, &["threads", "values"]).into_iter().flatten().filter(|thread| !is_about(thread))
}

/// Returns the stacks of the threads that the event is not about.
fn stacks(event: &mut Value) -> impl Iterator<Item = &mut Value> {
    other_threads(event).filter_map(|thread| thread.get_mut("stacktrace"))
}

/// Drops other threads' stacks, the last first, until the rest fits or has half its size.
fn drop_stacks(event: &mut Value) -> bool {
    let total = size(event);
    // The usual limit is known; if a server has a smaller one, only that the event exceeds it.
    let mut excess = if total > LARGEST_EVENT { total - LARGEST_EVENT } else { total / 2 };
    let mut any = false;
    for thread in other_threads(event).rev() {
        if excess == 0 {
            break;
        }
        if let Some(stack) = thread.as_object_mut().and_then(|thread| thread.remove("stacktrace")) {
            excess = excess.saturating_sub(size(&stack));
            any = true;
        }
    }
    any
}

fn drop_unused_images(event: &mut Value) -> bool {
    let stacks = ["exception", "threads"].into_iter().filter_map(|of| event[of]["values"].as_array()).flatten();
    let frames = stacks.filter_map(|of| of["stacktrace"]["frames"].as_array()).flatten();
    let used: Vec<Value> = frames.map(|frame| frame["image_addr"].clone()).filter(Value::is_string).collect();
    let Some(images) = list(event, &["debug_meta", "images"]) else { return false };
    let before = images.len();
    images.retain(|image| used.contains(&image["image_addr"]));
    images.len() < before
}

/// Cuts the strings of an event's JSON that are too long.
pub(super) fn cut_texts(event: &mut Value) {
    for key in ["exception", "threads"] {
        for value in list(event, &[key, "values"]).into_iter().flatten() {
            ["type", "name"].iter().for_each(|key| cut_field(value, key, NAME));
            cut_field(value, "value", MESSAGE);
            for value in map(value.get_mut("mechanism").and_then(|mechanism| mechanism.get_mut("data"))) {
                flatten(value, DATA_LEVELS);
                cut_value(value, SYMBOL);
            }
            for frame in list(value, &["stacktrace", "frames"]).into_iter().flatten() {
                ["function", "symbol"].iter().for_each(|key| cut_field(frame, key, SYMBOL));
                ["abs_path", "filename"].iter().for_each(|key| cut_start(frame, key, PATH));
            }
        }
    }
    list(event, &["debug_meta", "images"]).into_iter().flatten().for_each(|image| cut_start(image, "code_file", PATH));
    for crumb in list(event, &["breadcrumbs", "values"]).into_iter().flatten() {
        ["type", "category"].iter().for_each(|key| cut_field(crumb, key, NAME));
        for value in map(crumb.get_mut("data")) {
            flatten(value, DATA_LEVELS);
            fit(value, CONTEXT);
        }
    }
    if let Some(extra) = event.get_mut("extra") {
        for value in map(Some(extra)) {
            flatten(value, EXTRA_LEVELS);
            cut_value(value, EXTRA_TEXT);
        }
        fit(extra, EXTRA);
    }
    for context in map(event.get_mut("contexts")) {
        flatten(context, CONTEXT_LEVELS);
        fit(context, CONTEXT);
    }
    for (key, value) in event.get_mut("user").and_then(Value::as_object_mut).into_iter().flatten() {
        flatten(value, CONTEXT_LEVELS);
        if key == "data" { fit(value, CONTEXT) } else { cut_value(value, USER) }
    }
}

/// Returns the values of a map.
fn map(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_object_mut).into_iter().flat_map(serde_json::Map::values_mut)
}

fn cut_field(owner: &mut Value, key: &str, longest: usize) {
    owner.get_mut(key).into_iter().for_each(|value| cut_value(value, longest));
}

/// Converts a distribution to what servers accept.
pub(super) fn dist(dist: String) -> Option<String> {
    Some(named(&dist, ENVIRONMENT)).filter(|dist| !dist.is_empty())
}

/// Converts a release to what servers accept: limited length, no path characters, no reserved name.
pub(crate) fn release(release: String) -> Option<String> {
    let release = named(&release, RELEASE);
    (!["", ".", "..", "latest"].contains(&release.as_str())).then_some(release)
}

/// Converts an environment to what servers accept.
pub(crate) fn environment(environment: String) -> Option<String> {
    let environment = named(&environment, ENVIRONMENT);
    (!["", "none"].contains(&environment.to_ascii_lowercase().as_str())).then_some(environment)
}

fn named(name: &str, longest: usize) -> String {
    let odd = |character: char| character == '/' || character == '\\' || character.is_control();
    let name: String = name.trim().chars().map(|character| if odd(character) { '-' } else { character }).collect();
    // Cut without an ellipsis: names are compared, not read.
    name.chars().take(longest).collect()
}

/// Replaces values nested deeper than `levels` maps and lists with their JSON text.
///
/// Relay does the same (`max_depth`).
fn flatten(value: &mut Value, levels: usize) {
    match value {
        Value::Object(_) | Value::Array(_) if levels == 0 => *value = Value::String(value.to_string()),
        Value::Object(map) => map.values_mut().for_each(|value| flatten(value, levels - 1)),
        Value::Array(items) => items.iter_mut().for_each(|value| flatten(value, levels - 1)),
        _ => {}
    }
}

/// Reduces a value until its JSON has at most `most` bytes.
///
/// Cuts strings shorter and shorter, then removes the largest entries.
fn fit(value: &mut Value, most: usize) {
    for longest in [4096, 1024, 256, 64] {
        if size(value) <= most {
            return;
        }
        cut_value(value, longest);
    }
    while size(value) > most {
        let Value::Object(map) = value else {
            *value = Value::String("(too large)".to_owned());
            return;
        };
        let largest = map.iter().filter(|(key, _)| *key != "type").max_by_key(|(_, value)| size(value));
        let Some(largest) = largest.map(|(key, _)| key.clone()) else { return };
        map.remove(&largest);
    }
}

fn cut_value(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => cut(text, longest),
        Value::Array(items) => items.iter_mut().for_each(|item| cut_value(item, longest)),
        Value::Object(map) => map.values_mut().for_each(|item| cut_value(item, longest)),
        _ => {}
    }
}

/// Cuts a string to at most `longest` characters, including an ellipsis.
fn cut(text: &mut String, longest: usize) {
    if let Some((at, _)) = text.char_indices().nth(longest)
        && let Some((last, _)) = text[..at].char_indices().next_back()
    {
        text.truncate(last);
        text.push('…');
    }
}

/// Cuts the start of a path, because its end is more informative.
fn cut_start(owner: &mut Value, key: &str, longest: usize) {
    let Some(Value::String(path)) = owner.get_mut(key) else { return };
    let length = path.chars().count();
    if length > longest {
        let rest: String = path.chars().skip(length - longest + 1).collect();
        *path = format!("…{rest}");
    }
}
