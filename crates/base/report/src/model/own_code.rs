//! The crate and the package that a Rust program was built from, by its `main`.
//!
//! A program that was installed with `cargo install`, or built in a vendored, Bazel or Nix tree or
//! with remapped paths, has the same kind of paths for its own code as for its dependencies.

use super::{Frame, Report};

/// The program's own crate, and the folder of its package.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OwnCode<'r> {
    /// Name of the crate with `main`.
    name: Option<&'r str>,
    /// Folder of the package, with a slash at its end.
    root: Option<&'r str>,
}

impl<'r> OwnCode<'r> {
    /// Finds the `main` that Rust's runtime calls. If no stack has it, the program's file name is
    /// that of its crate.
    pub(super) fn new(report: &'r Report, program: Option<&'r str>) -> Self {
        let threads = report.threads.iter().filter(|thread| thread.crashed || thread.main);
        let stacks = threads.map(|thread| thread.frames.as_slice());
        let thrown = report.exceptions.iter().map(|exception| exception.frames.as_slice());
        if let Some((name, file)) = stacks.chain(thrown).find_map(main) {
            return OwnCode { name: Some(name), root: file.and_then(package_root) };
        }
        OwnCode { name: program.and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty()), root: None }
    }

    /// Whether a function is the program's own; `None` if its name and file don't show it.
    pub(super) fn is(&self, function: Option<&str>, file: Option<&str>) -> Option<bool> {
        let file = file.filter(|file| file.ends_with(".rs"))?;
        let of = function.and_then(crate_name)?;
        if self.name.is_some_and(|name| is_same(name, of)) || self.root.is_some_and(|root| file.starts_with(root)) {
            return Some(true);
        }
        is_package_of(of, file).then_some(false)
    }
}

/// Returns the crate and the file of the `main` in a stack that Rust's runtime called.
fn main(frames: &[Frame]) -> Option<(&str, Option<&str>)> {
    let starts = |(function, _): (Option<&str>, _)| function.is_some_and(|name| name.contains("lang_start"));
    if !frames.iter().rev().flat_map(functions).any(starts) {
        return None;
    }
    frames.iter().rev().flat_map(functions).find_map(|(function, file)| {
        let name = crate_name(function?)?;
        // `paint::main`, `paint[0123456789abcdef]::main`
        let rest = function?.strip_prefix(name)?;
        let rest = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(rest, |(_, rest)| rest);
        (without_hash(rest) == "::main").then_some((name, file))
    })
}

/// Returns a path without the hash that Rust's older mangling appends.
fn without_hash(path: &str) -> &str {
    path.rsplit_once("::h").filter(|(_, hash)| hash.len() == 16).map_or(path, |(path, _)| path)
}

fn functions(frame: &Frame) -> impl Iterator<Item = (Option<&str>, Option<&str>)> {
    let inlined = frame.inlined.iter().map(|inlined| (inlined.function.as_deref(), inlined.file.as_deref()));
    inlined.chain([(frame.function.as_deref(), frame.file.as_deref())])
}

/// Returns the crate of a function, or of the type that `<…>` implements a trait for.
fn crate_name(function: &str) -> Option<&str> {
    let path = function.trim_start_matches(['<', '&', '*', '(', '[']);
    let path = path.strip_prefix("mut ").or_else(|| path.strip_prefix("dyn ")).unwrap_or(path);
    let end = path.find(|character: char| !character.is_alphanumeric() && character != '_')?;
    let is_path = path[end..].starts_with("::") || path[end..].starts_with('[');
    (is_path && end > 0).then(|| &path[..end])
}

/// Whether a file or package name, which may contain hyphens, is that of a crate.
fn is_same(name: &str, of: &str) -> bool {
    let plain = |byte: u8| if byte == b'-' { b'_' } else { byte };
    name.len() == of.len() && name.bytes().map(plain).eq(of.bytes().map(plain))
}

/// Returns the folder of the package with this source file; of a checkout, its root.
fn package_root(file: &str) -> Option<&str> {
    const CHECKOUTS: &str = "/git/checkouts/";
    if let Some(at) = file.find(CHECKOUTS) {
        // `NAME-HASH/REVISION/`
        let begin = at + CHECKOUTS.len();
        let end = file[begin..].match_indices('/').nth(1)?.0;
        return file.get(..=begin + end);
    }
    let end = file.rfind("/src/").or_else(|| file.rfind("/examples/"))?;
    file.get(..=end).filter(|root| root.len() > 1)
}

/// Whether a path has a folder of the crate's package, `NAME-VERSION`, as registries make them.
///
/// Build systems may put more before the name: `crates_io__serde-1.0.219`.
fn is_package_of(name: &str, file: &str) -> bool {
    file.split('/').any(|folder| {
        let Some((package, version)) = folder.rsplit_once('-') else { return false };
        let is_version = version.starts_with(|digit: char| digit.is_ascii_digit()) && version.contains('.');
        let end = package.len().checked_sub(name.len()).and_then(|start| package.get(start..));
        is_version && end.is_some_and(|end| is_same(end, name))
    })
}
