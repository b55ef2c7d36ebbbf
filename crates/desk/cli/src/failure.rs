//! Why a command failed, for a person: what, where, and what to do next.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::terminal::is_control;

/// A text without what a terminal obeys: files' names and servers' answers are in it.
fn plain(text: &str) -> String {
    let is_obeyed = |character: &char| (character.is_control() && *character != '\n') || is_control(*character);
    text.chars().map(|character| if is_obeyed(&character) { '\u{fffd}' } else { character }).collect()
}

#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    advice: Option<String>,
    /// The server can't be reached, which holds for whatever else is to go there.
    is_unreachable: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// A failure that says what could not be done and where.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: None, is_unreachable: false, source: None }
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Marks it as one of a server that can't be reached.
    pub(crate) fn of_server(self) -> Self {
        Self { is_unreachable: true, ..self }
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        self.is_unreachable
    }

    /// Whether it is only that the reader of our output has had enough (`coroner list | head -1`).
    pub(crate) fn is_closed_pipe(&self) -> bool {
        let Some(source) = &self.source else { return false };
        let by_json = || source.downcast_ref::<serde_json::Error>()?.io_error_kind();
        let kind = source.downcast_ref::<io::Error>().map(io::Error::kind).or_else(by_json);
        kind == Some(io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn print(&self) {
        // Where nobody reads it, there is nobody to say that to.
        let _ = self.write(&mut anstream::stderr());
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let red = Style::new().fg_color(Some(AnsiColor::Red.into())).bold();
        writeln!(out, "{red}error{red:#}: {}", plain(&self.message))?;
        let mut cause = self.source.as_deref().and_then(|error| error.source());
        while let Some(error) = cause {
            // Errors of this project say their cause in their own message.
            if !self.message.contains(&error.to_string()) {
                writeln!(out, "  because: {}", plain(&error.to_string()))?;
            }
            cause = error.source();
        }
        match &self.advice {
            Some(advice) => writeln!(out, "  {}", plain(advice)),
            None => Ok(()),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), advice: None, is_unreachable: false, source: Some(Box::new(error)) }
    }
}

/// Says what was being done when an error came.
pub(crate) trait Context<T> {
    /// The value, or a failure that reads "`doing`: the error".
    fn context(self, doing: impl Display) -> Result<T, Failure>;
}

impl<T, E: Error + Send + Sync + 'static> Context<T> for Result<T, E> {
    fn context(self, doing: impl Display) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            message: format!("{doing}: {error}"),
            advice: None,
            is_unreachable: false,
            source: Some(Box::new(error)),
        })
    }
}
