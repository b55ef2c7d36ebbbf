//! Stack sizes in the lists: a number of bytes, or a constant in Coroner's sources.

use std::fs;

use anyhow::{Context, bail};

/// Parses a stack size in bytes.
///
/// The forms are `4096`, `path/in/the/workspace.rs:CONSTANT`, and either with a factor,
/// `3*path.rs:CONSTANT`.
///
/// # Errors
/// An error if there is no such constant, or its value is more than a product or shift of numbers.
pub(super) fn parse(text: &str) -> anyhow::Result<i64> {
    if let Some((factor, rest)) = text.split_once('*') {
        return Ok(number(factor)? * parse(rest)?);
    }
    let Some((file, name)) = text.rsplit_once(':') else { return number(text) };
    let path = toolbox::tools::workspace_root().join(file);
    let source = fs::read_to_string(&path).with_context(|| format!("reading {file}"))?;
    let declared = source.lines().find_map(|line| {
        let (before, after) = line.split_once(&format!("const {name}:"))?;
        let is_declaration = before.trim().is_empty() || before.trim_start().starts_with("pub");
        is_declaration.then(|| after.split_once('=')).flatten()
    });
    let (_, value) = declared.with_context(|| format!("{file} declares no constant {name}: moved, or renamed"))?;
    evaluate(value.split(';').next().unwrap_or(value).trim())
}

fn evaluate(value: &str) -> anyhow::Result<i64> {
    if let Some((number_, shift)) = value.split_once("<<") {
        return Ok(number(number_)? << number(shift)?);
    }
    value.split('*').map(number).product()
}

fn number(text: &str) -> anyhow::Result<i64> {
    let digits = text.trim().replace('_', "");
    match digits.parse() {
        Ok(number) => Ok(number),
        Err(_) => bail!("not a number: {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_constants() {
        assert_eq!(parse("4_096").unwrap(), 4096);
        assert_eq!(parse("3*1024").unwrap(), 3072);
        assert_eq!(evaluate("128 << 10").unwrap(), 128 << 10);
        assert_eq!(evaluate("16 * 1024").unwrap(), 16 << 10);
        assert!(evaluate("page_size()").is_err());
        assert!(parse("tools/signal-safety/src/size.rs:NOT_THERE").is_err());
    }
}
