//! Checks whether a program can be unwound, symbolicated and matched to debug files.

use std::path::PathBuf;

use object::{Object, ObjectSection, ObjectSymbol};

use super::{Finding, Grade};

const SUBJECT: &str = "program";

/// Checks `program`, or this program by default.
pub(super) fn examine(program: Option<PathBuf>) -> Vec<Finding> {
    let path = match program.map_or_else(std::env::current_exe, Ok) {
        Ok(path) => path,
        Err(error) => return vec![Finding::other(Grade::Note, SUBJECT, format!("unknown: {error}"), "")],
    };
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            let found = format!("can't read `{}`: {error}", path.display());
            return vec![Finding::other(
                Grade::Fails,
                SUBJECT,
                found,
                "Give the path of a program with `--program PATH`.",
            )];
        }
    };
    let file = match object::File::parse(&*bytes) {
        Ok(file) => file,
        Err(error) => {
            let found = format!("`{}` is not a program: {error}", path.display());
            return vec![Finding::other(Grade::Fails, SUBJECT, found, "Give the path of an ELF or Mach-O file.")];
        }
    };
    let mut findings = vec![identity(&path, &file), unwinding(&file), names(&file)];
    if file.section_by_name(".go.buildinfo").is_some() {
        findings.push(Finding::other(
            Grade::Limited,
            "thread capture",
            "Go's runtime handles every real-time signal",
            "Threads are stopped with ptrace where that is allowed; otherwise a report contains only the crashed thread.",
        ));
    }
    findings
}

fn identity(path: &std::path::Path, file: &object::File) -> Finding {
    let build_id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
    let uuid = file.mach_uuid().ok().flatten().map(|uuid| uuid.to_vec());
    match build_id.or(uuid) {
        Some(id) => {
            let id = coroner_report::model::Bytes(id);
            Finding::works(SUBJECT, format!("`{}`, build id {id}", path.display()))
        }
        None => Finding::other(
            Grade::Limited,
            SUBJECT,
            format!("`{}` has no build id", path.display()),
            "Servers can't match symbols to it. Link with `-Wl,--build-id` (the default on most systems).",
        ),
    }
}

fn unwinding(file: &object::File) -> Finding {
    const SUBJECT: &str = "unwinding";
    let has = |name| file.section_by_name(name).is_some();
    if has(".eh_frame_hdr") {
        Finding::works(SUBJECT, "call frame information with a search table (.eh_frame_hdr)")
    } else if has("__unwind_info") {
        Finding::works(SUBJECT, "compact unwind information (__unwind_info)")
    } else if has(".eh_frame") || has("__eh_frame") {
        Finding::other(
            Grade::Limited,
            SUBJECT,
            "call frame information without a search table",
            "Frames are found by frame pointers only. Link with `--eh-frame-hdr`.",
        )
    } else {
        Finding::other(
            Grade::Limited,
            SUBJECT,
            "no unwind information",
            "Frames are found by frame pointers only. Build with `-C force-unwind-tables=yes` or `-fasynchronous-unwind-tables`.",
        )
    }
}

fn names(file: &object::File) -> Finding {
    const SUBJECT: &str = "symbols";
    let functions = file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text).count();
    let lines = file.sections().any(|section| {
        matches!(section.name(), Ok(".debug_line" | ".zdebug_line" | "__debug_line")) && section.size() > 0
    });
    match (functions, lines) {
        (0, false) => Finding::other(
            Grade::Limited,
            SUBJECT,
            "stripped: no function names and no source lines",
            "Keep the unstripped program or its `.debug` or `.dSYM`; reports are symbolicated with it by build ID.",
        ),
        (_, true) => Finding::works(SUBJECT, format!("{functions} function names, and source lines")),
        (_, false) => Finding::other(
            Grade::Note,
            SUBJECT,
            format!("{functions} function names, no source lines"),
            "For files and lines, build with `debug = \"line-tables-only\"` in the Cargo profile, or with `-g1`.",
        ),
    }
}
