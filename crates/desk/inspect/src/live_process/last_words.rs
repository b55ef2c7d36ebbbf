//! Records of a process's own libraries about its end: glibc's message before `abort`, and the C++
//! exception that the crashed thread is handling.

use coroner_exceptions::other_process::describe_caught;
use coroner_formats::snapshot::target::{LastWords, Target};
use coroner_process::memory::{Memory, Unreadable};
use coroner_report::model::{Annotation, Exception, Image};
use coroner_report::wire::Language;
use object::{Object, ObjectSymbol};

use super::{LinuxProcess, original_file};

/// Maximum size of a message or a type's name, in bytes.
const MAX_TEXT: usize = 4096;
/// Size of the searched part of a thread's static thread-local storage, in bytes.
const MAX_THREAD_LOCAL: u64 = 64 << 10;
/// Nothing is mapped below this address.
const NEAR_NULL: u64 = 0x1_0000;

/// Returns the records of a process that called `abort`.
pub(super) fn read(process: &LinuxProcess, images: &[Image]) -> LastWords {
    let aborts = process.crash.signal.as_ref().is_some_and(|signal| signal.number == libc::SIGABRT);
    if !aborts {
        return LastWords::default();
    }
    LastWords { annotation: abort_message(process, images), exception: caught_exception(process) }
}

struct ProcessMemory<'p>(&'p LinuxProcess);

impl Memory for ProcessMemory<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        if self.0.read(address, into) == into.len() { Ok(()) } else { Err(Unreadable { address }) }
    }
}

/// Reads glibc's `__abort_msg`, which points to `{unsigned size; char text[]}`.
fn abort_message(process: &LinuxProcess, images: &[Image]) -> Option<Annotation> {
    let is_libc = |image: &&Image| image.path.ends_with("/libc.so.6");
    // A program may have glibc linked in.
    let image = images.iter().find(is_libc).or_else(|| images.iter().find(|image| image.is_main))?;
    let variable = symbol(process, image, "__abort_msg")?;
    let mut memory = ProcessMemory(process);
    let message = memory.read_u64(variable).ok().filter(|message| *message != 0)?;
    let size = memory.read_u64(message).ok()? as u32;
    let mut bytes = vec![0; (size as usize).saturating_sub(4).min(MAX_TEXT)];
    let length = process.read(message + 4, &mut bytes);
    let text = bytes[..length].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(text).into_owned();
    (!text.is_empty()).then(|| Annotation { source: "libc.so.6".to_owned(), text, ..Annotation::default() })
}

/// Returns the address of a symbol in an image's file.
fn symbol(process: &LinuxProcess, image: &Image, name: &str) -> Option<u64> {
    let range = process.mapped.iter().find(|range| range.mapping.start == image.load_address)?;
    let path = original_file::find_path(process.number(), range).unwrap_or_else(|| image.path.clone().into());
    let bytes = std::fs::read(path).ok()?;
    let file = object::File::parse(&*bytes).ok()?;
    let is_it = |symbol: &object::Symbol<'_, '_>| symbol.is_definition() && symbol.name() == Ok(name);
    let found = file.dynamic_symbols().find(is_it).or_else(|| file.symbols().find(is_it))?;
    Some(found.address().wrapping_add(image.slide.0))
}

/// Finds the crashed thread's `__cxa_eh_globals` by what its first word points to.
fn caught_exception(process: &LinuxProcess) -> Option<Exception> {
    let pointer = thread_pointer(process.threads.first()?.tid as i32)?;
    let storage = thread_local_storage(process, pointer);
    let mut memory = ProcessMemory(process);
    let (mut name, mut message) = ([0; MAX_TEXT], [0; MAX_TEXT]);
    let words = storage.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut headers = words.filter(|word| *word >= NEAR_NULL && word.is_multiple_of(8) && word >> 48 == 0);
    let found = headers.find_map(|header| describe_caught(&mut memory, header, &mut name, &mut message))?;
    let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned()).filter(|text| !text.is_empty());
    Some(Exception {
        language: Language::CPP,
        type_name: text(&name[..found.type_name]),
        message: text(&message[..found.message]),
        ..Exception::default()
    })
}

/// Returns a thread's static thread-local storage, which ends at the thread pointer on x86_64.
#[cfg(target_arch = "x86_64")]
fn thread_local_storage(process: &LinuxProcess, pointer: u64) -> Vec<u8> {
    const PAGE: u64 = 4096;
    let mut start = pointer & !(PAGE - 1);
    while pointer.saturating_sub(start) < MAX_THREAD_LOCAL && process.read(start.wrapping_sub(PAGE), &mut [0]) == 1 {
        start -= PAGE;
    }
    let mut bytes = vec![0; (pointer - start) as usize];
    let length = process.read(start, &mut bytes);
    bytes.truncate(length);
    bytes
}

/// Returns a thread's static thread-local storage, which begins at the thread pointer on arm64.
#[cfg(target_arch = "aarch64")]
fn thread_local_storage(process: &LinuxProcess, pointer: u64) -> Vec<u8> {
    let mut bytes = vec![0; MAX_THREAD_LOCAL as usize];
    let length = process.read(pointer, &mut bytes);
    bytes.truncate(length);
    bytes
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer(tid: i32) -> Option<u64> {
    nix::sys::ptrace::getregs(nix::unistd::Pid::from_raw(tid)).ok().map(|registers| registers.fs_base)
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer(tid: i32) -> Option<u64> {
    /// `NT_ARM_TLS` of <linux/elf.h>.
    const NT_ARM_TLS: usize = 0x401;
    let mut pointer = 0_u64;
    let mut part = libc::iovec { iov_base: (&raw mut pointer).cast(), iov_len: size_of::<u64>() };
    // SAFETY: the kernel writes at most the vector's length, which is the local variable's size.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, NT_ARM_TLS, &raw mut part) };
    (result == 0).then_some(pointer)
}
