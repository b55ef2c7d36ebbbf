//! Reads reports of UndefinedBehaviorSanitizer.
//!
//! ```text
//! cart.c:17:34: runtime error: signed integer overflow: 2 + 2147483647 cannot be represented in type 'int'
//!     #0 0x5579de6f19f0 in main /home/shop/cart.c:17
//! ```
//!
//! There is a stack if the program was started with `print_stacktrace=1`. Notes with the bytes of
//! memory may precede it. Source: `compiler-rt/lib/ubsan/ubsan_diag.cpp` of LLVM.

use coroner_process::registers::Arch;
use coroner_report::model::{Exception, Frame};
use coroner_report::wire::{FoundBy, Language, Monitor};

use super::address_sanitizer::frame;
use super::images::Images;
use super::lines::Lines;
use super::{Death, Found, MAX_LINES, exception, parse_location};

const MARK: &str = ": runtime error: ";
/// Maximum number of lines of notes before the stack.
const MAX_NOTES: usize = 8;

pub(super) fn head(line: &str) -> Option<usize> {
    let (place, _) = line.split_once(MARK)?;
    let start = place.rfind(' ').map_or(0, |space| space + 1);
    parse_location(&place[start..]).1.map(|_| start)
}

pub(super) fn read(mut lines: Lines<'_>) -> Option<Found<'_>> {
    let first = lines.next()?;
    let (location, message) = first.text.split_once(MARK)?;
    let mut images = Images::default();
    let mut frames: Vec<Frame> = Vec::new();
    let mut ahead = lines;
    let mut notes = 0;
    for _ in 0..MAX_LINES {
        let Some(line) = ahead.next() else { break };
        match frame(line.text.trim(), frames.len(), &mut images) {
            Some(frame) => frames.push(frame),
            None if frames.is_empty() && notes < MAX_NOTES && head(&line.text).is_none() => {
                notes += 1;
                continue;
            }
            None => break,
        }
        lines = ahead;
    }
    if frames.is_empty() {
        let (file, line, column) = parse_location(location);
        let file = Some(file.to_owned());
        frames.push(Frame { found_by: FoundBy::CONTEXT, file, line, column, ..Frame::default() });
    }
    let thrown = Exception {
        language: Language::CPP,
        type_name: Some("undefined behavior".to_owned()),
        message: Some(message.to_owned()),
        location: Some(location.to_owned()),
        frames,
        ..Exception::default()
    };
    let mut death = exception(thrown, None, Monitor::SIGNAL);
    death.crash.exception_type = Some("UndefinedBehaviorSanitizer".to_owned());
    death.images = images.into_images();
    let arch = (!death.images.is_empty()).then_some(Arch::NATIVE);
    Some(Found { death: Death { arch, ..death }, rest: lines })
}
