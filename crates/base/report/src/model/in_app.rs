//! Which code is the app's own: the one rule of titles, signatures and events.

use super::{Frame, Report, is_runtime_code};

/// Where systems keep their own images.
const SYSTEM: [&str; 10] = [
    "/lib/",
    "/lib64/",
    "/usr/lib",
    "/usr/libexec/",
    "/System/",
    "/Library/Apple/",
    "/system/",
    "/apex/",
    "/vendor/",
    "/nix/store/",
];

/// Which images are the app's own, by the paths and names of images.
///
/// The default: the program itself, and every image beside it or below its directory (for a bundle: anywhere in it; for a program
/// in a folder `bin`: below what holds that), unless it lies where the system keeps its own. Of a program that lies where the system keeps its
/// programs (an interpreter, say), every image that does not. Code of Rust's standard library, of crates from a registry, of
/// a folder `vendor`, of C++'s library and of Coroner is not the app's, though it is in its image ([`is_runtime_code`]).
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

/// The rules as they apply to one report.
#[derive(Clone, Copy, Debug)]
pub struct InApp<'r> {
    rules: &'r InAppRules,
    program: Option<&'r str>,
    home: Home<'r>,
}

/// Where lies what came with the program.
#[derive(Clone, Copy, Debug)]
enum Home<'r> {
    /// In this directory, with a `/` at its end.
    Below(&'r str),
    /// Nowhere in particular: the program is one of the system's.
    Elsewhere,
    /// The program is not known.
    Unknown,
}

impl<'r> InApp<'r> {
    /// The `rules` for the images of `report`.
    pub fn new(rules: &'r InAppRules, report: &'r Report) -> Self {
        let program = report.images.iter().find(|image| image.is_main).map(|image| image.path.as_str());
        Self { rules, program, home: program.map_or(Home::Unknown, home) }
    }

    /// Whether a function of the image at `package`, from the source `file`, is the app's own. What is not known of it is `None`.
    pub fn is(&self, package: Option<&str>, function: Option<&str>, file: Option<&str>) -> bool {
        let Some(package) = package else { return false };
        let named = |patterns: &[String]| patterns.iter().any(|pattern| matches(package, pattern));
        if named(&self.rules.exclude) {
            return false;
        }
        if named(&self.rules.include) {
            return true;
        }
        let is_systems = || SYSTEM.iter().any(|system| package.starts_with(system));
        let is_own = self.program == Some(package)
            || match self.home {
                Home::Below(home) => package.starts_with(home) && !is_systems(),
                // What has no path is the kernel's (`[vdso]`) or code without a file.
                Home::Elsewhere => package.starts_with(['/', '~']) && !is_systems() && !is_shared(directory(package)),
                Home::Unknown => false,
            };
        is_own && !is_runtime_code(function, file)
    }

    /// Whether the function of `frame` that was not inlined is the app's own. What the frame itself says ([`Frame::in_app`]) comes first.
    pub fn is_frame(&self, frame: &Frame) -> bool {
        let function = frame.function.as_deref().or(frame.raw_function.as_deref());
        frame.in_app.unwrap_or_else(|| self.is(frame.module.as_deref(), function, frame.file.as_deref()))
    }

    /// The functions that a frame stands for, the innermost first: those that were inlined, then its own; each with whether it is the app's.
    pub fn functions<'f>(&self, frame: &'f Frame) -> impl Iterator<Item = Function<'f>> {
        let (rules, module) = (*self, frame.module.as_deref());
        let inlined = frame.inlined.iter().map(move |inlined| {
            let name = inlined.function.as_deref().or(inlined.raw_function.as_deref());
            let (file, line, column) = (inlined.file.as_deref(), inlined.line, inlined.column);
            let in_app = frame.in_app.unwrap_or_else(|| rules.is(module, name, file));
            Function { name, file, line, column, in_app, is_inlined: true }
        });
        let name = frame.function.as_deref().or(frame.raw_function.as_deref());
        let (file, line, column) = (frame.file.as_deref(), frame.line, frame.column);
        inlined.chain([Function { name, file, line, column, in_app: rules.is_frame(frame), is_inlined: false }])
    }
}

/// A function that a frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function<'f> {
    /// Its name.
    pub name: Option<&'f str>,
    /// Its source file.
    pub file: Option<&'f str>,
    /// The line in it.
    pub line: Option<u32>,
    /// The column of the line.
    pub column: Option<u32>,
    /// Whether it is the app's own.
    pub in_app: bool,
    /// Whether it was inlined into the next one.
    pub is_inlined: bool,
}

fn matches(path: &str, pattern: &str) -> bool {
    !pattern.is_empty() && (path.rsplit('/').next() == Some(pattern) || path.starts_with(pattern))
}

/// The path up to its last `/`, with that.
fn directory(path: &str) -> &str {
    &path[..path.rfind('/').map_or(0, |slash| slash + 1)]
}

/// Whether a directory holds programs that came with the system, or with much else.
fn is_shared(directory: &str) -> bool {
    ["/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/"].contains(&directory)
}

/// Where everything lies that came with the program.
fn home(program: &str) -> Home<'_> {
    if let Some(end) = program.find(".app/") {
        return Home::Below(&program[..end + ".app/".len()]);
    }
    let own = directory(program);
    match own {
        "" => Home::Unknown,
        _ if is_shared(own) || SYSTEM.iter().any(|system| own.starts_with(system)) => Home::Elsewhere,
        // `/opt/paint/bin/paint` has its plugins in `/opt/paint/lib`.
        _ => {
            Home::Below(own.strip_suffix("bin/").filter(|above| above.ends_with('/') && above.len() > 1).unwrap_or(own))
        }
    }
}
