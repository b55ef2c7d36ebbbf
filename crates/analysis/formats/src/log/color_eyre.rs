//! Reads panics as printed by the hook of the crate color-eyre.
//!
//! ```text
//! The application panicked (crashed).
//! Message:  no cart
//! Location: src/main.rs:7
//!
//!   ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ BACKTRACE ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
//!                                 ⋮ 6 frames hidden ⋮
//!    7: shop::total::h0123456789abcdef
//!       at /home/shop/src/main.rs:7
//! ```
//!
//! Source: `config.rs` of color-eyre.

use coroner_report::model::{Exception, Frame};
use coroner_report::wire::{FoundBy, Language, Monitor};

use super::lines::Lines;
use super::{Death, Found, MAX_FRAMES, MAX_LINES, exception, own, parse_location};

const HEAD: &str = "The application panicked (crashed).";

pub(super) fn head(line: &str) -> Option<usize> {
    line.find(HEAD)
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    lines.next()?;
    let (mut message, mut location): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut frames: Vec<Frame> = Vec::new();
    let mut in_backtrace = false;
    let mut ahead = lines;
    for _ in 0..MAX_LINES {
        let Some(line) = ahead.next() else { break };
        let text = line.text.trim();
        if text.contains(" BACKTRACE ") {
            in_backtrace = true;
        } else if in_backtrace {
            match (text.split_once(": "), text.strip_prefix("at ")) {
                (_, Some(place)) => {
                    let (file, line, _) = parse_location(place);
                    if let Some(frame) = frames.last_mut() {
                        (frame.file, frame.line) = (Some(file.to_owned()), line);
                    }
                }
                (Some((number, name)), None) if number.parse::<u32>().is_ok() => {
                    if frames.len() < MAX_FRAMES {
                        frames.push(frame(name));
                    }
                }
                _ if text.is_empty() || text.contains("frames hidden") || text.contains("frame hidden") => {}
                _ => break,
            }
        } else if let Some(place) = text.strip_prefix("Location:") {
            location = Some(place.trim().to_owned());
        } else if let Some(said) = text.strip_prefix("Message:") {
            message.push(said.trim().to_owned());
        } else if location.is_none() && !message.is_empty() {
            message.push(text.to_owned());
        } else if !text.is_empty() {
            break;
        }
        lines = ahead;
    }
    if message.is_empty() {
        return None;
    }
    for frame in &mut frames {
        frame.in_app = own(frame, |_, file| file.starts_with("/rustc/") || file.contains("/.cargo/registry/"));
    }
    let thrown = Exception {
        language: Language::RUST,
        message: Some(message.join("\n")),
        location,
        frames,
        ..Exception::default()
    };
    Some(Found { death: Death { ..exception(thrown, None, Monitor::PANIC) }, rest: lines })
}

fn frame(name: &str) -> Frame {
    // The hash of Rust's older mangling.
    let name = match name.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 => name,
        _ => name,
    };
    Frame {
        found_by: FoundBy::CFI,
        module: Some(Language::RUST.to_string()),
        function: Some(name.to_owned()).filter(|name| name != "<unknown>"),
        ..Frame::default()
    }
}
