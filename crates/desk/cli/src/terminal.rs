//! The terminal: its width, and a pager for long output.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::{Child, Command, Stdio};

/// The width of standard output in columns; `None` if it is not a terminal.
///
/// `COLUMNS` overrides it, even without a terminal.
pub(crate) fn width() -> Option<usize> {
    let named = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
    named
        .or_else(|| terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0)))
        .map(|width| width.clamp(40, 1000))
}

/// Whether standard output is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Standard output through `W`, whose errors name standard output.
pub(crate) struct NamedOutput<W>(pub(crate) W);

/// Returns standard output, without styles if they would not be displayed.
pub(crate) fn standard_output() -> NamedOutput<anstream::AutoStream<io::StdoutLock<'static>>> {
    NamedOutput(anstream::stdout().lock())
}

fn name_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("can't write to standard output: {error}"))
}

impl<W: Write> Write for NamedOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(name_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(name_stdout)
    }
}

/// Writes bytes to standard output.
///
/// On a terminal, characters that it interprets, which reports from elsewhere may contain, are
/// escaped in JSON, where they can only be in strings, and otherwise replaced.
pub(crate) fn print(bytes: &[u8], is_json: bool) -> io::Result<()> {
    let mut out = NamedOutput(io::stdout().lock());
    if !is_terminal() {
        out.write_all(bytes)?;
        return out.flush();
    }
    let text = String::from_utf8_lossy(bytes);
    let mut harmless = String::with_capacity(text.len());
    for character in text.chars() {
        match is_control(character) {
            true if is_json => harmless.push_str(&format!("\\u{:04x}", u32::from(character))),
            true => harmless.push(char::REPLACEMENT_CHARACTER),
            false => harmless.push(character),
        }
    }
    out.write_all(harmless.as_bytes())?;
    out.flush()
}

/// Writes a line to standard output and flushes it.
///
/// `println!` would panic if the output is closed or the disk is full.
pub(crate) fn print_line(line: impl Display) -> io::Result<()> {
    let mut out = NamedOutput(io::stdout().lock());
    writeln!(out, "{line}")?;
    out.flush()
}

/// Standard output, or a pager.
pub(crate) enum Output {
    Plain(anstream::AutoStream<io::StdoutLock<'static>>),
    Bare(io::StdoutLock<'static>),
    Paged(Pager),
}

/// A running pager.
pub(crate) struct Pager {
    child: Child,
    input: Option<anstream::AutoStream<Box<dyn Write>>>,
}

impl Output {
    /// Whether the output shows colors; if not, styles are removed, which takes time.
    pub(crate) fn has_styles(&self) -> bool {
        let choice = match self {
            Output::Plain(out) => out.current_choice(),
            Output::Bare(_) => anstream::ColorChoice::Never,
            Output::Paged(Pager { input, .. }) => {
                input.as_ref().map_or(anstream::ColorChoice::Never, anstream::AutoStream::current_choice)
            }
        };
        choice != anstream::ColorChoice::Never
    }

    /// The same output, for writers that write styles only if they are shown.
    pub(crate) fn without_styles(self) -> Output {
        match self {
            Output::Plain(out) if out.current_choice() == anstream::ColorChoice::Never => {
                Output::Bare(out.into_inner())
            }
            other => other,
        }
    }

    /// Returns standard output, on a terminal through `$PAGER` (default `less`) if that starts.
    ///
    /// An empty `$PAGER` or `cat` means no pager.
    pub(crate) fn paged() -> Output {
        let plain = || Output::Plain(anstream::stdout().lock());
        if !is_terminal() || !io::stdin().is_terminal() {
            return plain();
        }
        let pager =
            std::env::var("CORONER_PAGER").or_else(|_| std::env::var("PAGER")).unwrap_or_else(|_| "less".to_owned());
        let mut words = pager.split_whitespace();
        let Some(program) = words.next().filter(|program| *program != "cat") else { return plain() };
        let mut command = Command::new(program);
        // With these options, as git sets them, `less` exits if everything fits, shows colors, and
        // leaves the text on the screen.
        if std::env::var_os("LESS").is_none() {
            command.env("LESS", "FRX");
        }
        let started = command.args(words).stdin(Stdio::piped()).spawn();
        let Ok(mut child) = started else { return plain() };
        let colour = anstream::AutoStream::choice(&io::stdout());
        let input =
            child.stdin.take().map(|input| anstream::AutoStream::new(Box::new(input) as Box<dyn Write>, colour));
        Output::Paged(Pager { child, input })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Output::Plain(out) => out.write(bytes).map_err(name_stdout),
            Output::Bare(out) => out.write(bytes).map_err(name_stdout),
            Output::Paged(Pager { input: Some(input), .. }) => input.write(bytes),
            Output::Paged(_) => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Plain(out) => out.flush().map_err(name_stdout),
            Output::Bare(out) => out.flush().map_err(name_stdout),
            Output::Paged(Pager { input: Some(input), .. }) => input.flush(),
            Output::Paged(_) => Ok(()),
        }
    }
}

impl Drop for Pager {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Maximum characters of a column without a terminal.
///
/// A report can contain names of any length.
pub(crate) const MAX_COLUMN: usize = 400;

/// Truncates a line to at most `width` columns, and marks the truncation with `…`.
pub(crate) fn truncate(text: &str, width: Option<usize>) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_plain && width.is_none_or(|width| text.len() <= width) {
        return Cow::Borrowed(text);
    }
    let plain = |character: char| if character.is_control() || is_control(character) { '\u{fffd}' } else { character };
    let text: String = text.chars().map(plain).collect();
    let Some(width) = width else { return Cow::Owned(text) };
    if text.chars().count() <= width {
        return Cow::Owned(text);
    }
    Cow::Owned(text.chars().take(width.saturating_sub(1)).chain(['…']).collect())
}

/// Replaces the characters that a terminal or a browser interprets.
pub(crate) fn sanitize(text: &str) -> String {
    text.replace(is_control, "\u{fffd}")
}

/// Whether a terminal or a browser interprets the character.
///
/// These are control characters and those that change the text direction (`Bidi_Control` of
/// Unicode), with which text before and after them is displayed in another order.
pub(crate) fn is_control(character: char) -> bool {
    (character.is_control() && !matches!(character, '\n' | '\t'))
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
