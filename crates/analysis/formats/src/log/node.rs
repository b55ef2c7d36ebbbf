//! Reads the fatal errors of Node and V8.
//!
//! ```text
//! FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory
//! ----- Native stack trace -----
//!
//!  1: 0xb85bc0 node::OOMErrorHandler(char const*, v8::OOMDetails const&) [node]
//!  2: 0x7f9a1a2d /usr/lib/libnode.so.108
//!
//! #
//! # Fatal error in , line 0
//! # Check failed: node->IsInUse().
//! ```
//!
//! Source: `src/node_errors.cc` and `src/debug_utils.cc` of Node, `src/base/logging.cc` of V8.

use coroner_report::model::{Address, Exception, Frame};
use coroner_report::wire::{AddressKind, FoundBy, Language, Monitor};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, address, exception};

const HEADS: [&str; 2] = ["FATAL ERROR: ", "# Fatal error in "];
/// Maximum number of lines between the message and the stack.
const MAX_BETWEEN: usize = 16;

pub(super) fn head(line: &str) -> Option<usize> {
    HEADS.iter().find_map(|head| line.find(head))
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let mut message = first.text.strip_prefix(HEADS[0]).map(|message| message.trim().to_owned());
    let location = first.text.strip_prefix(HEADS[1]).map(|place| place.trim().to_owned());
    let mut frames: Vec<Frame> = Vec::new();
    let mut between = 0;
    let mut ahead = lines;
    for _ in 0..MAX_LINES {
        let Some(line) = ahead.next() else { break };
        let text = line.text.trim();
        match frame(text, frames.len()) {
            Some(frame) if frames.len() < MAX_FRAMES => frames.push(frame),
            Some(_) => {}
            None if frames.is_empty() && between < MAX_BETWEEN && head(text).is_none() => {
                between += 1;
                let said = text.strip_prefix("# ").filter(|said| !said.is_empty());
                message = message.or_else(|| said.map(ToOwned::to_owned));
                continue;
            }
            None => break,
        }
        lines = ahead;
    }
    let problem = frames.is_empty().then(|| format!("after line {}: the text has no stack", first.number));
    let thrown = Exception {
        language: Language::JAVASCRIPT,
        type_name: Some("fatal error of V8".to_owned()),
        message,
        location: location.filter(|location| !location.starts_with(',')),
        frames,
        ..Exception::default()
    };
    Some(Found { death: Death { problem, ..exception(thrown, None, Monitor::SIGNAL) }, rest: lines })
}

/// Parses ` 1: 0xb85bc0 node::Abort() [node]`.
fn frame(text: &str, before: usize) -> Option<Frame> {
    let (number, rest) = text.split_once(": ")?;
    if number.parse() != Ok(before + 1) {
        return None;
    }
    let (at, rest) = address(rest.trim())?;
    let (name, module) = match rest.trim().rsplit_once('[') {
        Some((name, module)) => (name.trim(), Some(module.trim_end_matches(']').to_owned())),
        None => (rest.trim(), None),
    };
    let is_runtime = ["node::", "v8::", "uv_", "V8_", "_start", "__libc_start"];
    Some(Frame {
        address: Address(at),
        found_by: if before == 0 { FoundBy::CONTEXT } else { FoundBy::CFI },
        address_kind: if before == 0 { AddressKind::INSTRUCTION } else { AddressKind::RETURN },
        in_app: Some(!name.is_empty() && !is_runtime.iter().any(|runtime| name.starts_with(runtime))),
        function: Some(name.to_owned()).filter(|name| !name.is_empty() && !name.starts_with('/')),
        module: module.or_else(|| name.starts_with('/').then(|| name.to_owned())),
        ..Frame::default()
    })
}
