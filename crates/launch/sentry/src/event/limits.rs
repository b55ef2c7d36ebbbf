//! Servers' limits: lengths of strings and the size of an event. Cuts are marked.

use serde_json::{Value, json};

use super::Event;

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

/// Shrinks an event's JSON to servers' size limit by dropping the least important parts.
pub(super) fn fitted(json: Vec<u8>) -> Vec<u8> {
    if json.len() <= LARGEST_EVENT {
        return json;
    }
    without_least(&json, LARGEST_EVENT).unwrap_or(json)
}

/// Shrinks an event for a server that rejected it as too large; `None` if nothing is left to drop.
pub(crate) fn shrink(json: &[u8]) -> Option<Vec<u8>> {
    without_least(json, json.len() / 2).filter(|shrunk| shrunk.len() < json.len())
}

/// Works on JSON throughout, because queued events are stored as JSON.
fn without_least(json: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut event: Value = serde_json::from_slice(json).ok()?;
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
    Some(event.to_string().into_bytes())
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

/// Cuts strings that are too long.
pub(super) fn cut_texts(event: &mut Event) {
    for exception in &mut event.exception.values {
        cut(&mut exception.kind, NAME);
        exception.value.iter_mut().for_each(|value| cut(value, MESSAGE));
        for value in exception.mechanism.iter_mut().flat_map(|mechanism| mechanism.data.values_mut()) {
            flatten(value, DATA_LEVELS);
            cut_value(value, SYMBOL);
        }
    }
    for stack in event.stacktraces_mut() {
        for frame in &mut stack.frames {
            [&mut frame.function, &mut frame.symbol].into_iter().flatten().for_each(|name| cut(name, SYMBOL));
            [&mut frame.abs_path, &mut frame.filename].into_iter().flatten().for_each(|path| cut_start(path, PATH));
        }
    }
    for thread in &mut event.threads.values {
        thread.name.iter_mut().for_each(|name| cut(name, NAME));
    }
    for image in event.debug_meta.iter_mut().flat_map(|meta| &mut meta.images) {
        cut_start(&mut image.code_file, PATH);
    }
    event.breadcrumbs.values.iter_mut().for_each(|crumb| {
        cut(&mut crumb.kind, NAME);
        crumb.category.iter_mut().for_each(|category| cut(category, NAME));
    });
    for value in event.extra.values_mut() {
        flatten(value, EXTRA_LEVELS);
        cut_value(value, EXTRA_TEXT);
    }
    let mut extra = Value::Object(std::mem::take(&mut event.extra));
    fit(&mut extra, EXTRA);
    if let Value::Object(extra) = extra {
        event.extra = extra;
    }
    for context in event.contexts.values_mut() {
        flatten(context, CONTEXT_LEVELS);
        fit(context, CONTEXT);
    }
    for (key, value) in &mut event.user {
        flatten(value, CONTEXT_LEVELS);
        if key == "data" { fit(value, CONTEXT) } else { cut_value(value, USER) }
    }
    for value in event.breadcrumbs.values.iter_mut().flat_map(|crumb| crumb.data.values_mut()) {
        flatten(value, DATA_LEVELS);
        fit(value, CONTEXT);
    }
    event.release = event.release.take().and_then(release);
    event.environment = event.environment.take().and_then(environment);
    event.dist = event.dist.take().map(|dist| named(&dist, ENVIRONMENT)).filter(|dist| !dist.is_empty());
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
fn cut_start(path: &mut String, longest: usize) {
    let length = path.chars().count();
    if length > longest {
        let rest: String = path.chars().skip(length - longest + 1).collect();
        *path = format!("…{rest}");
    }
}
