//! A command's error message: what failed, where, and what to do next.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use crate::terminal::sanitize;

#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    advice: Option<String>,
    /// Whether the server can't be reached, so that sending anything else there fails, too.
    is_unreachable: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl Failure {
    /// Creates a failure from a message that names the failed step and its object.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), advice: None, is_unreachable: false, source: None }
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Marks the failure as that of an unreachable server.
    pub(crate) fn into_unreachable(self) -> Self {
        Self { is_unreachable: true, ..self }
    }

    pub(crate) fn is_unreachable(&self) -> bool {
        self.is_unreachable
    }

    /// Whether the reader of standard output closed the pipe (`coroner list | head -1`).
    pub(crate) fn is_closed_pipe(&self) -> bool {
        let Some(source) = &self.source else { return false };
        let by_json = || source.downcast_ref::<serde_json::Error>()?.io_error_kind();
        let kind = source.downcast_ref::<io::Error>().map(io::Error::kind).or_else(by_json);
        kind == Some(io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn print(&self) {
        // If standard error can't be written, there is no way to report that.
        let _ = self.write(&mut anstream::stderr());
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let red = Style::new().fg_color(Some(AnsiColor::Red.into())).bold();
        writeln!(out, "{red}error{red:#}: {}", sanitize(&self.message))?;
        let mut cause = self.source.as_deref().and_then(|error| error.source());
        while let Some(error) = cause {
            // This project's errors include their cause in their message.
            if !self.message.contains(&error.to_string()) {
                writeln!(out, "  caused by: {}", sanitize(&error.to_string()))?;
            }
            cause = error.source();
        }
        match &self.advice {
            Some(advice) => writeln!(out, "  {}", sanitize(advice)),
            None => Ok(()),
        }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), advice: None, is_unreachable: false, source: Some(Box::new(error)) }
    }
}

/// Adds the failed step to an error.
pub(crate) trait Context<T> {
    /// Returns the value, or a failure with the message "`doing`: the error".
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
