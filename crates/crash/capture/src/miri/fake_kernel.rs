//! A replacement for the Linux kernel under Miri, which runs no system calls and no assembly.
//!
//! All of Coroner's system calls come here ([`coroner_system_call`]), as do the routines that are
//! assembly elsewhere: Miri binds a foreign function to the definition that it finds in the
//! program. Files and mappings are heap memory, so that Miri detects an access outside a mapping,
//! after it was unmapped, or concurrent with another thread's. Clock, threads and futexes are
//! Miri's own. A signal is a call of its handler: immediately for a fault ([`fault`]), at the
//! receiver's next system call for a sent signal. If a handler sends a thread to the end of a
//! guarded run, its frames are unwound.
//!
//! Limits: no fork, no timers, no seccomp, no tracing, no descriptor limits. The alternate stack is
//! recorded, but not used. A handler's frames are unwound where a real kernel drops them.

extern crate std;

use std::boxed::Box;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::format;
use std::string::{String, ToString};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use coroner_process::context::{Context, SignalInfo, SignalStack};
use coroner_process::registers::Registers;
use coroner_process::signals::{SignalAction, bit};

/// ID of the process.
pub(crate) const PID: i32 = 4000;

/// Page size in bytes.
pub(crate) const PAGE: usize = 4096;

/// Address at which a thread continues after a guarded run.
const LANDING: u64 = 0xfa4e_0000;

/// A mapping.
struct Region {
    end: usize,
    permissions: &'static str,
    path: String,
    /// Path of the file that is mapped here, until it is unmapped.
    file: Option<String>,
}

/// A file or a directory.
#[derive(Default)]
struct Node {
    is_directory: bool,
    inode: u64,
    bytes: Vec<u8>,
    /// Address of the file's shared mapping.
    mapped: Option<usize>,
}

struct Descriptor {
    path: String,
    offset: usize,
}

#[derive(Default)]
struct Thread {
    mask: u64,
    pending: VecDeque<SignalInfo>,
    alternate: Option<SignalStack>,
    /// Registers that the thread has when a sent signal interrupts it.
    registers: Registers,
}

#[derive(Default)]
struct Kernel {
    regions: BTreeMap<usize, Region>,
    nodes: BTreeMap<String, Node>,
    descriptors: BTreeMap<i32, Descriptor>,
    threads: BTreeMap<i32, Thread>,
    actions: BTreeMap<i32, SignalAction>,
    auxiliary: BTreeMap<u64, u64>,
    inodes: u64,
    random: u64,
}

static KERNEL: Mutex<Option<Kernel>> = Mutex::new(None);

/// The kernel, locked. No handler runs while this is held.
struct Locked(MutexGuard<'static, Option<Kernel>>);

impl std::ops::Deref for Locked {
    type Target = Kernel;
    fn deref(&self) -> &Kernel {
        self.0.as_ref().expect("made by `kernel`")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Kernel {
        self.0.as_mut().expect("made by `kernel`")
    }
}

fn kernel() -> Locked {
    let mut locked = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    locked.get_or_insert_with(Kernel::default);
    Locked(locked)
}

/// Removes a thread from the list when it ends.
struct Ending(Cell<i32>);

impl Drop for Ending {
    fn drop(&mut self) {
        kernel().threads.remove(&self.0.get());
    }
}

std::thread_local! {
    static THIS: Ending = const { Ending(Cell::new(0)) };
}

/// Returns the calling thread's ID; 0 for one that is ending.
pub(crate) fn this_thread() -> i32 {
    let mut tid = THIS.try_with(|this| this.0.get()).unwrap_or(-1);
    if tid == 0 {
        let mut kernel = kernel();
        tid = kernel.threads.last_key_value().map_or(PID, |(last, _)| last + 1);
        kernel.threads.insert(tid, Thread::default());
        THIS.with(|this| this.0.set(tid));
    }
    tid.max(0)
}

/// Removes the calling thread, which runs the test, from the process until its next system call.
pub(crate) fn leave_process() {
    THIS.with(|this| kernel().threads.remove(&this.0.replace(0)));
}

/// Sets the registers that the calling thread has when a sent signal interrupts it.
pub(crate) fn set_registers(registers: Registers) {
    let tid = this_thread();
    kernel().threads.entry(tid).or_default().registers = registers;
}

/// Sets a value that getauxval(3) returns from now on.
pub(crate) fn set_auxiliary(entry: u64, value: u64) {
    kernel().auxiliary.insert(entry, value);
}

/// Maps zeroed memory, as a file of that path.
pub(crate) fn map(size: usize, permissions: &'static str, path: &str) -> usize {
    let size = size.next_multiple_of(PAGE);
    // SAFETY: the size is not 0.
    let at = unsafe { std::alloc::alloc_zeroed(layout(size)) }.expose_provenance();
    let region = Region { end: at + size, permissions, path: path.to_string(), file: None };
    kernel().regions.insert(at, region);
    at
}

/// Unmaps what [`map`] returned.
pub(crate) fn unmap(at: usize) {
    let mut kernel = kernel();
    let Some(region) = kernel.regions.remove(&at) else { return };
    let size = region.end - at;
    if let Some(node) = region.file.and_then(|file| kernel.nodes.get_mut(&file)) {
        let length = node.bytes.len();
        node.bytes.copy_from_slice(&copy_of(at, length));
        node.mapped = None;
    }
    drop(kernel);
    // SAFETY: it was allocated with this layout by `map`. Miri must find uses after this.
    unsafe { std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(at), layout(size)) };
}

fn layout(size: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(size, PAGE).expect("small")
}

fn copy_of(at: usize, length: usize) -> Vec<u8> {
    let mut bytes = std::vec![0; length];
    let from = std::ptr::with_exposed_provenance::<u8>(at);
    // SAFETY: the caller's: a buffer of the program, or a region.
    unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
    bytes
}

/// Writes plain data to an address that the program passed.
fn put<T>(at: usize, value: T) {
    // SAFETY: the program passed the address; Miri checks the access.
    unsafe { std::ptr::with_exposed_provenance_mut::<T>(at).write(value) };
}

/// Reads plain data from an address that the program passed.
fn get<T: Copy>(at: usize) -> T {
    // SAFETY: as in `put`.
    unsafe { std::ptr::with_exposed_provenance::<T>(at).read() }
}

fn put_bytes(at: usize, bytes: &[u8]) {
    // SAFETY: as in `put`.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Returns a file's bytes, or `None` if it doesn't exist.
pub(crate) fn read_file(path: &str) -> Option<Vec<u8>> {
    let kernel = kernel();
    let node = kernel.nodes.get(path).filter(|node| !node.is_directory)?;
    Some(node.mapped.map_or_else(|| node.bytes.clone(), |at| copy_of(at, node.bytes.len())))
}

/// Result of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultEnd {
    /// The process dies of the fault.
    Died,
    /// The thread continues at that address.
    Continues(u64),
}

/// Simulates a fault of an instruction of the calling thread with these registers: the kernel calls
/// the handler, and again as long as it returns to the same instruction.
pub(crate) fn fault(signal: i32, code: i32, address: u64, registers: &Registers) -> FaultEnd {
    let tid = this_thread();
    for _ in 0..8 {
        let mut info = SignalInfo::NONE;
        (info.signo, info.code) = (signal, code);
        put::<u64>((&raw mut info).expose_provenance() + 16, address);
        let (action, mask) = {
            let kernel = kernel();
            (kernel.actions.get(&signal).copied().unwrap_or_default(), kernel.threads.get(&tid).map_or(0, |it| it.mask))
        };
        if !action.is_function() || mask & bit(signal) != 0 {
            return FaultEnd::Died;
        }
        let context = handle(tid, &action, info, registers, mask);
        if context.pc() == LANDING {
            std::panic::resume_unwind(Box::new(Landing(context.result())));
        }
        if context.pc() != registers.pc {
            return FaultEnd::Continues(context.pc());
        }
    }
    panic!("a fault without end");
}

/// Calls a handler like the kernel.
fn handle(tid: i32, action: &SignalAction, mut info: SignalInfo, registers: &Registers, mask: u64) -> Context {
    let signal = info.signo;
    let alternate = {
        let mut kernel = kernel();
        let thread = kernel.threads.entry(tid).or_default();
        thread.mask |= action.mask | bit(signal);
        thread.alternate
    };
    let mut context = Context::of_registers(registers, mask);
    *context.alternate_stack() = alternate.unwrap_or(SignalStack { sp: 0, flags: libc::SS_DISABLE, size: 0 });
    let handler = std::ptr::with_exposed_provenance::<()>(action.handler);
    // SAFETY: the program installed a function with this signature.
    let handler: extern "C" fn(i32, *mut SignalInfo, *mut Context) = unsafe { std::mem::transmute(handler) };
    handler(signal, &raw mut info, &raw mut context);
    let mut kernel = kernel();
    let thread = kernel.threads.entry(tid).or_default();
    (thread.mask, thread.alternate) = (context.signal_mask(), Some(*context.alternate_stack()));
    context
}

/// Delivers the signals that were sent to the calling thread and that it does not block.
fn deliver() {
    let tid = this_thread();
    loop {
        let (info, action, registers, mask) = {
            let mut kernel = kernel();
            let Some(thread) = kernel.threads.get_mut(&tid) else { return };
            let mask = thread.mask;
            let Some(at) = thread.pending.iter().position(|info| mask & bit(info.signo) == 0) else { return };
            let (info, registers) = (thread.pending.remove(at).expect("found"), thread.registers);
            (info, kernel.actions.get(&info.signo).copied().unwrap_or_default(), registers, mask)
        };
        if action.is_function() {
            let after = handle(tid, &action, info, &registers, mask);
            assert_eq!(after.pc(), registers.pc, "a signal that was sent moved the thread");
        }
    }
}

/// Marks a place in the program where a thread may be interrupted.
pub(crate) fn pause() {
    // Some steps of the other threads: 10 milliseconds of Miri's time.
    std::thread::sleep(std::time::Duration::from_millis(10));
    deliver();
}

/// Panic payload that unwinds to a guarded run.
struct Landing(u64);

/// Replaces the routine of `coroner_process::guarded_run`: the point's words are the stack pointer
/// inside the run, and the address at which it continues.
#[unsafe(no_mangle)]
extern "C" fn coroner_guarded_run(
    point: *const [u64; 2],
    function: unsafe extern "C-unwind" fn(*mut libc::c_void),
    argument: *mut libc::c_void,
) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    // SAFETY: a `Point`, which is two atomic words.
    let [sp, land] = unsafe { &*point.cast::<[AtomicU64; 2]>() };
    sp.store(16, Ordering::Relaxed);
    land.store(LANDING, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let run = std::panic::AssertUnwindSafe(|| unsafe { function(argument) });
    let code = match std::panic::catch_unwind(run) {
        Ok(()) => 0,
        Err(cause) => match cause.downcast::<Landing>() {
            Ok(landing) => landing.0,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    };
    sp.store(0, Ordering::Relaxed);
    code
}

#[unsafe(no_mangle)]
extern "C" fn coroner_stack_call(
    _top: usize,
    function: unsafe extern "C" fn(*mut libc::c_void),
    argument: *mut libc::c_void,
) {
    // SAFETY: the caller's promise.
    unsafe { function(argument) };
}

#[unsafe(no_mangle)]
extern "C" fn coroner_load_bytes(to: *mut u8, address: u64, count: usize) -> usize {
    let Some(bytes) = kernel().read(address as usize, count) else { return 1 };
    // SAFETY: the caller's buffer.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), count) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn coroner_tracer_clone(_: u64, _: usize, _: unsafe extern "C" fn(), _: *const (), _: *mut u32) -> isize {
    -(libc::EPERM as isize)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn coroner_test_fault(address: u64) {
    fault(libc::SIGSEGV, 1, address, &Registers { pc: 0x1000, ..Registers::default() });
}

// Functions of the C library that Coroner calls at install.

type Handler = Option<unsafe extern "C" fn()>;

#[unsafe(no_mangle)]
extern "C" fn getauxval(entry: libc::c_ulong) -> libc::c_ulong {
    kernel().auxiliary.get(&entry).copied().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn dl_iterate_phdr(_: Handler, _: *const ()) -> i32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn dladdr(_: *const (), _: *mut ()) -> i32 {
    0
}

#[unsafe(no_mangle)]
extern "C" fn sigaddset(set: *mut u64, signal: i32) -> i32 {
    // SAFETY: the first word of the C library's set is the kernel's.
    unsafe { *set |= bit(signal) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn sigaction(signal: i32, action: *const libc::sigaction, before: *mut libc::sigaction) -> i32 {
    let now = kernel().actions.get(&signal).copied().unwrap_or_default();
    // SAFETY: the caller's structures, if there are any; all zeroes is one.
    unsafe {
        if let Some(before) = before.as_mut() {
            *before = std::mem::zeroed();
            (before.sa_sigaction, before.sa_flags) = (now.handler, now.flags as i32);
        }
        if let Some(action) = action.as_ref() {
            let mask = get((&raw const action.sa_mask).expose_provenance());
            let (handler, flags) = (action.sa_sigaction, action.sa_flags as u64);
            kernel().actions.insert(signal, SignalAction { handler, flags, restorer: 0, mask });
        }
    }
    0
}

/// Runs each of Coroner's system calls; returns the result, or the negated error number.
#[unsafe(no_mangle)]
extern "C-unwind" fn coroner_system_call(number: i64, arguments: &[usize; 6]) -> isize {
    let result = match number {
        libc::SYS_futex => futex(*arguments),
        libc::SYS_munmap => {
            unmap(arguments[0]);
            Ok(0)
        }
        libc::SYS_sched_yield => Ok(0),
        number => call(number, *arguments),
    };
    deliver();
    match result {
        Ok(value) => value as isize,
        Err(errno) => -(errno as isize),
    }
}

/// A result, or an error number.
type Answer = Result<usize, i32>;

/// Runs a futex call on Miri's own futex. Other operations only check whether a word can be
/// accessed.
fn futex([word, operation, value, timeout, second, _]: [usize; 6]) -> Answer {
    let operation = operation as i32 & !libc::FUTEX_PRIVATE_FLAG;
    let is_there = |word: usize| kernel().read(word, 4).is_some();
    match operation {
        libc::FUTEX_WAKE_OP => return if is_there(second) { Ok(0) } else { Err(libc::EFAULT) },
        libc::FUTEX_WAIT if timeout != 0 && get::<[i64; 2]>(timeout) == [0; 2] => {
            return Err(if is_there(word) { libc::EAGAIN } else { libc::EFAULT });
        }
        _ => {}
    }
    let word = std::ptr::with_exposed_provenance::<u32>(word);
    let slowed = (timeout != 0).then(|| {
        let [seconds, nanoseconds] = get::<[u64; 2]>(timeout);
        let time = (seconds * 1_000_000_000 + nanoseconds).saturating_mul(SLOWER);
        libc::timespec { tv_sec: (time / 1_000_000_000) as i64, tv_nsec: (time % 1_000_000_000) as i64 }
    });
    let timeout = slowed.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the caller's word and timeout.
    let result = unsafe {
        match operation {
            libc::FUTEX_WAKE => libc::syscall(libc::SYS_futex, word, operation, value as i32),
            libc::FUTEX_WAIT => libc::syscall(libc::SYS_futex, word, operation, value as u32, timeout),
            _ => libc::syscall(
                libc::SYS_futex,
                word,
                operation,
                value as u32,
                timeout,
                std::ptr::null_mut::<u32>(),
                u32::MAX,
            ),
        }
    };
    usize::try_from(result).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))
}

/// Factor by which time passes more slowly than for Miri, which counts a step of the program as 5
/// microseconds.
const SLOWER: u64 = 20;

fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec; Miri's own clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64) / SLOWER
}

/// Runs the calls that never wait.
fn call(number: i64, arguments: [usize; 6]) -> Answer {
    let tid = this_thread();
    let [first, second, third, fourth, fifth, _] = arguments;
    match number {
        libc::SYS_getpid | libc::SYS_getppid => return Ok(PID as usize),
        libc::SYS_gettid => return Ok(tid as usize),
        libc::SYS_clock_gettime => {
            /// Wall clock time at the start, in seconds since the Unix epoch.
            const BEGAN: u64 = 1_800_000_000;
            let offset = if first as i32 == libc::CLOCK_REALTIME { BEGAN } else { 0 };
            let now = now();
            put(second, [now / 1_000_000_000 + offset, now % 1_000_000_000]);
            return Ok(0);
        }
        libc::SYS_mmap => {
            let (address, size, protection, descriptor) = (first, second, third as i32, fifth as i32);
            if address != 0 {
                return Err(libc::EINVAL);
            }
            let permissions = if protection & libc::PROT_WRITE != 0 { "rw-p" } else { "r--p" };
            let at = map(size, permissions, "");
            return if descriptor >= 0 { kernel().map_file(descriptor, at) } else { Ok(at) };
        }
        _ => {}
    }
    let mut kernel = kernel();
    match number {
        libc::SYS_rt_sigaction => {
            let before = kernel.actions.get(&(first as i32)).copied().unwrap_or_default();
            if second != 0 {
                kernel.actions.insert(first as i32, get(second));
            }
            if third != 0 {
                put(third, before);
            }
            Ok(0)
        }
        libc::SYS_rt_sigprocmask => {
            let thread = kernel.threads.entry(tid).or_default();
            let before = thread.mask;
            if second != 0 {
                let set: u64 = get(second);
                thread.mask = match first as i32 {
                    libc::SIG_SETMASK => set,
                    libc::SIG_UNBLOCK => before & !set,
                    _ => before | set,
                };
            }
            put(third, before);
            Ok(0)
        }
        libc::SYS_rt_sigtimedwait => {
            let set: u64 = get(first);
            let thread = kernel.threads.entry(tid).or_default();
            let at = thread.pending.iter().position(|info| set & bit(info.signo) != 0).ok_or(libc::EAGAIN)?;
            Ok(thread.pending.remove(at).map_or(0, |info| info.signo as usize))
        }
        libc::SYS_sigaltstack => {
            let thread = kernel.threads.entry(tid).or_default();
            let before = thread.alternate.unwrap_or(SignalStack { sp: 0, flags: libc::SS_DISABLE, size: 0 });
            if first != 0 {
                thread.alternate = Some(get(first));
            }
            if second != 0 {
                put(second, before);
            }
            Ok(0)
        }
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => {
            let thread = kernel.threads.get_mut(&(second as i32)).filter(|_| first as i32 == PID).ok_or(libc::ESRCH)?;
            let mut info = if fourth == 0 { SignalInfo::NONE } else { get(fourth) };
            info.signo = third as i32;
            if info.signo != 0 {
                thread.pending.push_back(info);
            }
            Ok(0)
        }
        libc::SYS_process_vm_readv => {
            let (local, remote): (libc::iovec, libc::iovec) = (get(second), get(fourth));
            let bytes = kernel.read(remote.iov_base.addr(), remote.iov_len).ok_or(libc::EFAULT)?;
            // SAFETY: the caller's buffer, of the same size.
            unsafe { local.iov_base.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(bytes.len())
        }
        libc::SYS_mprotect | libc::SYS_utimensat => Ok(0),
        libc::SYS_prctl if first as i32 == libc::PR_GET_NAME => {
            put_bytes(second, format!("thread-{tid}\0").as_bytes());
            Ok(0)
        }
        libc::SYS_prctl if first as i32 == libc::PR_GET_SECCOMP => Ok(0),
        libc::SYS_getrandom => {
            let bytes: Vec<u8> = (0..second).map(|_| kernel.random()).collect();
            put_bytes(first, &bytes);
            Ok(second)
        }
        libc::SYS_getcpu => {
            put(first, tid as u32);
            Ok(0)
        }
        libc::SYS_prlimit64 => {
            put(fourth, [4096_u64; 2]);
            Ok(0)
        }
        libc::SYS_readlinkat if text(second) == "/proc/self/exe" => {
            put_bytes(third, PROGRAM.as_bytes());
            Ok(PROGRAM.len())
        }
        number => kernel.file_call(number, arguments),
    }
}

/// Path of the program.
pub(crate) const PROGRAM: &str = "/fake/program";

/// Returns a NUL-terminated string of the program.
fn text(at: usize) -> String {
    // SAFETY: the caller's string.
    let text = unsafe { std::ffi::CStr::from_ptr(std::ptr::with_exposed_provenance(at)) };
    text.to_string_lossy().into_owned()
}

impl Kernel {
    /// Returns the bytes at an address, if all of them are mapped and readable.
    fn read(&self, address: usize, length: usize) -> Option<Vec<u8>> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        let is_there = address.checked_add(length)? <= region.end && region.permissions.starts_with('r');
        is_there.then(|| copy_of(address, length))
    }

    fn random(&mut self) -> u8 {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.random >> 56) as u8
    }

    /// Runs the file system calls.
    fn file_call(&mut self, number: i64, [first, second, third, fourth, ..]: [usize; 6]) -> Answer {
        /// `fstat` and `ftruncate` of x86_64, which libc lacks for Android.
        const FSTAT: i64 = 5;
        const FTRUNCATE: i64 = 77;
        match number {
            libc::SYS_openat => self.open(first as i32, &text(second), third as i32),
            libc::SYS_mkdirat => {
                let path = self.path(first as i32, &text(second))?;
                if self.nodes.contains_key(&path) {
                    return Err(libc::EEXIST);
                }
                self.make(path, true);
                Ok(0)
            }
            libc::SYS_unlinkat => {
                let path = self.path(first as i32, &text(second))?;
                self.nodes.remove(&path).map(|_| 0).ok_or(libc::ENOENT)
            }
            libc::SYS_faccessat => {
                let path = self.path(first as i32, &text(second))?;
                self.nodes.get(&path).map(|_| 0).ok_or(libc::ENOENT)
            }
            libc::SYS_close => self.descriptors.remove(&(first as i32)).map(|_| 0).ok_or(libc::EBADF),
            libc::SYS_fcntl if second as i32 == libc::F_DUPFD_CLOEXEC => {
                let Descriptor { path, offset } = self.descriptors.get(&(first as i32)).ok_or(libc::EBADF)?;
                let copy = Descriptor { path: path.clone(), offset: *offset };
                let free =
                    (third as i32..).find(|number| !self.descriptors.contains_key(number)).ok_or(libc::EMFILE)?;
                self.descriptors.insert(free, copy);
                Ok(free as usize)
            }
            libc::SYS_fcntl => Ok(0),
            FSTAT => {
                let path = &self.descriptors.get(&(first as i32)).ok_or(libc::EBADF)?.path;
                // SAFETY: all zeroes is a `stat`.
                let mut status: libc::stat = unsafe { std::mem::zeroed() };
                status.st_ino = self.nodes.get(path).map_or(1, |node| node.inode);
                status.st_nlink = self.threads.len() as u64 + 2;
                put(second, status);
                Ok(0)
            }
            libc::SYS_lseek => {
                let length = self.content(first as i32)?.len();
                let offset = if third as i32 == libc::SEEK_END { length } else { second };
                self.descriptors.get_mut(&(first as i32)).ok_or(libc::EBADF)?.offset = offset;
                Ok(offset)
            }
            libc::SYS_read | libc::SYS_getdents64 | libc::SYS_pread64 => {
                let content = self.content(first as i32)?;
                let descriptor = self.descriptors.get_mut(&(first as i32)).ok_or(libc::EBADF)?;
                let offset = if number == libc::SYS_pread64 { fourth } else { descriptor.offset };
                let rest = content.get(offset..).unwrap_or_default();
                let count = rest.len().min(third);
                put_bytes(second, &rest[..count]);
                descriptor.offset = offset + count;
                Ok(count)
            }
            libc::SYS_fallocate | FTRUNCATE => {
                let size = if number == FTRUNCATE { second } else { fourth };
                let bytes = &mut self.node(first as i32)?.bytes;
                let kept = bytes.len().min(size);
                // Zeroed by the allocator: Miri would take seconds to fill it.
                let mut resized = std::vec![0; size];
                resized[..kept].copy_from_slice(&bytes[..kept]);
                *bytes = resized;
                Ok(0)
            }
            libc::SYS_pwrite64 => {
                let bytes = copy_of(second, third);
                let node = self.node(first as i32)?;
                node.bytes.resize(node.bytes.len().max(fourth + third), 0);
                node.bytes[fourth..fourth + third].copy_from_slice(&bytes);
                Ok(third)
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn make(&mut self, path: String, is_directory: bool) {
        self.inodes += 1;
        self.nodes.insert(path, Node { is_directory, inode: self.inodes + 1, ..Node::default() });
    }

    fn path(&self, directory: i32, name: &str) -> Result<String, i32> {
        if name.starts_with('/') {
            return Ok(name.to_string());
        }
        let directory = self.descriptors.get(&directory).ok_or(libc::EBADF)?;
        Ok(format!("{}/{name}", directory.path))
    }

    fn open(&mut self, directory: i32, name: &str, flags: i32) -> Answer {
        let path = self.path(directory, name)?;
        let is_of_kernel = self.proc_file(&path).is_some();
        match self.nodes.get_mut(&path) {
            Some(_) if flags & libc::O_EXCL != 0 => return Err(libc::EEXIST),
            Some(node) if flags & libc::O_TRUNC != 0 => node.bytes.clear(),
            None if flags & libc::O_CREAT != 0 => self.make(path.clone(), false),
            None if !is_of_kernel => return Err(libc::ENOENT),
            _ => {}
        }
        let free = (3..).find(|number| !self.descriptors.contains_key(number)).ok_or(libc::EMFILE)?;
        self.descriptors.insert(free, Descriptor { path, offset: 0 });
        Ok(free as usize)
    }

    fn node(&mut self, descriptor: i32) -> Result<&mut Node, i32> {
        let path = &self.descriptors.get(&descriptor).ok_or(libc::EBADF)?.path;
        self.nodes.get_mut(path).ok_or(libc::EINVAL)
    }

    fn content(&self, descriptor: i32) -> Result<Vec<u8>, i32> {
        let path = &self.descriptors.get(&descriptor).ok_or(libc::EBADF)?.path;
        match self.nodes.get(path) {
            Some(node) => Ok(node.bytes.clone()),
            None => self.proc_file(path).ok_or(libc::EINVAL),
        }
    }

    /// Returns the content of a /proc file.
    fn proc_file(&self, path: &str) -> Option<Vec<u8>> {
        match path {
            "/proc/self/maps" => {
                let mut text = String::new();
                for (start, Region { end, permissions, path, .. }) in &self.regions {
                    let inode = u8::from(!path.is_empty());
                    text += &format!("{start:x}-{end:x} {permissions} 00000000 00:00 {inode} {path}\n");
                }
                Some(text.into_bytes())
            }
            "/proc/self/task" => {
                // struct linux_dirent64 {u64 ino; s64 off; u16 reclen; u8 type; char name[]}
                let mut entries = Vec::new();
                for tid in self.threads.keys() {
                    let mut entry = [0; 32];
                    entry[16] = 32;
                    let name = tid.to_string();
                    entry[19..19 + name.len()].copy_from_slice(name.as_bytes());
                    entries.extend_from_slice(&entry);
                }
                Some(entries)
            }
            _ => None,
        }
    }

    /// Makes the fresh mapping `at` the file's mapping.
    fn map_file(&mut self, descriptor: i32, at: usize) -> Answer {
        let path = self.descriptors.get(&descriptor).ok_or(libc::EBADF)?.path.clone();
        let node = self.nodes.get_mut(&path).ok_or(libc::ENODEV)?;
        node.mapped = Some(at);
        put_bytes(at, &node.bytes);
        if let Some(region) = self.regions.get_mut(&at) {
            region.file = Some(path);
        }
        Ok(at)
    }
}
