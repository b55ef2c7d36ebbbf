//! The files of one crate, and which of them import which others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Maximum length of a chain of re-exports.
const MAX_REEXPORTS: usize = 8;

/// Folders and files for one system.
const SYSTEMS: [&str; 4] = ["darwin", "linux", "portable", "windows"];

/// A path in the source, as its identifiers.
type Segments = Vec<String>;

/// A source file.
pub(crate) struct SourceFile {
    /// Relative to `src`.
    pub(crate) path: PathBuf,
    module: Segments,
}

/// A module: a file, or a block in one.
#[derive(Default)]
struct Module {
    file: usize,
    /// Names that it imports or re-exports. A name has several paths if each system has its own.
    names: BTreeMap<String, Vec<Segments>>,
    /// Paths that its code contains.
    paths: Vec<Segments>,
}

/// The sources of one crate.
pub(crate) struct CrateSources {
    files: Vec<SourceFile>,
    modules: BTreeMap<Segments, Module>,
}

impl CrateSources {
    /// Reads all files below `src`, except tests.
    ///
    /// # Errors
    /// An error if a file can't be read, or is not Rust.
    pub(crate) fn read(src: &Path) -> anyhow::Result<Self> {
        let mut paths = Vec::new();
        collect_sources(src, &mut paths)?;
        paths.sort();
        let mut sources = CrateSources { files: Vec::new(), modules: BTreeMap::new() };
        for path in paths {
            let text = fs::read_to_string(&path).with_context(|| format!("can't read `{}`", path.display()))?;
            let tokens: TokenStream =
                text.parse().map_err(|error| anyhow::anyhow!("can't parse `{}`: {error}", path.display()))?;
            let path = path.strip_prefix(src)?.to_owned();
            let module = module_of(&path);
            let file = sources.files.len();
            sources.files.push(SourceFile { path, module: module.clone() });
            sources.add(file, &module, tokens);
        }
        Ok(sources)
    }

    pub(crate) fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Returns the pairs (importing file, imported file).
    ///
    /// Pairs of a module and its own children are left out.
    pub(crate) fn imports(&self) -> BTreeSet<(usize, usize)> {
        let mut imports = BTreeSet::new();
        for (name, module) in &self.modules {
            let named = module.names.values().flatten().chain(&module.paths);
            for to in named.flat_map(|path| self.resolve(name, path, 0)) {
                let (from, to) = (module.file, to);
                let (importing, imported) = (&self.files[from].module, &self.files[to].module);
                let is_own_child = importing.starts_with(imported) || imported.starts_with(importing);
                if !is_own_child && !are_of_different_systems(importing, imported) {
                    imports.insert((from, to));
                }
            }
        }
        imports
    }

    fn add(&mut self, file: usize, name: &Segments, tokens: TokenStream) {
        self.modules.entry(name.clone()).or_insert_with(|| Module { file, ..Module::default() });
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            let ident = ident_at(&tokens, at);
            match (ident.as_deref(), &tokens[at]) {
                (Some("mod"), _) if matches!(tokens.get(at + 2), Some(TokenTree::Group(_))) => {
                    if let (Some(child), Some(TokenTree::Group(body))) = (ident_at(&tokens, at + 1), tokens.get(at + 2))
                        && child != "tests"
                    {
                        let mut name = name.clone();
                        name.push(child);
                        self.add(file, &name, body.stream());
                    }
                    at += 3;
                }
                (Some("use"), _) => {
                    let mut names = Vec::new();
                    at = read_use(&tokens, at + 1, &Vec::new(), &mut names);
                    let module = self.modules.entry(name.clone()).or_default();
                    for (alias, path) in names {
                        module.names.entry(alias).or_default().push(path);
                    }
                }
                (Some(_), _) if is_path_separator(&tokens, at + 1) && !follows_separator(&tokens, at) => {
                    let (path, next) = read_path(&tokens, at);
                    self.modules.entry(name.clone()).or_default().paths.push(path);
                    at = next;
                }
                (_, TokenTree::Group(group)) => {
                    self.add(file, name, group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Returns the files in which the item that `path` names in `module` may be defined.
    fn resolve(&self, module: &Segments, path: &[String], depth: usize) -> BTreeSet<usize> {
        let Some((first, rest)) = path.split_first().filter(|_| depth < MAX_REEXPORTS) else { return BTreeSet::new() };
        let (mut at, mut rest) = match first.as_str() {
            "crate" => (Vec::new(), rest),
            "self" => (module.clone(), rest),
            "super" => (module[..module.len().saturating_sub(1)].to_vec(), rest),
            _ if self.child(module, first).is_some() => (module.clone(), path),
            name => return self.resolve_name(module, name, rest, depth),
        };
        while let Some((name, after)) = rest.split_first() {
            if name == "super" {
                at.pop();
            } else if let Some(child) = self.child(&at, name) {
                at = child;
            } else if self.modules.get(&at).is_some_and(|module| module.names.contains_key(name)) {
                return self.resolve_name(&at, name, after, depth);
            } else {
                break;
            }
            rest = after;
        }
        self.modules.get(&at).map(|module| module.file).into_iter().collect()
    }

    fn resolve_name(&self, module: &Segments, name: &str, rest: &[String], depth: usize) -> BTreeSet<usize> {
        let targets = self.modules.get(module).and_then(|module| module.names.get(name));
        let targets = targets.into_iter().flatten().filter(|target| target.first().is_some_and(|first| first != name));
        targets.flat_map(|target| self.resolve(module, &[target, rest].concat(), depth + 1)).collect()
    }

    fn child(&self, module: &Segments, name: &str) -> Option<Segments> {
        let mut child = module.clone();
        child.push(name.to_owned());
        self.modules.contains_key(&child).then_some(child)
    }
}

/// Whether the modules are never compiled together.
///
/// `crate::os` in a system's folder is that system's.
fn are_of_different_systems(one: &[String], other: &[String]) -> bool {
    let system = |module: &[String]| module.iter().find(|name| SYSTEMS.contains(&name.as_str())).cloned();
    system(one).zip(system(other)).is_some_and(|(one, other)| one != other)
}

fn collect_sources(folder: &Path, into: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("can't list `{}`", folder.display()))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            collect_sources(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// Returns a file's module, given its path below `src`.
fn module_of(path: &Path) -> Segments {
    let mut module: Segments = path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        module.pop();
    }
    module
}

fn ident_at(tokens: &[TokenTree], at: usize) -> Option<String> {
    match tokens.get(at)? {
        TokenTree::Ident(ident) => Some(ident.to_string()),
        _ => None,
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, character: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    is_punct(tokens, at, ':') && is_punct(tokens, at + 1, ':')
}

fn follows_separator(tokens: &[TokenTree], at: usize) -> bool {
    at >= 2 && is_path_separator(tokens, at - 2)
}

/// Reads `a::b::c` starting at index `at`; returns it and the index after it.
fn read_path(tokens: &[TokenTree], mut at: usize) -> (Segments, usize) {
    let mut path = Segments::new();
    while let Some(ident) = ident_at(tokens, at) {
        path.push(ident);
        at += 1;
        if !is_path_separator(tokens, at) {
            break;
        }
        at += 2;
    }
    (path, at)
}

/// Reads a `use` tree below `prefix`, up to a comma or semicolon; returns the index after it.
fn read_use(tokens: &[TokenTree], at: usize, prefix: &Segments, into: &mut Vec<(String, Segments)>) -> usize {
    let (path, mut at) = read_path(tokens, at);
    let mut whole = [prefix.as_slice(), &path].concat();
    if let Some(TokenTree::Group(group)) = tokens.get(at).filter(|_| whole.len() > prefix.len() || prefix.is_empty())
        && group.delimiter() == Delimiter::Brace
    {
        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
        let mut place = 0;
        while place < inner.len() {
            place = read_use(&inner, place, &whole, into) + 1;
        }
        return at + 1;
    }
    if whole.last().is_some_and(|last| last == "self") && whole.len() > 1 {
        whole.pop();
    }
    let mut alias = whole.last().cloned();
    if ident_at(tokens, at).as_deref() == Some("as") {
        alias = ident_at(tokens, at + 1).or(alias);
        at += 2;
    }
    if is_punct(tokens, at, '*') {
        at += 1;
    }
    if let Some(alias) = alias.filter(|_| !path.is_empty()) {
        into.push((alias, whole));
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cycles::cycles;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let sources = CrateSources::read(folder.path()).unwrap();
        let name = |file: usize| sources.files()[file].path.display().to_string();
        let cycles = cycles(sources.files().len(), &sources.imports());
        cycles.into_iter().map(|cycle| cycle.into_iter().map(name).collect()).collect()
    }

    #[test]
    fn two_files_that_import_each_other_are_a_cycle() {
        let files = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "fn f() { super::a::f(); }")];
        assert_eq!(found(&files), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn a_module_and_its_children_are_not_a_cycle() {
        let files = [("lib.rs", "mod a;"), ("a/mod.rs", "mod b; use b::B;"), ("a/b.rs", "use super::A;")];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn re_exports_and_renamed_modules_are_followed() {
        let files = [
            ("lib.rs", "mod a; mod linux; #[cfg(linux)] use linux as os; pub use a::A;"),
            ("a.rs", "use crate::os; fn f() { os::b::f(); }"),
            ("linux/mod.rs", "pub mod b;"),
            ("linux/b.rs", "use crate::{A, other::{self, X}};"),
        ];
        assert_eq!(found(&files), [["a.rs", "linux/b.rs"]]);
    }

    #[test]
    fn three_files_through_a_macro_are_a_cycle_and_tests_are_none() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "fn f() { m!(crate::b::f()); } mod tests { use crate::c::C; }"),
            ("b.rs", "use super::c;"),
            ("c.rs", "use crate::a::{f, g};"),
            ("b/tests.rs", "use crate::a;"),
        ];
        assert_eq!(found(&files), [["a.rs", "b.rs", "c.rs"]]);
        let without = [files[0], ("a.rs", "mod tests { use crate::b; }"), files[2], files[3]];
        assert!(found(&without).is_empty());
    }
}
