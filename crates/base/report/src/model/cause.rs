//! The cause of a crash as a type and a sentence, for servers and for people.

use std::borrow::Cow;
use std::fmt::Write;

use super::{Crash, CrashFlag, Exception, FaultKind, Hang, Report, Signal};
use crate::wire::{Access, ExtraRegister, Language, Monitor};
use coroner_process::registers::Arch;

/// The exception type of a panic that reached the top of its thread, set by `coroner`'s panic hook.
const PANIC_THAT_ENDED_ITS_THREAD: &str = "panic that ended its thread";

impl Exception {
    /// The exception's type, or its language's word for an exception if the runtime gave no type.
    pub fn kind(&self) -> String {
        let of_language = match self.language {
            Language::CPP => "C++ exception",
            Language::OBJC => "NSException",
            Language::RUST => "panic",
            Language::SWIFT => "Swift error",
            _ => "exception",
        };
        self.type_name.clone().unwrap_or_else(|| of_language.to_owned())
    }
}

impl Crash {
    /// The crash type: the type that the program gave, or the name of a Mach exception or signal.
    pub fn kind(&self) -> String {
        if let Some(name) = &self.exception_type {
            return name.clone();
        }
        match self.monitor {
            Monitor::HANG if self.has(CrashFlag::NotFatal) => return "App Hanging".to_owned(),
            Monitor::HANG => return "Fatal App Hang".to_owned(),
            Monitor::PANIC => return "panic".to_owned(),
            _ => {}
        }
        if let Some(mach) = &self.mach {
            return mach.name.map_or_else(|| format!("EXC_{}", mach.exception), ToOwned::to_owned);
        }
        match &self.signal {
            Some(Signal { name: Some(name), .. }) => (*name).to_owned(),
            Some(signal) if self.monitor == Monitor::SEH => {
                format!("exception {:#010x}", signal.number.cast_unsigned())
            }
            Some(signal) => format!("SIG{}", signal.number),
            None => self.monitor.name().unwrap_or("Crash").to_owned(),
        }
    }
}

/// Message for a call of a pure virtual function.
pub const PURE_VIRTUAL_CALL: &str = "a pure virtual function was called";

/// Describes a fault for which an x86_64 processor reports no address.
pub(crate) const GENERAL_PROTECTION_FAULT: &str = "general protection fault (the CPU reports no address)";

impl Report {
    /// Whether the crash is a general protection or stack fault of an x86_64 processor.
    ///
    /// Linux also reports `SI_KERNEL` without an address if it can't deliver a signal; the trap
    /// number, if the report contains it, distinguishes the two.
    pub(crate) fn is_general_protection_fault(&self) -> bool {
        let Some(crash) = self.crash.as_ref().filter(|crash| crash.is_address_unknown()) else { return false };
        let registers = self.crashed_thread().and_then(|thread| thread.registers.as_ref());
        let trap = registers.and_then(|registers| {
            registers.extra.iter().find(|(register, _)| *register == ExtraRegister::TRAPNO).map(|(_, number)| *number)
        });
        let is_signal = crash.signal.as_ref().is_some_and(|signal| matches!(signal.name, Some("SIGSEGV" | "SIGBUS")));
        self.header.arch == Some(Arch::X86_64)
            && (is_signal || crash.mach.is_some())
            && trap.is_none_or(|number| matches!(number, 12 | 13))
    }

    /// Whether the C++ runtime (or Microsoft's) ended the program because of a pure virtual call.
    ///
    /// This happens when a constructor or destructor calls a function that has no body.
    pub fn is_pure_virtual_call(&self) -> bool {
        const INNERMOST: usize = 16;
        let exception = self.exceptions.first();
        // A pure virtual call throws no exception.
        if exception.is_some_and(|exception| exception.type_name.is_some()) {
            return false;
        }
        let frames = self.crashed_thread().map(|thread| thread.frames.as_slice()).unwrap_or_default();
        let thrown = exception.map(|exception| exception.frames.as_slice()).unwrap_or_default();
        let is_it = |name: &Option<String>| matches!(name.as_deref(), Some("__cxa_pure_virtual" | "_purecall"));
        let frames = frames.iter().take(INNERMOST).chain(thrown.iter().take(INNERMOST));
        frames.into_iter().any(|frame| is_it(&frame.function) || is_it(&frame.raw_function))
    }

    /// Returns the message of `exception`, which must belong to this report.
    ///
    /// For a pure virtual call this is [`PURE_VIRTUAL_CALL`]: the exception itself records only
    /// that there is none.
    pub fn message_of<'a>(&self, exception: &'a Exception) -> Option<&'a str> {
        match exception.type_name.is_none() && exception.language == Language::CPP && self.is_pure_virtual_call() {
            true => Some(PURE_VIRTUAL_CALL),
            false => exception.message.as_deref(),
        }
    }

    /// The cause in one line, for people.
    ///
    /// The program's own message comes first, then what the system reported.
    pub fn cause(&self) -> Option<String> {
        let crash = self.crash.as_ref()?;
        let mut parts: Vec<String> = Vec::new();
        let message = self.program_message(crash);
        let has_message = message.is_some();
        parts.extend(message.map(Cow::into_owned));
        if crash.has(CrashFlag::StackOverflow) {
            parts.push("stack overflow".to_owned());
        }
        parts.extend(recrash(crash));
        let code = crash.mach.as_ref().and_then(|mach| mach.code_name);
        let code = code.or_else(|| crash.signal.as_ref().and_then(|signal| signal.code_name));
        let mut place = code.unwrap_or_default().to_owned();
        if let Some(address) = crash.address {
            let access = crash.access.and_then(Access::name).unwrap_or_default();
            let access = match access {
                "" => String::new(),
                access => format!("{access} "),
            };
            let space = if place.is_empty() { "" } else { ": " };
            let _ = write!(place, "{space}{access}at {address}");
        } else if self.is_general_protection_fault() {
            GENERAL_PROTECTION_FAULT.clone_into(&mut place);
        } else if crash.is_address_unknown() {
            let colon = if place.is_empty() { "" } else { ": " };
            let _ = write!(place, "{colon}unknown address");
        }
        if !place.is_empty() && !has_message {
            parts.push(place);
        }
        parts.extend(crash.hang.as_ref().map(|hang| hang_value(crash, hang)));
        (!parts.is_empty()).then(|| parts.join(": "))
    }

    /// [`Self::cause`] with the sentence of [`Self::explanation`], if there is one.
    ///
    /// The sentence follows the program's own message and replaces what the system reported. Where
    /// the message already describes the end, this is [`Self::cause`].
    pub fn explained_cause(&self) -> Option<String> {
        let crash = self.crash.as_ref()?;
        let message = self.program_message(crash);
        let sentence = self.explanation.as_ref().filter(|explanation| match explanation.kind {
            // The sentence of an abort already contains the message.
            FaultKind::Abort => message.is_none() && self.exceptions.is_empty(),
            kind => kind.is_fault(),
        });
        let Some(sentence) = sentence.map(|explanation| explanation.headline.clone()).filter(|text| !text.is_empty())
        else {
            let explanation = self.explanation.as_ref();
            let waits_for = explanation.and_then(|explanation| explanation.waits_for.clone());
            let spent = explanation.and_then(|explanation| explanation.spent.clone());
            let parts = [self.cause(), waits_for, spent].into_iter().flatten().collect::<Vec<_>>();
            return Some(parts.join("; ")).filter(|cause| !cause.is_empty());
        };
        let parts: Vec<String> =
            message.map(Cow::into_owned).into_iter().chain([sentence]).chain(recrash(crash)).collect();
        Some(parts.join(": "))
    }

    /// The last message that the program or one of its libraries left.
    fn program_message<'a>(&'a self, crash: &'a Crash) -> Option<Cow<'a, str>> {
        if crash.monitor == Monitor::CPP_EXCEPTION && self.is_pure_virtual_call() {
            return Some(Cow::Borrowed(PURE_VIRTUAL_CALL));
        }
        // A message that the system or a library left for a crash reporter, such as `assertion
        // failed: …` or an abort message. The C library's abort message is not the cause of a
        // fault.
        let died_of = |names: &[&str]| {
            crash.signal.as_ref().and_then(|signal| signal.name).is_some_and(|name| names.contains(&name))
        };
        let is_fault = died_of(&["SIGSEGV", "SIGBUS"]);
        let of_c_library = |source: &str| source.rsplit('/').next().is_some_and(|name| name.starts_with("libc."));
        // A process that continues has not aborted, and descriptions of the environment are not
        // messages.
        let is_message = |text: &str| !["CoreSimulator ", "dyld2 mode"].iter().any(|start| text.starts_with(start));
        let annotation = self.annotations.iter().find(|annotation| is_message(&annotation.text));
        let annotation = annotation.filter(|annotation| !(is_fault && of_c_library(&annotation.source)));
        let annotation = annotation.filter(|_| !crash.has(CrashFlag::NotFatal));
        let annotation = self.abort_message().or_else(|| annotation.map(|annotation| annotation.text.trim()));
        let message = crash.message.as_deref().or(annotation).filter(|text| !text.is_empty()).map(Cow::Borrowed);
        // Swift traps after its message and doesn't abort. For other runtimes, a line on stderr
        // that looks like a last message is an older one.
        let is_trap = died_of(&["SIGILL", "SIGTRAP"]);
        message.or_else(|| if is_trap { self.last_word(is_last_word_of_swift).map(Cow::Owned) } else { None })
    }

    /// The message that a C library or a runtime wrote to stderr before it aborted.
    ///
    /// Available if the app keeps the end of its stderr. Covers musl's and libc++'s assertions, the
    /// last messages of libc++abi and libstdc++, Swift's failed checks and Go's panics. Other
    /// libraries keep the message in memory ([`Self::abort_message`]).
    pub fn last_message_on_stderr(&self) -> Option<String> {
        self.last_word(is_last_word)
    }

    /// The last line of stderr for which `is` returns true, with the line that belongs to it.
    fn last_word(&self, is: impl Fn(&str) -> bool) -> Option<String> {
        /// Bytes and lines searched at the end of stderr: other threads may write there, too.
        const BYTES: usize = 8 << 10;
        const LINES: usize = 12;
        let kept = self.app_memory.iter().find(|memory| memory.name == "stderr" && memory.address.is_none())?;
        let bytes = kept.bytes.0.get(kept.bytes.0.len().saturating_sub(BYTES)..)?;
        let text = String::from_utf8_lossy(bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
        // A Go panic is followed by the goroutines' stacks.
        let is_goroutine = |line: &&str| line.starts_with("goroutine ");
        let end = lines.iter().position(is_goroutine).unwrap_or(lines.len());
        let last = lines.get(end.saturating_sub(LINES)..end)?;
        let place = last.iter().rposition(|line| is(line))?;
        let what = last.get(place + 1).and_then(|line| line.strip_prefix("  what():  "));
        Some(what.map_or_else(|| (*last[place]).to_owned(), |what| format!("{}: {what}", last[place])))
    }

    /// Whether the app handled the error: it ended neither the process nor, as a panic, a thread.
    pub fn is_handled(&self) -> bool {
        let Some(crash) = &self.crash else { return false };
        let kind = self.exceptions.first().and_then(|exception| exception.type_name.as_deref());
        let ended_thread = kind.or(crash.exception_type.as_deref()) == Some(PANIC_THAT_ENDED_ITS_THREAD);
        crash.has(CrashFlag::NotFatal) && crash.signal.is_none() && crash.mach.is_none() && !ended_thread
    }
}

fn recrash(crash: &Crash) -> Option<String> {
    crash.has(CrashFlag::Recrash).then(|| "the crash reporter itself crashed".to_owned())
}

/// Describes a hang's duration.
fn hang_value(crash: &Crash, hang: &Hang) -> String {
    let (lasted, whole) = hang.duration();
    // Avoids floating point, whose formatting adds 10 KB that little else here needs.
    let tenths = (lasted.as_millis() + 50) / 100;
    let seconds = format!("{}.{}", tenths / 10, tenths % 10);
    match (crash.has(CrashFlag::NotFatal), whole) {
        (true, true) => format!("the app did not respond for {seconds} s"),
        (true, false) => format!("the app did not respond for at least {seconds} s"),
        (false, _) => format!("the app was terminated while not responding, after at least {seconds} s"),
    }
}

/// Whether a line of stderr is a library's last message before it aborts.
fn is_last_word(line: &str) -> bool {
    // musl's `__assert_fail`: expression, file, function and line.
    let is_musl =
        line.strip_prefix("Assertion failed: ").is_some_and(|rest| rest.ends_with(')') && rest.contains(" ("));
    // libc++: `file:line: assertion … failed: …` since LLVM 15, `file:line: _LIBCPP_ASSERT '…'
    // failed. …` before.
    let is_libcpp = line.contains(": assertion ") && line.contains(" failed: ")
        || line.contains(": _LIBCPP_ASSERT '") && line.contains("' failed. ");
    let begins = ["libc++abi: ", "terminate called ", "panic: ", "fatal error: ", "*** "];
    let is_begun = begins.iter().any(|begin| line.starts_with(begin));
    is_musl || is_libcpp || is_begun || is_last_word_of_swift(line)
}

/// Whether a line is from Swift's `_assertionFailure`: file and line, kind, optional message.
fn is_last_word_of_swift(line: &str) -> bool {
    let kinds = [": Fatal error", ": Precondition failed", ": Assertion failed"];
    line.contains(".swift:") && kinds.iter().any(|kind| line.contains(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AppMemory, Bytes, Registers, Thread};

    fn read_stderr(text: &str) -> Option<String> {
        let kept = AppMemory { name: "stderr".to_owned(), bytes: Bytes(text.into()), ..AppMemory::default() };
        Report { app_memory: vec![kept], ..Report::default() }.last_message_on_stderr()
    }

    #[test]
    fn a_general_protection_fault_is_named_on_x86_64_only() {
        let cause = |arch, trap: Option<u64>| {
            let name = Some("SIGSEGV");
            let signal = Signal { number: 11, name, code_name: Some("SI_KERNEL"), ..Signal::default() };
            let extra = trap.map(|number| (ExtraRegister::TRAPNO, number)).into_iter().collect();
            let registers = Some(Registers { extra, ..Registers::default() });
            let mut report = Report {
                crash: Some(Crash { tid: 7, signal: Some(signal), ..Crash::default() }),
                threads: vec![Thread { tid: 7, crashed: true, registers, ..Thread::default() }],
                ..Report::default()
            };
            report.header.arch = Some(arch);
            report.cause().unwrap()
        };
        let named = "general protection fault (the CPU reports no address)";
        assert_eq!(cause(Arch::X86_64, None), named);
        assert_eq!(cause(Arch::X86_64, Some(13)), named);
        // The kernel could not deliver another signal.
        assert_eq!(cause(Arch::X86_64, Some(14)), "SI_KERNEL: unknown address");
        assert_eq!(cause(Arch::Aarch64, None), "SI_KERNEL: unknown address");
    }

    #[test]
    fn a_trap_is_explained_by_swifts_message_only() {
        let cause = |text: &str| {
            let signal = Signal { number: 4, name: Some("SIGILL"), ..Signal::default() };
            let kept = AppMemory { name: "stderr".to_owned(), bytes: Bytes(text.into()), ..AppMemory::default() };
            let crash = Some(Crash { signal: Some(signal), ..Crash::default() });
            Report { crash, app_memory: vec![kept], ..Report::default() }.cause()
        };
        for older in ["*** backup begins ***\n", "fatal error: no such page, going on\n", "panic: of a child\n"] {
            assert_eq!(cause(older), None, "{older}");
            let swift = "shop/main.swift:18: Fatal error: the shop is closed";
            assert_eq!(cause(&format!("{swift}\n{older}")).as_deref(), Some(swift));
        }
    }

    #[test]
    fn last_messages_of_libraries_are_recognized() {
        // As printed by musl 1.2, libc++ of LLVM 14 and 16, libstdc++ 12, Swift 6.0 and Go 1.19.
        for line in [
            "Assertion failed: pages > 0 (book.c: print: 12)",
            "/usr/lib/llvm-14/bin/../include/c++/v1/vector:523: _LIBCPP_ASSERT '!empty()' failed. front() called on an empty vector",
            "/usr/include/c++/v1/vector:1446: assertion !empty() failed: front() called on an empty vector",
            "libc++abi: terminating with uncaught exception of type std::out_of_range: page 7",
            "shop/main.swift:18: Fatal error: the shop is closed",
            "Swift/ContiguousArrayBuffer.swift:675: Fatal error: Index out of range",
            "shop/main.swift:20: Precondition failed",
        ] {
            assert_eq!(read_stderr(&format!("starts\n{line}\n")).as_deref(), Some(line));
        }
        let thrown = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  page 7\n";
        assert!(read_stderr(thrown).unwrap().ends_with("'std::out_of_range': page 7"));
        let go = "panic: no pages\n\ngoroutine 1 [running]:\nmain.print(...)\n\t/src/book.go:4\n".to_owned()
            + &"at\n".repeat(40);
        assert_eq!(read_stderr(&go).as_deref(), Some("panic: no pages"));
        for other in [
            "",
            "\n",
            "ready",
            "Assertion failed",
            "assertion of the user: none",
            "it failed: no space",
            "main.swift: opened",
        ] {
            assert_eq!(read_stderr(other), None, "{other}");
        }
    }
}
