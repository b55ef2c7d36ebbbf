//! Exceptions of languages whose runtime walks its own stacks: JavaScript, C#, Dart, Lua, Python, Ruby, PHP. They are reported with the frames that the runtime
//! has, which go into the report as a text that the next launch reads. So are Rust's own stacks, where the process names them itself
//! (`system::portable`).

use crate::system::capture::exception::{self, Ending, Threads};
use coroner_process::registers::Registers;
use coroner_report::model::{Address, Frame, InlinedFrame, Report, Value};
use coroner_report::wire::{AddressKind, Exception, FoundBy, Language, Monitor};
use serde::Serialize;

use crate::delivery::own_run;
use crate::exception::current_registers;
use crate::json::{self, Json, field, json_struct, object};

/// An exception of a language with a runtime of its own, for [`report_foreign_exception`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ForeignException<'a> {
    /// The language whose exception it is.
    pub language: Language,
    /// Its type, such as `TypeError`.
    pub kind: &'a str,
    /// What it says of itself; may be empty.
    pub message: &'a str,
    /// Its stack, innermost first, as the runtime has it.
    pub frames: &'a [ForeignFrame<'a>],
    /// Whether the native stacks of the other threads are in the report, for which they stand still for some milliseconds.
    pub all_threads: bool,
    /// Whether the process ends of it. The caller then has it ended, as the runtime does.
    pub fatal: bool,
}

impl<'a> ForeignException<'a> {
    /// An exception of that language, type and message with its stack, that the app survives; without the native stacks of other threads.
    pub fn new(language: Language, kind: &'a str, message: &'a str, frames: &'a [ForeignFrame<'a>]) -> Self {
        Self { language, kind, message, frames, all_threads: false, fatal: false }
    }

    /// With the native stacks of the other threads, for which they stand still for some milliseconds.
    #[must_use]
    pub fn all_threads(self, all_threads: bool) -> Self {
        Self { all_threads, ..self }
    }

    /// The process ends of it. The caller then has it ended, as the runtime does.
    #[must_use]
    pub fn fatal(self, fatal: bool) -> Self {
        Self { fatal, ..self }
    }
}

/// A frame of a [`ForeignException`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ForeignFrame<'a> {
    /// The function; may be empty.
    pub function: &'a str,
    /// Its source file, if it is known.
    pub file: Option<&'a str>,
    /// The line in it, from 1, if it is known.
    pub line: Option<u32>,
    /// The column, from 1, if it is known.
    pub column: Option<u32>,
    /// Whether it is the app's own code, and not that of the runtime or a library.
    pub in_app: bool,
}

impl<'a> ForeignFrame<'a> {
    /// A frame of that function, which may be empty, of the runtime or a library.
    pub fn new(function: &'a str) -> Self {
        Self { function, ..Self::default() }
    }

    /// Its source file.
    #[must_use]
    pub fn file(self, file: &'a str) -> Self {
        Self { file: Some(file), ..self }
    }

    /// The line in it, from 1.
    #[must_use]
    pub fn line(self, line: u32) -> Self {
        Self { line: Some(line), ..self }
    }

    /// The column, from 1.
    #[must_use]
    pub fn column(self, column: u32) -> Self {
        Self { column: Some(column), ..self }
    }

    /// Whether it is the app's own code.
    #[must_use]
    pub fn in_app(self, in_app: bool) -> Self {
        Self { in_app, ..self }
    }
}

/// Longest text of frames that fits into a report, in bytes. Of more frames the innermost are kept.
const MAX_TEXT: usize = 24 << 10;

/// Reports an exception of another language that its runtime caught, or ends the process by: a report as of a crash, with the exception's frames
/// and the native stacks. Unless it is fatal, the app goes on, and the report is delivered as that of
/// [`report_exception`](crate::report_exception).
///
/// `false` if there is no report: Coroner is not installed, this thread is dying already, or, unless it is fatal, there are more than
/// [`Limits::reports_per_hour`](crate::Limits::reports_per_hour) allows.
///
/// ```no_run
/// use coroner::{ForeignException, ForeignFrame, Language};
///
/// let frame = |function, line| ForeignFrame::new(function).file("cart.js").line(line).in_app(true);
/// let frames = [frame("total", 41), frame("checkout", 12)];
/// let thrown = ForeignException::new(Language::JAVASCRIPT, "TypeError", "cart is undefined", &frames);
/// coroner::report_foreign_exception(&thrown);
/// ```
#[inline(never)]
pub fn report_foreign_exception(thrown: &ForeignException<'_>) -> bool {
    report_foreign_exception_above(thrown, &current_registers())
}

/// For bindings, as [`report_exception_above`](crate::report_exception_above).
#[doc(hidden)]
pub fn report_foreign_exception_above(thrown: &ForeignException<'_>, registers: &Registers) -> bool {
    let frames = lines(&mut thrown.frames.iter().map(|frame| frame.to_value()));
    let exception = Exception {
        language: thrown.language,
        type_name: Some(thrown.kind.as_bytes()),
        message: Some(thrown.message.as_bytes()).filter(|message| !message.is_empty()),
        tid: crate::system::process::threads::this_thread() as u64,
        location: None,
        frames: &[],
        user_info: Some(frames.as_bytes()),
    };
    let threads = if thrown.all_threads { Threads::AsInstalled } else { Threads::This };
    let ending = if thrown.fatal { Ending::Fatal } else { Ending::NonFatal };
    let reported = exception::report_with(threads, registers, Monitor::USER, &[exception], ending);
    if reported && !thrown.fatal {
        own_run::survived();
    }
    reported
}

/// Frames as the report has them: an object of JSON a line.
pub(crate) fn lines(frames: &mut dyn Iterator<Item = Value>) -> String {
    let mut text = String::new();
    for frame in frames {
        let line = json::text(&frame);
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
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NativeText {
    /// Its return address.
    pub(crate) address: u64,
    pub(crate) whole: InlinedText,
    /// What was inlined into it, innermost first.
    pub(crate) inlined: Vec<InlinedText>,
}

/// A function of such a frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InlinedText {
    pub(crate) function: Option<String>,
    pub(crate) file: Option<String>,
    pub(crate) line: Option<u32>,
    pub(crate) column: Option<u32>,
}

json_struct!(InlinedText { function "function" omitted, file "file" omitted, line "line" omitted, column "column" omitted });

/// The function's fields beside its own.
impl Json for NativeText {
    fn to_value(&self) -> Value {
        let mut value = self.whole.to_value();
        if let Value::Map(pairs) = &mut value {
            pairs.insert(0, ("address".into(), self.address.to_value()));
            if !self.inlined.is_empty() {
                pairs.push(("inlined".into(), self.inlined.to_value()));
            }
        }
        value
    }

    fn of_value(value: &Value) -> Option<Self> {
        Some(Self {
            address: field(value, "address").as_u64()?,
            whole: Json::of_value(value)?,
            inlined: Json::of_value(field(value, "inlined"))?,
        })
    }
}

impl ForeignFrame<'_> {
    pub(crate) fn to_value(self) -> Value {
        let text = |text: Option<&str>| text.map_or(Value::Null, Value::from);
        let fields = [
            ("function", self.function.into(), false),
            ("file", text(self.file), false),
            ("line", self.line.to_value(), false),
            ("column", self.column.to_value(), false),
            ("in_app", self.in_app.to_value(), false),
        ];
        object(&mut fields.into_iter())
    }
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

/// Whether the exceptions of a language have their frames as such a text.
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

/// Makes frames of the texts in a report that was read.
pub(crate) fn name_frames(report: &mut Report) {
    for thrown in &mut report.exceptions {
        let language = thrown.language;
        let Some(text) = thrown.user_info.as_deref() else { continue };
        let native = || -> Option<Vec<Frame>> {
            let read = |line: &str| NativeText::of_json(line.as_bytes()).map(Frame::from);
            text.lines().map(read).collect::<Option<Vec<_>>>().filter(|frames| !frames.is_empty())
        };
        let foreign =
            || is_foreign(language).then(|| text.lines().map(|line| frame(line, language)).collect()).flatten();
        // What was not written by this stays what it was.
        if let Some(frames) = native().or_else(foreign) {
            thrown.frames = frames;
            thrown.user_info = None;
        }
    }
}

fn frame(line: &str, language: Language) -> Option<Frame> {
    let value = json::parse(line.as_bytes())?;
    let InlinedText { function, file, line, column } = Json::of_value(&value)?;
    let Value::Bool(in_app) = *field(&value, "in_app") else { return None };
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
