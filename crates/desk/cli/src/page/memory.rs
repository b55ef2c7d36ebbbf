//! Registers and memory.

use coroner::Report;
use coroner_report::model::StackMemory;
use maud::{Markup, html};

use super::collapsed;

/// Maximum bytes shown of each piece of a stack.
const MAX_BYTES: usize = 4096;
/// Maximum number of pieces.
const MAX_PIECES: usize = 64;
const ROW: usize = 16;

pub(super) fn registers(report: &Report) -> Markup {
    let thread = report.crashed_thread();
    let Some(registers) = thread.and_then(|thread| thread.registers.as_ref()) else { return html! {} };
    let named: Vec<(String, String)> = registers
        .named()
        .map(|(name, value)| (name.to_owned(), format!("{value:#018x}")))
        .chain(registers.extra.iter().map(|(register, value)| (register.to_string(), format!("{value:#018x}"))))
        .collect();
    let content = html! {
        div.registers {
            @for (name, value) in &named { div { span.faint { (name) } code { (value) } } }
        }
    };
    collapsed("Registers", "of the crashed thread", &content)
}

pub(super) fn stacks(report: &Report) -> Markup {
    if report.stack_memory.is_empty() {
        return html! {};
    }
    let content = html! {
        @for piece in report.stack_memory.iter().take(MAX_PIECES) {
            @let label = format!("Memory of thread {} at {}", piece.tid, piece.address);
            @let pointers = pointers(report, piece);
            h3 { "Thread " (piece.tid) ", " (piece.bytes.len()) " bytes at " code { (piece.address) } @if !pointers.is_empty() { ": " (pointers) } }
            pre tabindex="0" role="group" aria-label=(label) { (dump(piece.address.0, &piece.bytes)) }
            @if piece.bytes.len() > MAX_BYTES { p.faint { (piece.bytes.len() - MAX_BYTES) " more bytes are in the report." } }
        }
        @if report.stack_memory.len() > MAX_PIECES { p.faint { (report.stack_memory.len() - MAX_PIECES) " more pieces are in the report." } }
    };
    collapsed("Memory", "near stack pointers and register values", &content)
}

/// Lists the crashed thread's registers that point into this piece.
fn pointers(report: &Report, piece: &StackMemory) -> String {
    let thread = report.crashed_thread().filter(|thread| thread.tid == piece.tid);
    let registers = thread.and_then(|thread| thread.registers.as_ref());
    let named = registers.into_iter().flat_map(|registers| registers.named());
    let inside = named.filter(|(_, value)| value.wrapping_sub(piece.address.0) < piece.bytes.len() as u64);
    inside.map(|(name, _)| name).collect::<Vec<&str>>().join(", ")
}

/// Formats rows of an address, 16 bytes, and their ASCII characters.
fn dump(address: u64, bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, bytes) in bytes[..bytes.len().min(MAX_BYTES)].chunks(ROW).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let plain =
            bytes.iter().map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' });
        let at = address.wrapping_add((row * ROW) as u64);
        text += &format!("{at:#018x}  {:47}  {}\n", hex.join(" "), plain.collect::<String>());
    }
    text
}
