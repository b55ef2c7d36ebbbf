//! Decides which code is the app's own, for titles, signatures and events alike.

use super::own_code::OwnCode;
use super::{Frame, Report, is_runtime_code};
use crate::wire::{Language, Os};

/// Directories in which systems keep their own images.
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

/// Rules for which images are the app's own, by their paths and file names.
///
/// By default these are the program itself and every image beside it or below its directory: for a
/// bundle, anywhere in it; for a program in a `bin` directory, below its parent. Images in the
/// system's directories are excluded. If the program itself is in one of the system's program
/// directories (an interpreter, say), every image outside the system's directories is the app's
/// own. Rust's standard library, crates from a registry or a `vendor` directory, the C++ library
/// and Coroner are never the app's own code, although they may be in its image
/// ([`is_runtime_code`]); the crate and the package with a Rust program's `main` always are,
/// wherever they were built. On Android, images below `/data` are the app's own, and Java code
/// whose package begins like the app's ID.
///
/// A pattern matches an image with that file name, or whose path begins with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InAppRules {
    /// Images that are the app's own, overriding the default.
    pub include: Vec<String>,
    /// Images that are not the app's own, overriding the default and `include`.
    pub exclude: Vec<String>,
}

impl InAppRules {
    /// Adds an image that is the app's own, by its file name or the beginning of its path.
    #[must_use]
    pub fn include(mut self, pattern: impl Into<String>) -> Self {
        self.include.push(pattern.into());
        self
    }

    /// Adds an image that is not the app's own.
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
    own: OwnCode<'r>,
    /// The first two parts of the app's ID: `com.example`.
    java_package: Option<&'r str>,
}

/// Location of the files that came with the program.
#[derive(Clone, Copy, Debug)]
enum Home<'r> {
    /// Below this directory, which ends with `/`.
    Below(&'r str),
    /// In no particular place: the program is one of the system's.
    Elsewhere,
    /// The program is one of Android's, which runs the app's libraries.
    Data,
    /// The program is not known.
    Unknown,
}

impl<'r> InApp<'r> {
    /// Applies `rules` to the images of `report`.
    pub fn new(rules: &'r InAppRules, report: &'r Report) -> Self {
        let program = report.images.iter().find(|image| image.is_main).map(|image| plain(&image.path));
        let home = if report.header.os == Os::ANDROID { Home::Data } else { program.map_or(Home::Unknown, home) };
        let app = report.run.as_ref().and_then(|run| run.app.id.as_deref());
        let java_package = app.map(|id| id.match_indices('.').nth(1).map_or(id, |(end, _)| &id[..end]));
        Self { rules, program, home, own: OwnCode::new(report, program), java_package }
    }

    /// Whether a function of the app's image belongs to a runtime or another dependency.
    ///
    /// As [`is_runtime_code`], but the program's own crate never does, and another crate does where
    /// its file is in a folder of its package.
    pub fn is_runtime(&self, function: Option<&str>, file: Option<&str>) -> bool {
        self.own.is(function, file).map_or_else(|| is_runtime_code(function, file), |own| !own)
    }

    /// Whether a function of the image at `package`, from the source `file`, is the app's own.
    ///
    /// Pass `None` for what is not known.
    pub fn is(&self, package: Option<&str>, function: Option<&str>, file: Option<&str>) -> bool {
        let Some(package) = package.map(plain) else { return false };
        if package == Language::JAVA.name().unwrap_or_default() {
            let is_of = |prefix: &str| function.and_then(|name| name.strip_prefix(prefix)?.strip_prefix('.')).is_some();
            return self.java_package.is_some_and(is_of);
        }
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
                // An image without a path is the kernel's (`[vdso]`) or code without a file.
                Home::Elsewhere => package.starts_with(['/', '~']) && !is_systems() && !is_shared(directory(package)),
                Home::Data => package.starts_with("/data/"),
                Home::Unknown => false,
            };
        is_own && !self.is_runtime(function, file)
    }

    /// Whether the non-inlined function of `frame` is the app's own. [`Frame::in_app`] takes
    /// precedence.
    pub fn is_frame(&self, frame: &Frame) -> bool {
        let function = frame.function.as_deref().or(frame.raw_function.as_deref());
        frame.in_app.unwrap_or_else(|| self.is(frame.module.as_deref(), function, frame.file.as_deref()))
    }

    /// Returns the functions that a frame stands for, innermost first, each with its in-app flag.
    ///
    /// The inlined functions come first, then the frame's own.
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
    /// Name of the function.
    pub name: Option<&'f str>,
    /// Source file of the function.
    pub file: Option<&'f str>,
    /// Line in the source file.
    pub line: Option<u32>,
    /// Column in the line.
    pub column: Option<u32>,
    /// Whether the function is the app's own.
    pub in_app: bool,
    /// Whether the function was inlined into the next one.
    pub is_inlined: bool,
}

fn matches(path: &str, pattern: &str) -> bool {
    !pattern.is_empty() && (path.rsplit('/').next() == Some(pattern) || path.starts_with(pattern))
}

/// Returns a path without the `/private` through which Apple's systems reach `/var` and `/tmp`.
fn plain(path: &str) -> &str {
    path.strip_prefix("/private").filter(|rest| rest.starts_with("/var/") || rest.starts_with("/tmp/")).unwrap_or(path)
}

/// Returns the path up to and including its last `/`.
fn directory(path: &str) -> &str {
    &path[..path.rfind('/').map_or(0, |slash| slash + 1)]
}

/// Whether a directory holds the system's programs, or much else.
fn is_shared(directory: &str) -> bool {
    ["/", "/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/local/bin/"].contains(&directory)
}

/// Finds the directory with the files that came with the program.
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
