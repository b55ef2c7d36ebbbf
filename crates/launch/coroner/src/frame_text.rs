//! Frames as text in a report, one JSON object per line.
//!
//! These are the frames of runtimes that walk their own stacks, and of Rust stacks where the
//! process names them itself (`system::portable`). The next launch converts them to frames.

use coroner_report::model::{Address, Frame, InlinedFrame, Report};
use coroner_report::wire::{AddressKind, FoundBy, Language};
use serde::{Deserialize, Serialize};

/// Maximum length of the frames' text in a report, in bytes.
///
/// The innermost frames are kept.
const MAX_TEXT: usize = 24 << 10;

/// Formats frames for the report: one JSON object per line.
pub(crate) fn lines<T: Serialize>(frames: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for line in frames.into_iter().map_while(|frame| serde_json::to_string(&frame).ok()) {
        if text.len() + line.len() >= MAX_TEXT {
            break;
        }
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// A frame of machine code that its process has named.
#[cfg_attr(supported, allow(dead_code, reason = "the next launch reads it everywhere"))]
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NativeText {
    /// The frame's return address.
    pub(crate) address: u64,
    #[serde(flatten)]
    pub(crate) whole: InlinedText,
    /// The functions inlined into the frame, innermost first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inlined: Vec<InlinedText>,
}

/// A function inlined into a frame of machine code.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InlinedText {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) function: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) column: Option<u32>,
}

/// A frame of a language with its own runtime.
#[derive(Deserialize)]
struct ManagedText {
    #[serde(flatten)]
    whole: InlinedText,
    in_app: bool,
}

impl From<NativeText> for Frame {
    fn from(text: NativeText) -> Self {
        let inlined = text.inlined.into_iter().map(|InlinedText { function, file, line, column }| InlinedFrame {
            function,
            file,
            line,
            column,
            ..InlinedFrame::default()
        });
        let InlinedText { function, file, line, column } = text.whole;
        Frame {
            address: Address(text.address),
            address_kind: AddressKind::RETURN,
            found_by: FoundBy::CFI,
            inlined: inlined.collect(),
            function,
            file,
            line,
            column,
            ..Frame::default()
        }
    }
}

/// Whether the frames of a language's exceptions are stored as such a text.
fn is_foreign(language: Language) -> bool {
    const FOREIGN: [Language; 7] = [
        Language::JAVASCRIPT,
        Language::CSHARP,
        Language::DART,
        Language::LUA,
        Language::PYTHON,
        Language::RUBY,
        Language::PHP,
    ];
    FOREIGN.contains(&language)
}

/// Converts the texts in a report to frames.
pub(crate) fn name_frames(report: &mut Report) {
    for thrown in &mut report.exceptions {
        let language = thrown.language;
        let Some(text) = thrown.user_info.as_deref() else { continue };
        let native = || -> Option<Vec<Frame>> {
            let read = |line: &str| serde_json::from_str::<NativeText>(line).ok().map(Frame::from);
            text.lines().map(read).collect::<Option<Vec<_>>>().filter(|frames| !frames.is_empty())
        };
        let foreign =
            || is_foreign(language).then(|| text.lines().map(|line| frame(line, language)).collect()).flatten();
        // Text in another form stays unchanged.
        if let Some(frames) = native().or_else(foreign) {
            thrown.frames = frames;
            thrown.user_info = None;
        }
    }
}

fn frame(line: &str, language: Language) -> Option<Frame> {
    let ManagedText { whole: InlinedText { function, file, line, column }, in_app } =
        serde_json::from_str(line).ok()?;
    Some(Frame {
        found_by: FoundBy::MANAGED,
        module: language.name().map(ToOwned::to_owned),
        function: Some(function?).filter(|function| !function.is_empty()),
        file,
        line,
        column,
        in_app: Some(in_app),
        ..Frame::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForeignFrame;

    #[test]
    fn the_text_of_earlier_builds_is_read_and_written() {
        let inlined = InlinedText { function: Some("inner".into()), line: Some(2), ..InlinedText::default() };
        let whole = InlinedText { file: Some("a\\b.rs".into()), ..InlinedText::default() };
        let native = NativeText { address: 7, whole, inlined: vec![inlined] };
        let text = r#"{"address":7,"file":"a\\b.rs","inlined":[{"function":"inner","line":2}]}"#;
        assert_eq!(serde_json::to_string(&native).unwrap(), text);
        assert_eq!(serde_json::from_str::<NativeText>(text).unwrap(), native);
        let managed = ForeignFrame::new("f").file("cart.js").line(1).in_app(true);
        let text = r#"{"function":"f","file":"cart.js","line":1,"column":null,"in_app":true}"#;
        assert_eq!(serde_json::to_string(&managed).unwrap(), text);
        assert!(serde_json::from_str::<NativeText>(text).is_err());
        let read = frame(text, Language::JAVASCRIPT).unwrap();
        assert_eq!(
            (read.function.as_deref(), read.line, read.column, read.in_app),
            (Some("f"), Some(1), None, Some(true))
        );
    }
}
