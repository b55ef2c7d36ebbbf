//! Fuzz targets: one for each format that the unwinder parses, for each format of symbol files ([`symbols`], whose inputs are
//! the files themselves), for the files of a run and what is made of them ([`reports`]), for what is kept until it is delivered ([`delivery`]), and for
//! what the kernel and the dynamic linker say of the process ([`process`]). `cargo xtask fuzz` runs them; the program of this crate is
//! its driver.
//!
//! A target is a function of bytes that must come back, whatever they are, without a panic, within its budget, and with
//! the same answer when it is asked twice (the second time out of the rule cache). The bytes are a [`case::Case`]: a
//! header that places two parts in an address space, and the parts, so that sections of real programs are cases as they
//! are.

#![expect(clippy::missing_panics_doc, reason = "a panic is what the driver looks for")]

pub mod case;
pub mod coverage;
pub mod delivery;
pub mod mutate;
pub mod process;
pub mod reports;
pub mod symbols;
pub mod targets;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and its folder under `fuzz/corpus`.
    pub name: &'static str,
    /// What it does with an input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "eh_frame_hdr", run: targets::eh_frame_hdr },
    Target { name: "eh_frame", run: targets::eh_frame },
    Target { name: "debug_frame", run: targets::debug_frame },
    Target { name: "sframe", run: targets::sframe },
    Target { name: "cfa_instructions", run: targets::cfa_instructions },
    Target { name: "expression", run: targets::expression },
    Target { name: "compact_unwind", run: targets::compact_unwind },
    Target { name: "code", run: targets::code },
    Target { name: "walk", run: targets::walk },
    Target { name: "symbols_elf", run: symbols::elf_file },
    Target { name: "symbols_dwarf", run: symbols::dwarf },
    Target { name: "symbols_macho", run: symbols::macho_file },
    Target { name: "symbols_breakpad", run: symbols::breakpad },
    Target { name: "symbols_demangling", run: symbols::demangling },
    Target { name: "symbols_scan_elf", run: symbols::scan_elf },
    Target { name: "symbols_scan_macho", run: symbols::scan_macho },
    Target { name: "report_file", run: reports::report_file },
    Target { name: "report_sections", run: reports::report_sections },
    Target { name: "apple_report", run: reports::apple_report },
    Target { name: "log", run: reports::log },
    Target { name: "core_dump", run: reports::dump },
    Target { name: "core_stream", run: reports::core_stream },
    Target { name: "packed_core", run: reports::dump },
    Target { name: "minidump", run: reports::dump },
    Target { name: "tombstone", run: reports::tombstone },
    Target { name: "java_stack_trace", run: reports::java_stack_trace },
    Target { name: "run_state", run: reports::run_state },
    Target { name: "run_state_values", run: reports::run_state_values },
    Target { name: "report_writers", run: reports::report_writers },
    Target { name: "explanation", run: reports::explanation },
    Target { name: "envelope", run: delivery::envelope },
    Target { name: "outbox", run: delivery::outbox },
    Target { name: "outbox_state", run: delivery::outbox_state },
    Target { name: "server_answer", run: delivery::server_answer },
    Target { name: "store_notes", run: delivery::store_notes },
    Target { name: "proc_text", run: process::proc_text },
    Target { name: "link_map", run: process::link_map },
];
