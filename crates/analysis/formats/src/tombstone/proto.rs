//! `tombstone.proto` (AOSP, `system/core/debuggerd/proto`, Android 12 to 16) as hand-written
//! messages. Fields without a place in a report are omitted, as are vendor fields (1000 and above):
//! the decoder skips unknown fields.

/// Architecture numbers in the file.
pub(crate) mod architecture {
    pub(crate) const ARM32: i32 = 0;
    pub(crate) const ARM64: i32 = 1;
    pub(crate) const X86: i32 = 2;
    pub(crate) const X86_64: i32 = 3;
    pub(crate) const RISCV64: i32 = 4;
    pub(crate) const NONE: i32 = 5;

    /// Names as in text tombstones.
    pub(crate) const NAMES: [(i32, &str); 5] =
        [(ARM32, "arm"), (ARM64, "arm64"), (X86, "x86"), (X86_64, "x86_64"), (RISCV64, "riscv64")];
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Tombstone {
    #[prost(int32, tag = "1")]
    pub(crate) arch: i32,
    #[prost(int32, optional, tag = "24")]
    pub(crate) guest_arch: Option<i32>,
    #[prost(string, tag = "2")]
    pub(crate) build_fingerprint: String,
    #[prost(string, tag = "3")]
    pub(crate) revision: String,
    #[prost(string, tag = "4")]
    pub(crate) timestamp: String,
    #[prost(uint32, tag = "5")]
    pub(crate) pid: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) tid: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) uid: u32,
    #[prost(string, tag = "8")]
    pub(crate) selinux_label: String,
    #[prost(string, repeated, tag = "9")]
    pub(crate) command_line: Vec<String>,
    /// In seconds.
    #[prost(uint32, optional, tag = "20")]
    pub(crate) process_uptime: Option<u32>,
    #[prost(message, optional, tag = "10")]
    pub(crate) signal_info: Option<Signal>,
    #[prost(string, tag = "14")]
    pub(crate) abort_message: String,
    #[prost(message, repeated, tag = "21")]
    pub(crate) crash_details: Vec<CrashDetail>,
    #[prost(message, repeated, tag = "15")]
    pub(crate) causes: Vec<Cause>,
    #[prost(btree_map = "uint32, message", tag = "16")]
    pub(crate) threads: std::collections::BTreeMap<u32, Thread>,
    #[prost(btree_map = "uint32, message", tag = "25")]
    pub(crate) guest_threads: std::collections::BTreeMap<u32, Thread>,
    #[prost(message, repeated, tag = "17")]
    pub(crate) memory_mappings: Vec<MemoryMapping>,
    #[prost(message, repeated, tag = "18")]
    pub(crate) log_buffers: Vec<LogBuffer>,
    #[prost(message, repeated, tag = "19")]
    pub(crate) open_fds: Vec<Fd>,
    #[prost(uint32, tag = "22")]
    pub(crate) page_size: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CrashDetail {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) data: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Signal {
    #[prost(int32, tag = "1")]
    pub(crate) number: i32,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(int32, tag = "3")]
    pub(crate) code: i32,
    #[prost(string, tag = "4")]
    pub(crate) code_name: String,
    #[prost(bool, tag = "5")]
    pub(crate) has_sender: bool,
    #[prost(int32, tag = "6")]
    pub(crate) sender_uid: i32,
    #[prost(int32, tag = "7")]
    pub(crate) sender_pid: i32,
    #[prost(bool, tag = "8")]
    pub(crate) has_fault_address: bool,
    #[prost(uint64, tag = "9")]
    pub(crate) fault_address: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HeapObject {
    #[prost(uint64, tag = "1")]
    pub(crate) address: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) size: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) allocation_tid: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) allocation_backtrace: Vec<BacktraceFrame>,
    #[prost(uint64, tag = "5")]
    pub(crate) deallocation_tid: u64,
    #[prost(message, repeated, tag = "6")]
    pub(crate) deallocation_backtrace: Vec<BacktraceFrame>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MemoryError {
    #[prost(message, optional, tag = "3")]
    pub(crate) heap: Option<HeapObject>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Cause {
    #[prost(string, tag = "1")]
    pub(crate) human_readable: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) memory_error: Option<MemoryError>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Register {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint64, tag = "2")]
    pub(crate) value: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Thread {
    #[prost(int32, tag = "1")]
    pub(crate) id: i32,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) registers: Vec<Register>,
    #[prost(string, repeated, tag = "7")]
    pub(crate) backtrace_note: Vec<String>,
    #[prost(string, repeated, tag = "9")]
    pub(crate) unreadable_elf_files: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) current_backtrace: Vec<BacktraceFrame>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) memory_dump: Vec<MemoryDump>,
    #[prost(int64, optional, tag = "6")]
    pub(crate) tagged_addr_ctrl: Option<i64>,
    #[prost(int64, optional, tag = "8")]
    pub(crate) pac_enabled_keys: Option<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BacktraceFrame {
    /// The address in the file, including the file's load bias.
    #[prost(uint64, tag = "1")]
    pub(crate) rel_pc: u64,
    /// The address in the process; 0 in a text, which does not contain it. A caller's address is
    /// inside the call.
    #[prost(uint64, tag = "2")]
    pub(crate) pc: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) sp: u64,
    #[prost(string, tag = "4")]
    pub(crate) function_name: String,
    #[prost(uint64, tag = "5")]
    pub(crate) function_offset: u64,
    #[prost(string, tag = "6")]
    pub(crate) file_name: String,
    #[prost(uint64, tag = "7")]
    pub(crate) file_map_offset: u64,
    #[prost(string, tag = "8")]
    pub(crate) build_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MemoryDump {
    #[prost(string, tag = "1")]
    pub(crate) register_name: String,
    #[prost(string, tag = "2")]
    pub(crate) mapping_name: String,
    #[prost(uint64, tag = "3")]
    pub(crate) begin_address: u64,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) memory: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MemoryMapping {
    #[prost(uint64, tag = "1")]
    pub(crate) begin_address: u64,
    /// The address after the last.
    #[prost(uint64, tag = "2")]
    pub(crate) end_address: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) offset: u64,
    #[prost(bool, tag = "4")]
    pub(crate) read: bool,
    #[prost(bool, tag = "5")]
    pub(crate) write: bool,
    #[prost(bool, tag = "6")]
    pub(crate) execute: bool,
    #[prost(string, tag = "7")]
    pub(crate) mapping_name: String,
    #[prost(string, tag = "8")]
    pub(crate) build_id: String,
    #[prost(uint64, tag = "9")]
    pub(crate) load_bias: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Fd {
    #[prost(int32, tag = "1")]
    pub(crate) fd: i32,
    #[prost(string, tag = "2")]
    pub(crate) path: String,
    #[prost(string, tag = "3")]
    pub(crate) owner: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LogBuffer {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) logs: Vec<LogMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LogMessage {
    #[prost(string, tag = "1")]
    pub(crate) timestamp: String,
    #[prost(uint32, tag = "2")]
    pub(crate) pid: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) tid: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) priority: u32,
    #[prost(string, tag = "5")]
    pub(crate) tag: String,
    #[prost(string, tag = "6")]
    pub(crate) message: String,
}

/// The wire types of the file's fields by field number, by which the format is recognised.
///
/// Wire type 0 is an integer, 2 is length-delimited.
const WIRE_TYPES: [(u64, u64); 24] = [
    (1, 0),
    (2, 2),
    (3, 2),
    (4, 2),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 2),
    (9, 2),
    (10, 2),
    (14, 2),
    (15, 2),
    (16, 2),
    (17, 2),
    (18, 2),
    (19, 2),
    (20, 0),
    (21, 2),
    (22, 0),
    (23, 0),
    (24, 0),
    (25, 2),
    (26, 2),
    (27, 2),
];
/// Number of fields at the start that must match a tombstone's.
const MIN_MATCHING_FIELDS: usize = 4;

/// An error in a protobuf file, with its offset.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    pub(crate) offset: usize,
    pub(crate) what: String,
}

/// Parses the field at `bytes[at..]`: its number, its wire type and its end.
fn field(bytes: &[u8], at: usize) -> Result<(u64, u64, usize), &'static str> {
    let varint = |mut at: usize| {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *bytes.get(at).ok_or("the file ends within a number")?;
            at += 1;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok((value, at));
            }
        }
        Err("a number is longer than ten bytes")
    };
    let (key, at) = varint(at)?;
    let end = match key & 7 {
        0 => varint(at)?.1,
        1 => at + 8,
        2 => {
            let (length, at) = varint(at)?;
            usize::try_from(length)
                .ok()
                .and_then(|length| at.checked_add(length))
                .ok_or("a field's length exceeds the address space")?
        }
        5 => at + 4,
        _ => return Err("unknown protobuf wire type"),
    };
    if end > bytes.len() {
        return Err("the file ends within a field");
    }
    Ok((key >> 3, key & 7, end))
}

/// Whether the bytes start like a protobuf tombstone.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let (mut at, mut seen, mut text) = (0, 0, false);
    while at < bytes.len() && seen < MIN_MATCHING_FIELDS {
        let Ok((number, kind, end)) = field(bytes, at) else { return false };
        if number < 1000 && !WIRE_TYPES.contains(&(number, kind)) {
            return false;
        }
        text |= kind == 2;
        seen += 1;
        at = end;
    }
    seen >= 3 && text
}

/// Decodes a file field by field, up to the end or to the first error.
///
/// For a truncated or damaged file, everything before the damage is available, and its offset is
/// known.
pub(crate) fn decode(bytes: &[u8]) -> (Tombstone, Option<Damage>) {
    let mut tombstone = Tombstone::default();
    let mut at = 0;
    while at < bytes.len() {
        let damage = |what: String| Some(Damage { offset: at, what });
        let end = match field(bytes, at) {
            Ok((_, _, end)) => end,
            Err(what) => return (tombstone, damage(what.to_owned())),
        };
        if let Err(error) = prost::Message::merge(&mut tombstone, &bytes[at..end]) {
            return (tombstone, damage(error.to_string()));
        }
        at = end;
    }
    (tombstone, None)
}
