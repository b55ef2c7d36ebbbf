//! Symbolicates an event as Sentry's server does: `symbolicate_event FILE…`.
//!
//! The event is on standard input; the files are those of its images, matched by name.
//!
//! Each native frame with an `instruction_addr` in an image whose file is given is replaced by all
//! functions at its address; the others stay unchanged (`get_frames_for_symbolication` and
//! `process_native_stacktraces` of `sentry/lang/native/processing.py`, and `symbolicator-native`).
//! Prints one JSON object with the stacks before and after, innermost frame first.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};
use symbolic_common::{ByteView, Name};
use symbolic_debuginfo::Object;
use symbolic_demangle::{Demangle, DemangleOptions};
use symbolic_symcache::{SymCache, SymCacheConverter};

fn main() -> anyhow::Result<()> {
    let event: Value = serde_json::from_reader(std::io::stdin().lock()).context("the event")?;
    let mut files = BTreeMap::new();
    for path in std::env::args().skip(1) {
        let view = ByteView::open(&path).with_context(|| path.clone())?;
        let object = Object::parse(&view).with_context(|| path.clone())?;
        let mut converter = SymCacheConverter::new();
        converter.process_object(&object).with_context(|| path.clone())?;
        let mut cache = Vec::new();
        converter.serialize(&mut cache)?;
        files.insert(object.debug_id().to_string(), (Path::new(&path).to_owned(), cache));
    }
    let mut caches = BTreeMap::new();
    for (id, (path, bytes)) in &files {
        caches.insert(id.as_str(), SymCache::parse(bytes).with_context(|| path.display().to_string())?);
    }
    let images = event["debug_meta"]["images"].as_array().cloned().unwrap_or_default();
    let mut stacks = Vec::new();
    for kind in ["exception", "threads"] {
        for (place, value) in event[kind]["values"].as_array().into_iter().flatten().enumerate() {
            let Some(frames) = value["stacktrace"]["frames"].as_array() else { continue };
            let before: Vec<Value> = frames.iter().rev().map(shown).collect();
            let after: Vec<Value> =
                frames.iter().rev().flat_map(|frame| symbolicate(frame, &images, &caches)).collect();
            stacks.push(json!({ "name": format!("{kind} {place}"), "before": before, "after": after }));
        }
    }
    println!("{}", json!({ "images": caches.len(), "stacks": stacks }));
    Ok(())
}

fn number(value: &Value) -> Option<u64> {
    u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok()
}

fn shown(frame: &Value) -> Value {
    let path = if frame["abs_path"].is_string() { &frame["abs_path"] } else { &frame["filename"] };
    json!({ "function": frame["function"], "symbol": frame["symbol"], "file": path, "line": frame["lineno"],
        "has_address": frame["instruction_addr"].is_string(), "by": "event" })
}

/// Returns a server's replacement of a frame.
fn symbolicate(frame: &Value, images: &[Value], caches: &BTreeMap<&str, SymCache>) -> Vec<Value> {
    let alone = || vec![shown(frame)];
    if !frame["platform"].as_str().is_none_or(|platform| ["native", "cocoa"].contains(&platform)) {
        return alone();
    }
    let Some(address) = number(&frame["instruction_addr"]) else { return alone() };
    let holds = |image: &&Value| {
        let (start, size) = (number(&image["image_addr"]), image["image_size"].as_u64());
        start.zip(size).is_some_and(|(start, size)| address.wrapping_sub(start) < size)
    };
    let Some(image) = images.iter().find(holds) else { return alone() };
    let Some(cache) = image["debug_id"].as_str().and_then(|id| caches.get(id)) else { return alone() };
    let offset = address.wrapping_sub(number(&image["image_addr"]).unwrap_or_default());
    let functions: Vec<Value> = cache
        .lookup(offset)
        .map(|found| {
            let function = found.function();
            let name: Name = function.name_for_demangling();
            let readable = name.try_demangle(DemangleOptions::complete().return_type(false)).into_owned();
            let file = found.file().map(|file| file.full_path());
            json!({ "function": readable, "symbol": function.name(), "file": file, "line": found.line(), "by": "server" })
        })
        .collect();
    if functions.is_empty() { alone() } else { functions }
}
