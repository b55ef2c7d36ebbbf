//! The JSON form: a line with the app and the kind of report, then the report itself.
//!
//! Frames are objects with `imageIndex`, `imageOffset` and, if the system could name them,
//! `symbol`, `symbolLocation` (the offset from the symbol's start), `sourceFile`, `sourceLine`, and
//! `inline` for calls that were inlined into the next frame. `usedImages` contains the images:
//! `base`, `size`, `uuid`, `name`, `path`, `arch`.
//!
//! macOS 11 wrote arrays instead: frames are `[imageIndex, imageOffset]`, images `[uuid, base,
//! source]`, and `legacyInfo.imageExtraInfo` has their sizes, names, paths and architectures.

use std::{collections::BTreeMap, fmt::Write as _, ops::Range};

use coroner_symbols::SymbolFrame;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json, value::RawValue};

use crate::apple_report::{
    AppleImage, AppleReport, AppleReportError, Form, Frame, Site, arch, byte_edits::Edits, named_frame,
    unsupported_kind,
};

/// The first line.
#[derive(Deserialize)]
struct Heading {
    bug_type: Option<String>,
}

/// The document. Unneeded fields are not parsed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(borrow)]
    threads: Option<Vec<Thread<'a>>>,
    used_images: Option<Vec<UsedImage>>,
    #[serde(default)]
    legacy_info: LegacyInfo,
    #[serde(borrow)]
    last_exception_backtrace: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
struct Thread<'a> {
    #[serde(borrow)]
    frames: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum UsedImage {
    Object(ImageFields),
    /// The id, the load address, and who listed the image.
    Array(String, u64, IgnoredAny),
}

#[derive(Default, Deserialize)]
struct ImageFields {
    base: Option<u64>,
    size: Option<u64>,
    uuid: Option<String>,
    name: Option<String>,
    path: Option<String>,
    arch: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LegacyInfo {
    image_extra_info: Vec<ImageFields>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum FrameFields {
    Object(Fields),
    /// The image's index, and the offset in it.
    Array(usize, u64),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    image_index: Option<usize>,
    image_offset: Option<u64>,
    symbol: Option<String>,
    inline: Option<bool>,
}

impl From<FrameFields> for Fields {
    fn from(fields: FrameFields) -> Self {
        match fields {
            FrameFields::Object(fields) => fields,
            FrameFields::Array(index, offset) => {
                Self { image_index: Some(index), image_offset: Some(offset), ..Self::default() }
            }
        }
    }
}

/// A frame's object in the file.
#[derive(Clone, Debug)]
pub(crate) struct FrameObject {
    range: Range<usize>,
    image_index: usize,
}

/// Whether a file starts with the line of JSON.
pub(crate) fn is_likely(bytes: &[u8]) -> bool {
    let first = first_line(bytes);
    first.starts_with(b"{") && first.windows(10).any(|part| part == b"\"bug_type\"")
}

/// Whether the line of JSON is followed by a document in JSON.
pub(crate) fn is_document(bytes: &[u8]) -> bool {
    let document = bytes.get(first_line(bytes).len()..).unwrap_or_default();
    is_likely(bytes) && document.trim_ascii_start().starts_with(b"{")
}

fn first_line(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == b'\n').next().unwrap_or_default()
}

/// Reads a report, or returns `None` if it isn't in this form.
pub(crate) fn read(bytes: &[u8]) -> Result<Option<AppleReport<'_>>, AppleReportError> {
    if !is_likely(bytes) {
        return Ok(None);
    }
    let first = first_line(bytes);
    let heading: Heading = serde_json::from_slice(first).map_err(|error| json_error(first, 0, &error))?;
    if !is_document(bytes) {
        // The text of older systems.
        return Ok(None);
    }
    let document_at = (first.len() + 1).min(bytes.len());
    let document = &bytes[document_at..];
    let parsed: Document<'_> =
        serde_json::from_slice(document).map_err(|error| json_error(document, document_at, &error))?;
    let lacking = |lacks| match heading.bug_type.as_deref().and_then(unsupported_kind::describe_bug_type) {
        Some(kind) => AppleReportError::OtherKind { kind },
        None => AppleReportError::NoFrames { lacks, bug_type: heading.bug_type.clone() },
    };
    let images = parsed.used_images.ok_or_else(|| lacking("image list (usedImages)"))?;
    let threads = parsed.threads.ok_or_else(|| lacking("threads"))?;
    let mut extra = parsed.legacy_info.image_extra_info.into_iter();
    let images = images.into_iter().map(|used| image(used, extra.next())).collect();
    let mut report = AppleReport { bytes, form: Form::Ips, images, frames: Vec::new() };
    for thread in threads {
        add_stack(&mut report, &thread.frames.unwrap_or_default(), true);
    }
    add_stack(&mut report, &parsed.last_exception_backtrace.unwrap_or_default(), false);
    Ok(Some(report))
}

/// Returns the line of JSON and the document, whatever they contain.
///
/// The arrays of macOS 11 are converted to the objects of later systems.
pub(crate) fn values(bytes: &[u8]) -> Result<(Value, Value), AppleReportError> {
    let first = first_line(bytes);
    let at = (first.len() + 1).min(bytes.len());
    let heading = serde_json::from_slice(first).map_err(|error| json_error(first, 0, &error))?;
    let document = &bytes[at..];
    let mut document = serde_json::from_slice(document).map_err(|error| json_error(document, at, &error))?;
    convert_arrays(&mut document);
    Ok((heading, document))
}

fn convert_arrays(document: &mut Value) {
    let legacy = document.get_mut("legacyInfo").map(Value::take).unwrap_or_default();
    let extra = legacy["imageExtraInfo"].as_array().map(Vec::as_slice).unwrap_or_default();
    let images = document.get_mut("usedImages").and_then(Value::as_array_mut);
    for (place, image) in images.into_iter().flatten().enumerate() {
        if let Value::Array(fields) = image {
            let mut object = extra.get(place).cloned().filter(Value::is_object).unwrap_or_else(|| json!({}));
            for (key, field) in ["uuid", "base"].into_iter().zip(std::mem::take(fields)) {
                object[key] = field;
            }
            *image = object;
        }
    }
    let threads = document.get_mut("threads").and_then(Value::as_array_mut).into_iter().flatten();
    let mut stacks: Vec<_> = threads.filter_map(|thread| thread.get_mut("frames")).collect();
    // The borrow of the threads ends before that of the other stack begins.
    stacks.iter_mut().for_each(|frames| convert_frames(frames));
    if let Some(frames) = document.get_mut("lastExceptionBacktrace") {
        convert_frames(frames);
    }
    if document.get("faultingThread").is_none()
        && let Some(index) = legacy["threadTriggered"].get("index")
    {
        document["faultingThread"] = index.clone();
    }
}

fn convert_frames(frames: &mut Value) {
    for frame in frames.as_array_mut().into_iter().flatten() {
        if let [index, offset, ..] = frame.as_array().map(Vec::as_slice).unwrap_or_default() {
            *frame = json!({ "imageIndex": index, "imageOffset": offset });
        }
    }
}

/// Converts an error of serde_json, which counts lines and columns from 1.
fn json_error(text: &[u8], text_at: usize, error: &serde_json::Error) -> AppleReportError {
    let before = text.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1));
    let offset = before.map(<[u8]>::len).sum::<usize>() + error.column().saturating_sub(1);
    AppleReportError::Json { offset: text_at + offset.min(text.len()), what: error.to_string() }
}

fn image(used: UsedImage, extra: Option<ImageFields>) -> AppleImage {
    let image = match used {
        UsedImage::Object(fields) => fields,
        UsedImage::Array(uuid, base, _) => {
            ImageFields { uuid: Some(uuid), base: Some(base), ..extra.unwrap_or_default() }
        }
    };
    let path = image.path.unwrap_or_default();
    AppleImage {
        name: image.name.unwrap_or_else(|| path.rsplit('/').next().unwrap_or_default().to_owned()),
        path,
        load_address: image.base.unwrap_or(0),
        size: image.size.unwrap_or(0),
        debug_id: image.uuid.and_then(|uuid| uuid.parse().ok()),
        arch: image.arch.as_deref().map_or(coroner_symbols::Arch::Other, arch),
    }
}

/// Adds the frames that may be named. Frames that the system has expanded (with inlined calls
/// before them) are complete.
fn add_stack(report: &mut AppleReport<'_>, frames: &[&RawValue], is_thread: bool) {
    let mut is_innermost = is_thread;
    let mut expanded = false;
    for raw in frames {
        let Ok(fields) = serde_json::from_str::<FrameFields>(raw.get()).map(Fields::from) else {
            // Unknown structure: the frame stays unchanged, but still counts as one.
            is_innermost = false;
            continue;
        };
        let inline = fields.inline == Some(true);
        let complete = inline || expanded;
        expanded = inline;
        let was_innermost = is_innermost;
        is_innermost &= inline;
        let (Some(image_index), Some(offset)) = (fields.image_index, fields.image_offset) else { continue };
        if complete || report.images.get(image_index).is_none_or(|image| image.size == 0) {
            continue;
        }
        let start = raw.get().as_ptr() as usize - report.bytes.as_ptr() as usize;
        report.frames.push(Frame {
            image: image_index,
            offset,
            is_return_address: !was_innermost,
            has_name: fields.symbol.is_some_and(|symbol| symbol != "<redacted>" && !symbol.is_empty()),
            site: Site::Object(FrameObject { range: start..start + raw.get().len(), image_index }),
        });
    }
}

impl FrameObject {
    /// Writes the calls, innermost first: inlined ones as objects before this one.
    pub(crate) fn name(&self, bytes: &[u8], offset: u64, calls: &[SymbolFrame], edits: &mut Edits) {
        let Some((own, inlined)) = calls.split_last() else { return };
        let mut before = String::new();
        for call in inlined {
            before.push('{');
            for (key, value) in fields(call, None) {
                let _ = write!(before, "\"{key}\":{value},");
            }
            let _ = write!(before, "\"inline\":true,\"imageOffset\":{offset},\"imageIndex\":{}}},", self.image_index);
        }
        if !before.is_empty() {
            edits.insert(self.range.start, before);
        }
        let text = bytes.get(self.range.clone()).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default();
        if text.starts_with('[') {
            let named: String =
                fields(own, Some(offset)).iter().map(|(key, value)| format!(",\"{key}\":{value}")).collect();
            let object = format!("{{\"imageOffset\":{offset},\"imageIndex\":{}{named}}}", self.image_index);
            edits.replace(self.range.clone(), object);
            return;
        }
        let present: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
        let mut added = String::new();
        for (key, value) in fields(own, Some(offset)) {
            if let Some(old) = present.get(key) {
                let start = old.get().as_ptr() as usize - bytes.as_ptr() as usize;
                edits.replace(start..start + old.get().len(), value);
            } else {
                let _ = write!(added, ",\"{key}\":{value}");
            }
        }
        // Before the closing brace, after the last value.
        let inside = text.strip_suffix('}').unwrap_or(text).trim_end();
        edits.insert(self.range.start + inside.len(), added);
    }
}

/// Returns a call's fields with Apple's names and JSON values.
fn fields(call: &SymbolFrame, offset: Option<u64>) -> Vec<(&'static str, String)> {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let mut fields = vec![("symbol", text(named_frame::function(call)))];
    if let (Some(offset), Some(start)) = (offset, call.symbol_address) {
        fields.push(("symbolLocation", offset.wrapping_sub(start).to_string()));
    }
    if let Some(file) = &call.file {
        fields.push(("sourceFile", text(file.rsplit('/').next().unwrap_or(file))));
    }
    if let Some(line) = call.line {
        fields.push(("sourceLine", line.to_string()));
    }
    fields
}
