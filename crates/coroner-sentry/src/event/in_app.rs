//! Which code is the app's own.

use coroner_report::model::{Report, is_runtime_code};

use super::stacktrace::Frame;

/// Where systems keep their own images.
const SYSTEM: [&str; 9] =
    ["/lib/", "/lib64/", "/usr/lib", "/usr/libexec/", "/System/", "/Library/Apple/", "/system/", "/apex/", "/vendor/"];

/// Which images are the app's own, by the paths and names of images.
///
/// The default: the program itself, and every image beside it or below its directory (for a bundle: anywhere in it), unless it
/// lies where the system keeps its own. Code of Rust's standard library, of crates from a registry, of a folder `vendor`, of C++'s
/// library and of Coroner is not the app's, though it is in its image ([`is_runtime_code`]).
///
/// A pattern matches an image with that file name, or whose path begins with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InAppRules {
    /// Images that are the app's own whatever the default says.
    pub include: Vec<String>,
    /// Images that are not, whatever the default or `include` say.
    pub exclude: Vec<String>,
}

impl InAppRules {
    /// One more image that is the app's own, by its file name or the beginning of its path.
    #[must_use]
    pub fn include(mut self, pattern: impl Into<String>) -> Self {
        self.include.push(pattern.into());
        self
    }

    /// One more image that is not the app's own.
    #[must_use]
    pub fn exclude(mut self, pattern: impl Into<String>) -> Self {
        self.exclude.push(pattern.into());
        self
    }
}

pub(super) struct InApp<'r> {
    rules: &'r InAppRules,
    program: Option<&'r str>,
    /// The program's directory, or the bundle that it is in, with a `/` at its end.
    home: Option<&'r str>,
}

impl<'r> InApp<'r> {
    pub(super) fn new(rules: &'r InAppRules, report: &'r Report) -> Self {
        let program = report.images.iter().find(|image| image.is_main).map(|image| image.path.as_str());
        Self { rules, program, home: program.and_then(home) }
    }

    pub(super) fn is(&self, frame: &Frame) -> bool {
        let Some(package) = &frame.package else { return false };
        let named = |patterns: &[String]| patterns.iter().any(|pattern| matches(package, pattern));
        if named(&self.rules.exclude) {
            return false;
        }
        if named(&self.rules.include) {
            return true;
        }
        let is_program = self.program == Some(package.as_str());
        let beside = self.home.is_some_and(|home| package.starts_with(home));
        let systems = SYSTEM.iter().any(|system| package.starts_with(system));
        (is_program || beside && !systems) && !is_runtime_code(frame.function.as_deref(), frame.filename.as_deref())
    }
}

fn matches(path: &str, pattern: &str) -> bool {
    !pattern.is_empty() && (path.rsplit('/').next() == Some(pattern) || path.starts_with(pattern))
}

/// The directory of everything that came with the program.
fn home(program: &str) -> Option<&str> {
    if let Some(end) = program.find(".app/") {
        return program.get(..end + ".app/".len());
    }
    let directory = &program[..=program.rfind('/')?];
    // A program in /usr/bin came with the system, or with much else.
    let shared = ["/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/"].contains(&directory);
    (!shared).then_some(directory)
}
