//! The process: identity, environment, fork, exec, exit, random bytes.

use std::ffi::{CStr, CString, c_char};

use super::Export;
use crate::host::{
    kernel::{self, thread},
    launch, loader,
    signals::numbers,
};

// `environ`, which programs reach by `_NSGetEnviron` (<crt_externs.h>): libc's own variable.
unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

static mut ARGC: i32 = 0;
static mut ARGV: *mut *mut c_char = std::ptr::null_mut();
static mut PROGNAME: *mut c_char = std::ptr::null_mut();
/// The canary for stack protectors. A constant is sufficient for tests.
static STACK_CHK_GUARD: usize = 0x00ab_cdef_0bad_cafe;

/// Stores the program's arguments; returns argc, argv, envp, apple for its `main` and initializers.
pub(crate) fn prepare(arguments: Vec<CString>) -> [usize; 4] {
    let count = arguments.len();
    let mut pointers: Vec<*mut c_char> = arguments.into_iter().map(CString::into_raw).collect();
    pointers.push(std::ptr::null_mut());
    let argv: &'static mut [*mut c_char] = Box::leak(pointers.into_boxed_slice());
    let apple: &'static mut [*mut c_char] = Box::leak(vec![argv[0], std::ptr::null_mut()].into_boxed_slice());
    // SAFETY: before the program runs.
    unsafe {
        ARGC = count as i32;
        ARGV = argv.as_mut_ptr();
        PROGNAME = argv[0];
        [count, ARGV as usize, environ as usize, apple.as_ptr() as usize]
    }
}

pub(super) fn variables() -> Vec<Export> {
    vec![
        Export::variable("__stack_chk_guard", &raw const STACK_CHK_GUARD),
        Export::variable("__progname", &raw const PROGNAME),
        Export::variable("environ", &raw const environ),
    ]
}

extern "C" fn get_argc() -> *const i32 {
    &raw const ARGC
}

extern "C" fn get_argv() -> *const *mut *mut c_char {
    &raw const ARGV
}

extern "C" fn get_environ() -> *const *mut *mut c_char {
    &raw const environ
}

extern "C" fn getprogname() -> *const c_char {
    // SAFETY: set once; the program's name follows the last slash.
    unsafe {
        let slash = libc::strrchr(PROGNAME, i32::from(b'/'));
        if slash.is_null() { PROGNAME } else { slash.add(1) }
    }
}

/// Functions that `fork` calls before it, and after it in the parent and in the child.
///
/// Source: <pthread.h>, `pthread_atfork`.
static AT_FORK: std::sync::Mutex<Vec<[usize; 3]>> = std::sync::Mutex::new(Vec::new());

extern "C" fn pthread_atfork(prepare: usize, parent: usize, child: usize) -> i32 {
    AT_FORK.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push([prepare, parent, child]);
    0
}

/// Calls the functions for one moment; those before the fork run latest first.
fn call_at_fork(functions: &[[usize; 3]], moment: usize) {
    let mut functions: Vec<usize> = functions.iter().map(|all| all[moment]).filter(|function| *function != 0).collect();
    if moment == 0 {
        functions.reverse();
    }
    for function in functions {
        loader::call(function, [0; 4]);
    }
}

/// `fork`: the child has only this thread, also in the host's tables.
extern "C" fn fork() -> i32 {
    let functions = AT_FORK.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    call_at_fork(&functions, 0);
    // SAFETY: the child resets host locks that another thread holds.
    let child = unsafe { libc::fork() };
    if child == 0 {
        kernel::lock::reset();
        kernel::memory::reset();
        kernel::pages::reset();
        loader::reset();
        let this: *mut thread::Thread = thread::current();
        let mut mach = kernel::lock();
        let others: Vec<_> = mach.threads.iter().copied().filter(|&t| t != this).collect();
        for other in others {
            mach.remove_thread(other);
        }
        // SAFETY: the calling thread's own record.
        unsafe { (*this).tid.store(libc::getpid(), std::sync::atomic::Ordering::SeqCst) };
        // Exception ports are inherited without effect: nothing receives there, because the child
        // has no threads for it.
        mach.exception_actions = crate::host::mach::exceptions::ExceptionActions::default();
    }
    call_at_fork(&functions, if child == 0 { 2 } else { 1 });
    child
}

/// Returns a program's path and arguments for Linux: Mach-O programs run through the host.
pub(super) fn through_host(path: &CStr, arguments: *const *const c_char) -> (CString, Vec<CString>) {
    let mut all: Vec<CString> = Vec::new();
    // SAFETY: the program gave a null-terminated array of strings.
    unsafe {
        let mut next = arguments;
        while !(*next).is_null() {
            all.push(CStr::from_ptr(*next).to_owned());
            next = next.add(1);
        }
    }
    if !loader::macho::is_macho(std::path::Path::new(&*path.to_string_lossy())) {
        return (path.to_owned(), all);
    }
    let mut prefix = launch::prefix();
    prefix.push(path.to_owned());
    let host = prefix[0].clone();
    prefix.extend(all.into_iter().skip(1));
    (host, prefix)
}

/// Finds a program by name, through PATH if the name has no slash.
pub(super) fn search(name: &CStr) -> CString {
    let text = name.to_string_lossy();
    if text.contains('/') {
        return name.to_owned();
    }
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/bin:/bin".into());
    let found = path.split(':').map(|folder| format!("{folder}/{text}")).find(|p| std::path::Path::new(p).is_file());
    found.and_then(|p| CString::new(p).ok()).unwrap_or_else(|| name.to_owned())
}

extern "C" fn execve(path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char) -> i32 {
    // SAFETY: the program gave strings and null-terminated arrays.
    unsafe {
        let (path, arguments) = through_host(CStr::from_ptr(path), arguments);
        let mut pointers: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
        pointers.push(std::ptr::null());
        libc::execve(path.as_ptr(), pointers.as_ptr(), environment)
    }
}

extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> i32 {
    // SAFETY: libc's variable.
    execve(path, arguments, unsafe { environ.cast_const().cast() })
}

extern "C" fn execvp(name: *const c_char, arguments: *const *const c_char) -> i32 {
    // SAFETY: the program gave a string.
    let path = search(unsafe { CStr::from_ptr(name) });
    execv(path.as_ptr(), arguments)
}

/// Converts a Linux wait status to Darwin's signal numbers.
///
/// For stopped children the signal is in the second byte.
pub(super) fn status_to_darwin(status: i32) -> i32 {
    let signal = status & 0x7f;
    if signal == 0x7f {
        let stop = (status >> 8) & 0xff;
        return 0x7f | numbers::from_linux(stop).unwrap_or(stop) << 8;
    }
    if signal == 0 { status } else { (status & !0x7f) | numbers::from_linux(signal).unwrap_or(signal) }
}

/// `waitpid`: WNOHANG 1 and WUNTRACED 2 are the same.
extern "C" fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32 {
    let mut linux = 0;
    // SAFETY: a local result; the program gave the address, or none.
    unsafe {
        let result = libc::waitpid(pid, &raw mut linux, options);
        if result > 0 && !status.is_null() {
            status.write(status_to_darwin(linux));
        }
        result
    }
}

extern "C" fn wait(status: *mut i32) -> i32 {
    waitpid(-1, status, 0)
}

fn random(place: *mut u8, size: usize) -> bool {
    let mut done = 0;
    while done < size {
        // SAFETY: the program gave the range.
        let count = unsafe { libc::getrandom(place.add(done).cast(), size - done, 0) };
        if count <= 0 {
            return false;
        }
        done += count as usize;
    }
    true
}

/// <CommonCrypto/CommonRandom.h>: kCCSuccess 0, kCCRNGFailure -4307.
extern "C" fn cc_random(place: *mut u8, size: usize) -> i32 {
    if random(place, size) { 0 } else { -4307 }
}

extern "C" fn arc4random_buf(place: *mut u8, size: usize) {
    random(place, size);
}

extern "C" fn arc4random() -> u32 {
    let mut value = 0u32;
    random((&raw mut value).cast(), 4);
    value
}

extern "C" fn getentropy(place: *mut u8, size: usize) -> i32 {
    if size <= 256 && random(place, size) { 0 } else { super::errno::fail(5) }
}

/// Converts resource numbers of `getrlimit` and `setrlimit`.
///
/// RLIMIT_CORE 4, CPU 0, DATA 2, FSIZE 1, STACK 3 are the same; NPROC 7, NOFILE 8 are not.
fn limit(darwin: i32) -> Option<u32> {
    Some(match darwin & !0x1000 {
        number @ 0..=4 => number as u32,
        5 => libc::RLIMIT_AS,
        7 => libc::RLIMIT_NPROC,
        8 => libc::RLIMIT_NOFILE,
        _ => return None,
    })
}

extern "C" fn getrlimit(number: i32, to: *mut libc::rlimit) -> i32 {
    match limit(number) {
        // SAFETY: the program gave the address; the structure is the same.
        Some(number) => unsafe { libc::getrlimit(number, to) },
        None => super::errno::fail(22),
    }
}

extern "C" fn setrlimit(number: i32, from: *const libc::rlimit) -> i32 {
    match limit(number) {
        // SAFETY: as above.
        Some(number) => unsafe { libc::setrlimit(number, from) },
        None => super::errno::fail(22),
    }
}

unsafe extern "C" {
    fn __cxa_atexit(function: usize, argument: usize, handle: usize) -> i32;
}

/// `atexit`: the function takes no argument; an additional one in a register is harmless.
extern "C" fn atexit(function: usize) -> i32 {
    // SAFETY: libc calls it at exit, on the thread that exits.
    unsafe { __cxa_atexit(function, 0, 0) }
}

super::exports! {
    "_NSGetArgc" => get_argc,
    "_NSGetArgv" => get_argv,
    "_NSGetEnviron" => get_environ,
    "getprogname" => getprogname,
    "getenv" => libc::getenv,
    "setenv" => libc::setenv,
    "unsetenv" => libc::unsetenv,
    "getpid" => libc::getpid,
    "getppid" => libc::getppid,
    "getuid" => libc::getuid,
    "geteuid" => libc::geteuid,
    "getgid" => libc::getgid,
    "getegid" => libc::getegid,
    "setsid" => libc::setsid,
    "setpgid" => libc::setpgid,
    "getpgrp" => libc::getpgrp,
    "fork" => fork,
    "pthread_atfork" => pthread_atfork,
    "execve" => execve,
    "execv" => execv,
    "execvp" => execvp,
    "waitpid" => waitpid,
    "wait" => wait,
    "exit" => libc::exit,
    "_exit" => libc::_exit,
    "_Exit" => libc::_exit,
    "atexit" => atexit,
    "__cxa_atexit" => __cxa_atexit,
    "CCRandomGenerateBytes" => cc_random,
    "arc4random_buf" => arc4random_buf,
    "arc4random" => arc4random,
    "getentropy" => getentropy,
    "getrlimit" => getrlimit,
    "setrlimit" => setrlimit,
}
