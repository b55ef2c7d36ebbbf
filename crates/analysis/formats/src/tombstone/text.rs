//! Reads text tombstones: the same facts as in the protobuf, in debuggerd's format.
//!
//! A heading introduces the following lines (`backtrace:`, `memory map (…):`, `--------- log
//! main`), and a line of dashes starts the next thread. In logcat, each line has a prefix with the
//! tag `DEBUG`, whose form depends on the tool that wrote the log (`adb logcat -v …`, Android
//! Studio); lines with other tags are in between.

use std::borrow::Cow;

use crate::tombstone::proto::{
    BacktraceFrame, Cause, CrashDetail, Damage, Fd, HeapObject, LogBuffer, LogMessage, MemoryDump, MemoryError,
    MemoryMapping, Register, Signal, Thread, Tombstone, architecture,
};
use crate::tombstone::report::TextFacts;
use crate::tombstone::{MAX_FRAMES, MAX_THREADS};

/// The start of a tombstone; logcat's prefix may precede it.
const START_MARKER: &str = "*** *** *** *** *** *** *** *** *** *** *** *** *** *** *** ***";
/// The separator between threads.
const THREAD_SEPARATOR: &str = "--- --- --- --- --- ---";
/// Maximum number of bytes searched for the start: a log may contain much before it.
const MAX_BEFORE: usize = 16 << 20;

/// Tags of the log's lines: debuggerd's, and that of `MediaTek`'s systems.
const TAGS: [&str; 2] = ["DEBUG", "AEE/AED"];

/// Returns the offset of the first tombstone in the text: of its line of stars, or of its first
/// line if that was left out.
pub(crate) fn begins(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.get(..MAX_BEFORE).unwrap_or(bytes);
    let find = |from: usize, mark: &[u8]| {
        bytes[from..].windows(mark.len()).position(|window| window == mark).map(|at| from + at)
    };
    let Some(at) = find(0, START_MARKER.as_bytes()) else {
        // `pid: 4100, tid: 4123, name: Checkout  >>> com.example.shop <<<`
        let pid = find(0, b"pid: ")?;
        let line = bytes[pid..].split(|byte| *byte == b'\n').next().unwrap_or_default();
        let has = |mark: &[u8]| line.windows(mark.len()).any(|window| window == mark);
        let is_head = has(b", tid: ") && has(b", name: ") && has(b">>> ") && find(pid, b"backtrace:").is_some();
        return is_head.then(|| find(0, b"Build fingerprint: ").filter(|head| *head < pid).unwrap_or(pid));
    };
    // The head of a tombstone must follow, because other programs may print stars as well.
    let rest = &bytes[at..bytes.len().min(at + (64 << 10))];
    let is_head = |mark: &[u8]| rest.windows(mark.len()).any(|window| window == mark);
    (is_head(b"pid: ") && is_head(b"tid: ") || is_head(b"Build fingerprint: ")).then_some(at)
}

/// The prefix of a log's lines.
enum Prefix {
    /// No prefix: the lines are from a file.
    None,
    /// One of [`TAGS`], with something before and after it.
    Log,
}

/// Returns the text of a logcat line with one of [`TAGS`]; `None` for other lines.
fn without_prefix(line: &str) -> Option<&str> {
    let (at, tag) = TAGS.iter().find_map(|tag| Some((line.find(tag)?, tag)))?;
    let before = &line[..at];
    if !before.is_empty() && !before.ends_with([' ', '/', '\t']) {
        return None;
    }
    let rest = line[at + tag.len()..].trim_start_matches(' ');
    // `F/DEBUG   ( 1234): …`
    let rest = match rest.strip_prefix('(') {
        Some(number) => number.split_once(')')?.1,
        None => rest,
    };
    if let Some(words) = rest.strip_prefix(':') {
        return Some(words.strip_prefix(' ').unwrap_or(words));
    }
    // Android Studio: `DEBUG crash_dump64 A  …`, with the process's name between tag and priority.
    [" A  ", " F  ", " I  "].iter().find_map(|priority| rest.split_once(priority)).map(|(_, words)| words)
}

/// The section to which the following lines belong.
#[derive(PartialEq)]
enum Part {
    /// A thread's head, or registers.
    Head,
    /// An abort message with several lines.
    AbortMessage,
    Backtrace,
    Freed,
    Allocated,
    Dump,
    Maps,
    Files,
    Log,
    /// Memory tags around the fault.
    Tags,
    /// Ignored lines: stack words (Android 10 and before), advice.
    Other,
}

struct Parser {
    tombstone: Tombstone,
    text_facts: TextFacts,
    thread: Thread,
    is_guest: bool,
    part: Part,
    /// Whether a thread's head was seen.
    began: bool,
}

/// Parses the first tombstone in a text.
pub(crate) fn parse(bytes: &[u8]) -> (Tombstone, TextFacts, Option<Damage>) {
    let start = begins(bytes).unwrap_or(0);
    let line_start = bytes[..start].iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    let prefix =
        if bytes[line_start..start].iter().all(|byte| byte.is_ascii_whitespace()) { Prefix::None } else { Prefix::Log };
    let text = String::from_utf8_lossy(&bytes[line_start..]);
    let mut parser = Parser {
        tombstone: Tombstone { arch: -1, ..Tombstone::default() },
        text_facts: TextFacts::default(),
        thread: Thread::default(),
        is_guest: false,
        part: Part::Head,
        began: false,
    };
    let has_marker = bytes[start..].starts_with(START_MARKER.as_bytes());
    for line in text.lines().skip(usize::from(has_marker)) {
        let line = match prefix {
            Prefix::None => line,
            Prefix::Log => match without_prefix(line) {
                Some(line) => line,
                None => continue,
            },
        };
        if line.contains(START_MARKER) {
            parser.text_facts.notes.push("the text contains further tombstones, which are not shown".to_owned());
            break;
        }
        parser.line(line.trim_end());
    }
    parser.end_thread();
    if parser.tombstone.arch < 0 {
        parser.tombstone.arch = arch_by_registers(&parser.tombstone);
    }
    (parser.tombstone, parser.text_facts, None)
}

/// Returns the architecture from the names of registers.
///
/// Android 4 and some logs do not contain the ABI.
fn arch_by_registers(tombstone: &Tombstone) -> i32 {
    let names = tombstone.threads.values().flat_map(|thread| &thread.registers);
    let has = |wanted: &str| names.clone().any(|register| register.name == wanted);
    match () {
        () if has("rip") => architecture::X86_64,
        () if has("eip") => architecture::X86,
        () if has("x0") => architecture::ARM64,
        () if has("r0") => architecture::ARM32,
        () => architecture::NONE,
    }
}

/// Returns the text between the quotes of `'…'`, or all of it.
fn quoted(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix('\'').map_or(text, |rest| rest.strip_suffix('\'').unwrap_or(rest))
}

fn hex(text: &str) -> Option<u64> {
    // Long addresses have a mark in the middle: 0000007a'1234abcd.
    let digits: Cow<'_, str> = if text.contains('\'') { text.replace('\'', "").into() } else { text.into() };
    u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(&digits), 16).ok()
}

/// Parses the number at the start of a text.
fn leading<T: std::str::FromStr>(text: &str) -> Option<T> {
    let text = text.trim_start();
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '-').unwrap_or(text.len());
    text[..end].parse().ok()
}

impl Parser {
    fn end_thread(&mut self) {
        let thread = std::mem::take(&mut self.thread);
        if thread.id <= 0 || self.tombstone.threads.len() >= MAX_THREADS {
            return;
        }
        let threads = if self.is_guest { &mut self.tombstone.guest_threads } else { &mut self.tombstone.threads };
        threads.entry(thread.id as u32).or_insert(thread);
        self.is_guest = false;
    }

    fn line(&mut self, line: &str) {
        let text = line.trim_start();
        if self.part == Part::AbortMessage {
            let end = text.ends_with('\'');
            self.tombstone.abort_message.push('\n');
            self.tombstone.abort_message.push_str(line.strip_suffix('\'').unwrap_or(line));
            if end {
                self.part = Part::Head;
            }
            return;
        }
        if line.starts_with(THREAD_SEPARATOR) {
            self.end_thread();
            self.part = Part::Head;
            return;
        }
        let log = line.strip_prefix("--------- tail end of log ").or_else(|| line.strip_prefix("--------- log "));
        if let Some(name) = log.or_else(|| line.strip_prefix("--------- beginning of ")) {
            // The complete log follows at the end of the file, after an excerpt.
            self.tombstone.log_buffers.retain(|buffer| buffer.name != name);
            self.tombstone.log_buffers.push(LogBuffer { name: name.to_owned(), logs: Vec::new() });
            self.part = Part::Log;
            return;
        }
        if self.part == Part::Log
            && let Some(message) = log_message(line)
            && let Some(buffer) = self.tombstone.log_buffers.last_mut()
        {
            buffer.logs.push(message);
            return;
        }
        if self.title(text) {
            return;
        }
        match self.part {
            Part::Backtrace | Part::Freed | Part::Allocated if text.starts_with('#') => self.frame(text),
            Part::Backtrace if text.starts_with("NOTE:") => {
                let note = text.trim_start_matches("NOTE:").trim();
                // Advice printed before every app's backtraces.
                self.thread.backtrace_note.push(note.to_owned());
            }
            Part::Dump => self.dump(text),
            Part::Maps => self.mapping(text),
            Part::Files => self.file(text),
            Part::Tags if text.contains("0x") => self.text_facts.memory_tags.push(line.to_owned()),
            Part::Head => self.head(line),
            _ => {}
        }
    }

    /// Handles a heading, which determines the meaning of the next lines. Returns whether the line
    /// is one.
    fn title(&mut self, text: &str) -> bool {
        let part = if text == "backtrace:" || text.ends_with(" total frames") {
            Part::Backtrace
        } else if let Some(tid) = text.strip_prefix("deallocated by thread ") {
            self.heap().deallocation_tid = leading(tid).unwrap_or(0);
            Part::Freed
        } else if let Some(tid) = text.strip_prefix("allocated by thread ") {
            self.heap().allocation_tid = leading(tid).unwrap_or(0);
            Part::Allocated
        } else if text.starts_with("memory near ") || text.starts_with("code around ") {
            let what = text.trim_end_matches(':');
            let what = what.strip_prefix("memory near ").or_else(|| what.strip_prefix("code around ")).unwrap_or(what);
            let (register, mapping) = what.split_once(" (").unwrap_or((what, ""));
            self.thread.memory_dump.push(MemoryDump {
                register_name: register.to_owned(),
                mapping_name: mapping.trim_end_matches(')').to_owned(),
                ..MemoryDump::default()
            });
            Part::Dump
        } else if text.starts_with("memory map") {
            Part::Maps
        } else if text == "open files:" {
            Part::Files
        } else if text.starts_with("Memory tags around the fault address") {
            self.text_facts.memory_tags.push(text.to_owned());
            Part::Tags
        } else if text == "stack:" || text.starts_with("Learn more about ") {
            Part::Other
        } else if let Some(tid) = text.strip_prefix("Guest thread information for tid: ") {
            self.end_thread();
            self.is_guest = true;
            self.thread.id = leading(tid).unwrap_or(0);
            Part::Head
        } else if let Some(cause) = text.strip_prefix("Cause: ") {
            let cause = Cause { human_readable: cause.to_owned(), memory_error: None };
            self.tombstone.causes.push(cause);
            // The first cause is followed by registers, any cause by backtraces of the heap object.
            if self.part == Part::Head { Part::Head } else { Part::Other }
        } else if text.starts_with("Note: ") {
            self.text_facts.notes.push(text.trim_start_matches("Note: ").to_owned());
            return true;
        } else {
            return false;
        };
        self.part = part;
        true
    }

    fn heap(&mut self) -> &mut HeapObject {
        if self.tombstone.causes.is_empty() {
            self.tombstone.causes.push(Cause::default());
        }
        let last = self.tombstone.causes.len() - 1;
        let error = self.tombstone.causes[last].memory_error.get_or_insert_with(MemoryError::default);
        error.heap.get_or_insert_with(HeapObject::default)
    }

    fn head(&mut self, line: &str) {
        let text = line.trim_start();
        let tombstone = &mut self.tombstone;
        if text.starts_with("pid: ") && text.contains("tid: ") {
            return self.process(text);
        }
        if text.starts_with("signal ") && tombstone.signal_info.is_none() {
            return self.signal(text);
        }
        let Some((key, value)) = text.split_once(':').filter(|(key, _)| !key.is_empty()) else {
            return self.registers(text);
        };
        let value = value.trim();
        let number = || hex(value.split_whitespace().next().unwrap_or_default());
        match key {
            "Build fingerprint" => tombstone.build_fingerprint = quoted(value).to_owned(),
            "Revision" => tombstone.revision = quoted(value).to_owned(),
            "Kernel Release" => self.text_facts.kernel_release = quoted(value).to_owned(),
            "Executable" => self.text_facts.executable = quoted(value).to_owned(),
            "ABI" | "Guest architecture" => {
                let known = architecture::NAMES.iter().find(|(_, name)| *name == quoted(value));
                let number = known.map_or(architecture::NONE, |(number, _)| *number);
                if key == "ABI" { tombstone.arch = number } else { tombstone.guest_arch = Some(number) }
            }
            "Timestamp" => tombstone.timestamp = value.to_owned(),
            "Process uptime" => tombstone.process_uptime = leading(value),
            "Page size" => tombstone.page_size = leading(value).unwrap_or(0),
            "Cmdline" if !self.began || tombstone.command_line.is_empty() => {
                tombstone.command_line = value.split(' ').map(str::to_owned).collect();
            }
            "uid" => tombstone.uid = leading(value).unwrap_or(0),
            "tagged_addr_ctrl" => self.thread.tagged_addr_ctrl = number().map(u64::cast_signed),
            "pac_enabled_keys" => self.thread.pac_enabled_keys = number().map(u64::cast_signed),
            "esr" => self.text_facts.syndrome = number(),
            "Abort message" | "abort message" => {
                let whole = value.len() > 1 && value.ends_with('\'') || !value.starts_with('\'');
                tombstone.abort_message = quoted(value).to_owned();
                if !whole {
                    self.part = Part::AbortMessage;
                }
            }
            "Extra crash detail" => {
                let (name, data) = value.split_once(": ").unwrap_or((value, ""));
                let detail = CrashDetail { name: name.into(), data: quoted(data).into() };
                tombstone.crash_details.push(detail);
            }
            _ => self.registers(text),
        }
    }

    /// Parses `pid: 1, ppid: 1, tid: 2, name: worker  >>> com.example <<<`.
    fn process(&mut self, text: &str) {
        if self.began && self.thread.id != 0 {
            self.end_thread();
        }
        let number = |key: &str| text.split_once(key).and_then(|(_, rest)| leading::<u32>(rest));
        let tid = number(", tid: ").unwrap_or(0);
        if !self.began {
            self.tombstone.pid = number("pid: ").unwrap_or(0);
            self.text_facts.ppid = number("ppid: ").unwrap_or(0);
            self.tombstone.tid = tid;
        }
        self.began = true;
        self.thread.id = tid.cast_signed();
        let names = text.split_once("name: ").map_or("", |(_, rest)| rest);
        let (thread, process) = names.split_once(">>>").unwrap_or((names, ""));
        thread.trim().clone_into(&mut self.thread.name);
        let process = process.trim().trim_end_matches("<<<").trim();
        if self.tombstone.command_line.is_empty() && !process.is_empty() {
            self.tombstone.command_line.push(process.to_owned());
        }
    }

    /// Parses `signal 11 (SIGSEGV), code 1 (SEGV_MAPERR from pid 1, uid 2), fault addr 0x10
    /// (read)`.
    fn signal(&mut self, text: &str) {
        let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest);
        let named = |rest: Option<&str>| {
            let inside = rest.and_then(|rest| rest.split_once('(')).map_or("", |(_, rest)| rest);
            inside.split([')', ' ', ',']).next().unwrap_or_default().to_owned()
        };
        let code = after(", code ");
        let address = after("fault addr ").and_then(|rest| hex(rest.split_whitespace().next().unwrap_or_default()));
        self.text_facts.access = after("fault addr ")
            .and_then(|rest| rest.split_once(" ("))
            .map(|(_, access)| access.trim_end_matches(')').to_owned());
        self.tombstone.signal_info = Some(Signal {
            number: after("signal ").and_then(leading).unwrap_or(0),
            name: named(after("signal ")),
            code: code.and_then(leading).unwrap_or(0),
            code_name: named(code),
            has_sender: text.contains(" from pid "),
            sender_pid: after(" from pid ").and_then(leading).unwrap_or(0),
            sender_uid: after(", uid ").and_then(leading).unwrap_or(0),
            has_fault_address: address.is_some(),
            fault_address: address.unwrap_or(0),
        });
    }

    /// Parses `x0  0000000000000000  x1  000000000000228b`.
    fn registers(&mut self, text: &str) {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (pairs, rest) = words.as_chunks::<2>();
        if !rest.is_empty() {
            return;
        }
        let is_name = |name: &str| {
            name.len() <= 6
                && name.starts_with(|first: char| first.is_ascii_lowercase())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        let read: Option<Vec<_>> = pairs
            .iter()
            .map(|pair| {
                let value = (pair[1].len() == 8 || pair[1].len() == 16).then(|| hex(pair[1])).flatten()?;
                is_name(pair[0]).then(|| Register { name: pair[0].to_owned(), value })
            })
            .collect();
        if self.thread.registers.len() < 256 {
            self.thread.registers.extend(read.unwrap_or_default());
        }
    }

    fn frame(&mut self, text: &str) {
        let Some(frame) = frame(text) else { return };
        let frames = match self.part {
            Part::Freed => &mut self.heap().deallocation_backtrace,
            Part::Allocated => &mut self.heap().allocation_backtrace,
            _ => &mut self.thread.current_backtrace,
        };
        if frames.len() < MAX_FRAMES {
            frames.push(frame);
        }
    }

    /// Parses `0000007fe8a3b9c0 0000007a12345678 0000000000000000  xV4.z.......`.
    fn dump(&mut self, text: &str) {
        let Some(dump) = self.thread.memory_dump.last_mut() else { return };
        let mut words = text.split_whitespace();
        let Some(address) = words.next().filter(|word| word.len() >= 8).and_then(hex) else { return };
        let untagged = address & 0x00FF_FFFF_FFFF_FFFF;
        if dump.memory.is_empty() {
            dump.begin_address = untagged;
        } else if untagged != dump.begin_address.wrapping_add(dump.memory.len() as u64) || dump.memory.len() > 1 << 20 {
            return;
        }
        let is_word = |word: &&str| matches!(word.len(), 8 | 16) && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = if text.split_whitespace().next().is_some_and(|first| first.len() > 8) { 8 } else { 4 };
        for word in words.take_while(is_word).take(16 / size) {
            let value = hex(word).unwrap_or(0).to_le_bytes();
            dump.memory.extend_from_slice(&value[..word.len() / 2]);
        }
    }

    /// Parses a line of the memory map.
    ///
    /// Lines have the form `0000007a'1234a000-0000007a'1234bfff r-x 2000  2000
    /// /system/lib64/libc.so (BuildId: 0a1b) (load bias 0x1000)`.
    fn mapping(&mut self, text: &str) {
        let text = text.strip_prefix("--->").unwrap_or(text);
        let mut words = text.split_whitespace();
        let (Some(range), Some(access), Some(offset), Some(_size)) =
            (words.next(), words.next(), words.next().and_then(hex), words.next().and_then(hex))
        else {
            return;
        };
        let Some((begin, last)) = range.split_once('-').and_then(|(begin, end)| Some((hex(begin)?, hex(end)?))) else {
            return;
        };
        let name_at = words.next().map(|word| word.as_ptr() as usize - text.as_ptr() as usize);
        let mut name = name_at.map_or("", |at| &text[at..]);
        let mut suffix = |mark: &str| {
            let (rest, value) = name.rsplit_once(mark)?;
            let value = value.strip_suffix(')')?;
            name = rest;
            Some(value)
        };
        let load_bias = suffix(" (load bias ").and_then(hex).unwrap_or(0);
        let build_id = suffix(" (BuildId: ").unwrap_or_default().to_owned();
        let has = |letter| access.contains(letter);
        self.tombstone.memory_mappings.push(MemoryMapping {
            begin_address: begin,
            end_address: last.saturating_add(1),
            offset,
            read: has('r'),
            write: has('w'),
            execute: has('x'),
            mapping_name: name.to_owned(),
            build_id,
            load_bias,
        });
    }

    /// Parses `fd 3: /dev/null (owned by FILE* 0x10)`.
    fn file(&mut self, text: &str) {
        let Some((number, rest)) = text.strip_prefix("fd ").and_then(|rest| rest.split_once(": ")) else { return };
        let (path, owner) = rest.rsplit_once(" (").unwrap_or((rest, ""));
        let owner = owner.trim_end_matches(')').strip_prefix("owned by ").unwrap_or_default();
        let fd = number.parse().unwrap_or(-1);
        self.tombstone.open_fds.push(Fd { fd, path: path.to_owned(), owner: owner.to_owned() });
    }
}

/// Parses `#00 pc 0000000000045000  /system/lib64/libc.so (offset 0x1000) (abort+164) (BuildId:
/// 0a1b)`. The function's name may contain parentheses.
pub(crate) fn frame(text: &str) -> Option<BacktraceFrame> {
    let rest = text.trim_start().strip_prefix('#')?;
    let (_, rest) = rest.split_once(char::is_whitespace)?;
    let rest = rest.trim_start().strip_prefix("pc ")?.trim_start();
    let (pc, mut rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let mut frame = BacktraceFrame { rel_pc: hex(pc)?, ..BacktraceFrame::default() };
    rest = rest.trim();
    if let Some((before, id)) = rest.rsplit_once("(BuildId: ") {
        frame.build_id = id.trim_end_matches(')').to_owned();
        rest = before.trim_end();
    }
    if let Some((before, function)) = last_brackets(rest)
        && let Some((name, offset)) = function.rsplit_once('+')
        && let Ok(offset) = offset.parse()
    {
        (frame.function_name, frame.function_offset) = (name.to_owned(), offset);
        rest = before.trim_end();
    }
    if let Some((before, offset)) = last_brackets(rest)
        && let Some(offset) = offset.strip_prefix("offset ").and_then(hex)
    {
        frame.file_map_offset = offset;
        rest = before.trim_end();
    }
    rest.clone_into(&mut frame.file_name);
    Some(frame)
}

/// Returns the text before the parentheses at the end, and the text inside them.
fn last_brackets(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_suffix(')')?;
    let mut depth = 1;
    for (at, byte) in inner.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&inner[..at], &inner[at + 1..]));
        }
    }
    None
}

/// Parses `08-30 19:53:13.711  1234  1240 I ActivityManager: the message`.
fn log_message(line: &str) -> Option<LogMessage> {
    const PRIORITIES: &str = "!.VDIWEFS";
    let timestamp = line.get(..18)?;
    let mut rest = line.get(18..)?;
    let mut word = || {
        let trimmed = rest.trim_start();
        let (word, more) = trimmed.split_once(' ')?;
        rest = more;
        Some(word)
    };
    let (pid, tid) = (word()?.parse().ok()?, word()?.parse().ok()?);
    let priority = PRIORITIES.find(word()?)? as u32;
    let (tag, message) = rest.split_once(": ").or_else(|| rest.strip_suffix(':').map(|tag| (tag, "")))?;
    Some(LogMessage {
        timestamp: timestamp.to_owned(),
        pid,
        tid,
        priority,
        tag: tag.trim_end().to_owned(),
        message: message.to_owned(),
    })
}
