//! Images with code like that of Apple's libraries in the places that a stack walk reaches.
//!
//! These are a thread's start, the caller of `main`, and the functions above `abort`.
//!
//! * `/usr/lib/system/libsystem_pthread.dylib`: `thread_start`, with the same instructions as in
//!   libpthread's src/pthread_asm.s (the same in libpthread-454.40.3, macOS 11.0, and
//!   libpthread-539): assembly without call frame information, for which the linker writes the
//!   encoding 0, "no unwind info" (<mach-o/compact_unwind_encoding.h>). It is followed by the start
//!   of `thread_chkstk_darwin`, and calls `_pthread_start`, a C function with a frame record
//!   (src/pthread.c). `pthread_kill` calls `__pthread_kill`.
//! * `/usr/lib/system/libdyld.dylib`: dyld 3's `start` (dyld-832.7.1, macOS 11.0, src/start_glue.s,
//!   no call frame information). `main` is entered by a jump with a return address in it
//!   (dyld3/StartGlue.h, `address_of_start`).
//! * `/usr/lib/dyld`: dyld 4's `start` (dyld-1122.1, macOS 14, dyld/dyldMain.cpp), a C++ function
//!   with a frame record that calls `main`; `__dyld_start` (dyld/dyldStartup.s) calls it with frame
//!   pointer and return address 0.
//! * `/usr/lib/system/libsystem_c.dylib`: `abort` (Libc stdlib/FreeBSD/abort.c), `raise`
//!   (gen/FreeBSD/raise.c) and `__assert_rtn` (gen/assert.c), which call `pthread_kill`, or
//!   `abort`.
//!
//! * Waits for locks, in libsystem_pthread (libpthread-454.40.3, macOS 11.0): `pthread_mutex_lock`
//!   (src/pthread_mutex.c: `_pthread_mutex_firstfit_lock_slow`,
//!   `_pthread_mutex_firstfit_lock_wait`, `__psynch_mutexwait`), `pthread_cond_wait` and similar
//!   functions (src/pthread_cond.c: `_pthread_cond_wait`, `__psynch_cvwait`, then the mutex's
//!   lock), `pthread_rwlock_rdlock` and `…_wrlock` (src/pthread_rwlock.c:
//!   `_pthread_rwlock_lock_slow`, `_pthread_rwlock_lock_wait`, `__psynch_rw_rdlock`, `…_wrlock`);
//!   and in `/usr/lib/system/libsystem_platform.dylib` (libplatform-254, src/os/lock.c):
//!   `os_unfair_lock_lock`, `_os_unfair_lock_lock_slow`, `__ulock_wait`. The calls do all the work
//!   ([`crate::libsystem`]'s locks).
//!
//! Everything a function does besides the calls visible on a stack is done by the host, through
//! imports that macOS doesn't have.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    image::Image,
    synthetic::{Bytes, ENCODING_FRAME, header, protect, put, unwind_info},
};
use crate::host::{gate, kernel::pages, libsystem::conditions};

/// The encoding of a function without unwind data.
const ENCODING_NONE: u32 = 0;
const TEXT_START: usize = 0x1000;

static THREAD_START: AtomicUsize = AtomicUsize::new(0);
static START: AtomicUsize = AtomicUsize::new(0);

/// Returns the address of `thread_start`.
pub(crate) fn thread_start() -> usize {
    THREAD_START.load(Ordering::Relaxed)
}

/// Returns an address in `start`.
///
/// In dyld 3 it is the return address of `main`, in dyld 4 the code that calls `main`.
pub(crate) fn start() -> usize {
    START.load(Ordering::Relaxed)
}

/// A function under construction.
struct Function {
    name: &'static str,
    encoding: u32,
    code: Code,
}

impl Function {
    /// Returns the address of the next function if this one is at `at`.
    fn end(&self, at: usize) -> usize {
        (at + self.code.0.len()).next_multiple_of(4)
    }
}

/// Machine code.
#[derive(Default)]
struct Code(Vec<u8>);

#[cfg(target_arch = "x86_64")]
impl Code {
    /// `push rbp; mov rbp, rsp`.
    fn prologue() -> Code {
        Code(vec![0x55, 0x48, 0x89, 0xe5])
    }
    fn bytes(mut self, bytes: &[u8]) -> Code {
        self.0.extend_from_slice(bytes);
        self
    }
    /// `mov rax, address; call rax`.
    fn call(self, address: usize) -> Code {
        self.bytes(&[0x48, 0xb8]).bytes(&address.to_le_bytes()).bytes(&[0xff, 0xd0])
    }
    /// `pop rbp; ret`.
    fn epilogue(self) -> Code {
        self.bytes(&[0x5d, 0xc3])
    }
    /// `jmp [rip]; .quad address`.
    fn jump(self, address: usize) -> Code {
        self.bytes(&[0xff, 0x25, 0, 0, 0, 0]).bytes(&address.to_le_bytes())
    }
    /// `ud2`.
    fn trap(self) -> Code {
        self.bytes(&[0x0f, 0x0b])
    }
    /// `mov rdi, rax; mov esi, 6`: SIGABRT to the returned thread.
    fn abort_arguments(self) -> Code {
        self.bytes(&[0x48, 0x89, 0xc7, 0xbe, 6, 0, 0, 0])
    }
}

#[cfg(target_arch = "aarch64")]
impl Code {
    fn words(mut self, words: &[u32]) -> Code {
        for word in words {
            self.0.extend_from_slice(&word.to_le_bytes());
        }
        self
    }
    /// `stp x29, x30, [sp, #-16]!; mov x29, sp`.
    fn prologue() -> Code {
        Code::default().words(&[0xa9bf_7bfd, 0x9100_03fd])
    }
    /// `ldr x16, .+8; b .+12; .quad address; blr x16`.
    fn call(self, address: usize) -> Code {
        let mut code = self.words(&[0x5800_0050, 0x1400_0003]);
        code.0.extend_from_slice(&address.to_le_bytes());
        code.words(&[0xd63f_0200])
    }
    /// `ldp x29, x30, [sp], #16; ret`.
    fn epilogue(self) -> Code {
        self.words(&[0xa8c1_7bfd, 0xd65f_03c0])
    }
    /// `ldr x16, .+8; br x16; .quad address`.
    fn jump(self, address: usize) -> Code {
        let mut code = self.words(&[0x5800_0050, 0xd61f_0200]);
        code.0.extend_from_slice(&address.to_le_bytes());
        code
    }
    /// `brk #1`.
    fn trap(self) -> Code {
        self.words(&[0xd420_0020])
    }
    /// `mov w1, #6`; the returned thread is in x0.
    fn abort_arguments(self) -> Code {
        self.words(&[0x5280_00c1])
    }
}

/// Returns `thread_start` with its neighbors, and `_pthread_start`.
///
/// Their order determines how `thread_start` reaches `_pthread_start`.
#[cfg(target_arch = "x86_64")]
fn thread_functions() -> Vec<Function> {
    // push $0; push %rbp; mov %rsp,%rbp; sub $16,%rsp; call __pthread_start; leave; ret. The call's
    // distance is filled in below.
    let thread_start = Code(vec![0x6a, 0, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 16, 0xe8, 0, 0, 0, 0, 0xc9, 0xc3]);
    // pushq %rcx; leaq 0x10(%rsp),%rcx; …; popq %rcx; retq
    let chkstk = Code(vec![0x51, 0x48, 0x8d, 0x4c, 0x24, 0x10, 0x59, 0xc3]);
    // (self->fun)(self->arg), then the thread's end, for which the host needs the record of
    // thread_start: call rax; mov rbp, [rbp]; jmp.
    let pthread_start = Code::prologue().bytes(&[0xff, 0xd0, 0x48, 0x8b, 0x6d, 0]).jump(gate::left_address());
    vec![
        Function { name: "_thread_start", encoding: ENCODING_NONE, code: thread_start },
        Function { name: "_thread_chkstk_darwin", encoding: ENCODING_NONE, code: chkstk },
        Function { name: "__pthread_start", encoding: ENCODING_FRAME, code: pthread_start },
    ]
}

#[cfg(target_arch = "aarch64")]
fn thread_functions() -> Vec<Function> {
    // stp xzr, xzr, [sp, #-16]!; bl __pthread_start; nop. The call's distance is filled in below.
    let thread_start = Code::default().words(&[0xa9bf_7fff, 0x9400_0000, 0xd503_201f]);
    // stp x10, x11, [sp, #-16]; mrs x10, TPIDRRO_EL0; …; ldp x10, x11, [sp, #-16]; ret
    let chkstk = Code::default().words(&[0xa93f_2fea, 0xd53b_d06a, 0xa97f_2fea, 0xd65f_03c0]);
    // As on x86_64. blr x16; add x29, sp, #16; …
    let pthread_start = Code::prologue().words(&[0xd63f_0200, 0x9100_43fd]).jump(gate::left_address());
    vec![
        Function { name: "_thread_start", encoding: ENCODING_NONE, code: thread_start },
        Function { name: "_thread_chkstk_darwin", encoding: ENCODING_NONE, code: chkstk },
        Function { name: "__pthread_start", encoding: ENCODING_FRAME, code: pthread_start },
    ]
}

/// Fills in the distance of `thread_start`'s call.
fn link_thread_start(thread_start: usize, pthread_start: usize) {
    if cfg!(target_arch = "x86_64") {
        let behind = thread_start + 15;
        put(behind - 4, &(pthread_start.wrapping_sub(behind) as u32).to_le_bytes());
    } else {
        let call = thread_start + 4;
        let distance = (pthread_start.wrapping_sub(call) / 4) as u32 & 0x03ff_ffff;
        put(call, &(0x9400_0000 | distance).to_le_bytes());
    }
}

/// dyld 3's `start`.
///
/// x86_64: nop; movl %eax,%edi; call _exit; hlt. arm64: nop; bl _exit; brk #3. The call's target is
/// a jump to the host's function.
#[cfg(target_arch = "x86_64")]
fn start_of_dyld_3(exit: usize) -> Code {
    Code(vec![0x90, 0x89, 0xc7, 0xe8, 1, 0, 0, 0, 0xf4]).jump(exit)
}

#[cfg(target_arch = "aarch64")]
fn start_of_dyld_3(exit: usize) -> Code {
    Code::default().words(&[0xd503_201f, 0x9400_0002, 0xd420_0060]).jump(exit)
}

/// dyld 4's `start` from the call of `main`: `exit(main(…))`.
#[cfg(target_arch = "x86_64")]
fn start_of_dyld_4(exit: usize) -> Code {
    Code::default().bytes(&[0xff, 0xd0, 0x89, 0xc7]).call(exit).trap()
}

#[cfg(target_arch = "aarch64")]
fn start_of_dyld_4(exit: usize) -> Code {
    Code::default().words(&[0xd63f_0200]).call(exit).trap()
}

/// `raise`: pthread_kill(pthread_self(), number).
#[cfg(target_arch = "x86_64")]
fn raise(this: usize, pthread_kill: usize) -> Code {
    // sub rsp, 16; mov [rbp - 8], edi; call; mov rdi, rax; mov esi, [rbp - 8]; call; leave; ret
    let code = Code::prologue().bytes(&[0x48, 0x83, 0xec, 16, 0x89, 0x7d, 0xf8]).call(this);
    code.bytes(&[0x48, 0x89, 0xc7, 0x8b, 0x75, 0xf8]).call(pthread_kill).bytes(&[0xc9, 0xc3])
}

#[cfg(target_arch = "aarch64")]
fn raise(this: usize, pthread_kill: usize) -> Code {
    // stp x29, x30, [sp, #-32]!; mov x29, sp; str w0, [sp, #28]; …; ldr w1, [sp, #28]; …; ldp x29,
    // x30, [sp], #32; ret
    let code = Code::default().words(&[0xa9be_7bfd, 0x9100_03fd, 0xb900_1fe0]).call(this);
    code.words(&[0xb940_1fe1]).call(pthread_kill).words(&[0xa8c2_7bfd, 0xd65f_03c0])
}

/// Creates a function that calls another one with its own arguments.
fn frame(name: &'static str, callee: usize) -> Function {
    Function { name, encoding: ENCODING_FRAME, code: Code::prologue().call(callee).epilogue() }
}

/// `_pthread_cond_wait`: waits, then takes the mutex, which is its second argument, again.
///
/// The call's seventh and eighth arguments are the time: 0, or `seconds`.
#[cfg(target_arch = "x86_64")]
fn condition_wait(call: usize, mutex_lock: usize, seconds: u8) -> Code {
    // push rsi; sub rsp, 8; push 0; push seconds; call; mov [rbp - 16], eax; mov rdi, [rbp - 8];
    // call; mov eax, [rbp - 16]; leave; ret
    let code = Code::prologue().bytes(&[0x56, 0x48, 0x83, 0xec, 8, 0x6a, 0, 0x6a, seconds]).call(call);
    let code = code.bytes(&[0x89, 0x45, 0xf0, 0x48, 0x8b, 0x7d, 0xf8]).call(mutex_lock);
    code.bytes(&[0x8b, 0x45, 0xf0, 0xc9, 0xc3])
}

#[cfg(target_arch = "aarch64")]
fn condition_wait(call: usize, mutex_lock: usize, _seconds: u8) -> Code {
    // stp x29, x30, [sp, #-32]!; mov x29, sp; str x1, [sp, #16]; …; str w0, [sp, #24]; ldr x0, [sp,
    // #16]; …; ldr w0, [sp, #24]; ldp x29, x30, [sp], #32; ret. The host supplies x6 and x7.
    let code = Code::default().words(&[0xa9be_7bfd, 0x9100_03fd, 0xf900_0be1]).call(call);
    let code = code.words(&[0xb900_1be0, 0xf940_0be0]).call(mutex_lock);
    code.words(&[0xb940_1be0, 0xa8c2_7bfd, 0xd65f_03c0])
}

/// Functions that each call the one before; the first calls the stub with this name.
type Chain = (&'static [&'static str], &'static str);

const MUTEX: Chain = (
    &["__pthread_mutex_firstfit_lock_wait", "__pthread_mutex_firstfit_lock_slow", "_pthread_mutex_lock"],
    "___psynch_mutexwait",
);
const CONDITIONS: [(&str, &str, u8); 3] = [
    ("_pthread_cond_wait", "___psynch_cvwait", 0),
    ("_pthread_cond_timedwait", "___psynch_cvwait@absolute", 1),
    ("_pthread_cond_timedwait_relative_np", "___psynch_cvwait@relative", 1),
];
const READ_WRITE: [Chain; 2] = [
    (&["__pthread_rwlock_lock_wait", "__pthread_rwlock_lock_slow", "_pthread_rwlock_rdlock"], "___psynch_rw_rdlock"),
    (&["__pthread_rwlock_lock_wait", "__pthread_rwlock_lock_slow", "_pthread_rwlock_wrlock"], "___psynch_rw_wrlock"),
];

const UNFAIR_LOCK: [&str; 2] = ["__os_unfair_lock_lock_slow", "_os_unfair_lock_lock"];

/// Functions of an image under construction, starting at its first address.
struct Functions {
    next: usize,
    all: Vec<Function>,
}

impl Functions {
    fn new(place: &Place) -> Functions {
        Functions { next: place.text(), all: Vec::new() }
    }

    /// Adds a function and returns its future address.
    fn add(&mut self, function: Function) -> usize {
        let at = self.next;
        self.next = function.end(at);
        self.all.push(function);
        at
    }

    /// Adds a chain's functions and returns the last one's future address.
    fn chain(&mut self, names: &[&'static str], callee: usize) -> usize {
        names.iter().fold(callee, |callee, name| self.add(frame(name, callee)))
    }
}

/// The images created here.
pub(super) struct SystemImages {
    pub(super) images: Vec<Image>,
    /// dyld, which is not in the list of images (<mach-o/dyld_images.h>, `dyldImageLoadAddress`).
    pub(super) dyld: Option<Image>,
    /// The symbols that programs import from them, with Darwin's underscore.
    pub(super) exports: Vec<(String, usize)>,
}

/// Creates the images. `host` returns the stub of an import by its name (with Darwin's underscore).
pub(super) fn create(host: impl Fn(&str) -> usize) -> SystemImages {
    let pthread = Place::reserve();
    let mut functions = Functions::new(&pthread);
    let at: Vec<usize> = thread_functions().into_iter().map(|function| functions.add(function)).collect();
    let (thread_start, pthread_start) = (at[0], at[2]);
    let pthread_kill = functions.add(frame("_pthread_kill", host("___pthread_kill")));
    let mutex_lock = functions.chain(MUTEX.0, host(MUTEX.1));
    let mut exports = vec![("_pthread_kill", pthread_kill), ("_pthread_mutex_lock", mutex_lock)];
    for (name, call, seconds) in CONDITIONS {
        let code = condition_wait(host(call), mutex_lock, seconds);
        let wait = functions.add(Function { name: "__pthread_cond_wait", encoding: ENCODING_FRAME, code });
        exports.push((name, functions.add(frame(name, wait))));
    }
    for (names, call) in READ_WRITE {
        exports.push((names[names.len() - 1], functions.chain(names, host(call))));
    }
    let (pthread, _) = pthread.build("/usr/lib/system/libsystem_pthread.dylib", *b"PTHR", &functions.all);
    link_thread_start(thread_start, pthread_start);
    THREAD_START.store(thread_start, Ordering::Relaxed);

    let (exit, is_later) = (host("_exit"), conditions::is_later());
    let (code, encoding, path) = if is_later {
        (start_of_dyld_4(exit), ENCODING_FRAME, "/usr/lib/dyld")
    } else {
        (start_of_dyld_3(exit), ENCODING_NONE, "/usr/lib/system/libdyld.dylib")
    };
    let (dyld, at) = Place::reserve().build(path, *b"DYLD", &[Function { name: "start", encoding, code }]);
    let behind_nop = if cfg!(target_arch = "x86_64") { 1 } else { 4 };
    START.store(at[0] + if is_later { 0 } else { behind_nop }, Ordering::Relaxed);

    let platform = Place::reserve();
    let mut functions = Functions::new(&platform);
    let call = if is_later { "___ulock_wait2" } else { "___ulock_wait" };
    exports.push((UNFAIR_LOCK[1], functions.chain(&UNFAIR_LOCK, host(call))));
    let (platform, _) = platform.build("/usr/lib/system/libsystem_platform.dylib", *b"PLAT", &functions.all);

    let c = Place::reserve();
    let abort = Code::prologue().call(host("_darwin_host_abort_begins")).abort_arguments();
    let abort = abort.call(pthread_kill).call(host("_darwin_host_abort_ends")).trap();
    let assert = Code::prologue().call(host("_darwin_host_assert_says")).call(c.text()).trap();
    let functions = [
        Function { name: "_abort", encoding: ENCODING_FRAME, code: abort },
        Function { name: "___assert_rtn", encoding: ENCODING_FRAME, code: assert },
        Function { name: "_raise", encoding: ENCODING_FRAME, code: raise(host("_pthread_self"), pthread_kill) },
    ];
    let (c, at) = c.build("/usr/lib/system/libsystem_c.dylib", *b"LIBC", &functions);
    exports.extend(functions.iter().map(|function| function.name).zip(at));
    let exports = exports.into_iter().map(|(name, at)| (name.to_owned(), at)).collect();

    let mut images = vec![pthread, platform, c];
    for image in images.iter().chain([&dyld]) {
        protect(image.header, image.text.1 - image.text.0);
    }
    let dyld = if is_later {
        Some(dyld)
    } else {
        images.push(dyld);
        None
    };
    SystemImages { images, dyld, exports }
}

/// Memory for an image.
struct Place {
    base: usize,
    text_size: usize,
    linkedit_size: usize,
}

impl Place {
    fn reserve() -> Place {
        let (text_size, linkedit_size) = (pages::round(TEXT_START + 0x2000), pages::round(0x1000));
        let base = pages::map(text_size + linkedit_size) as usize;
        assert!(base != 0, "no memory for the system's images");
        Place { base, text_size, linkedit_size }
    }

    /// Returns the future address of the first function.
    fn text(&self) -> usize {
        self.base + TEXT_START
    }

    /// Builds the image: header, code, unwind data, symbols; also returns its functions' addresses.
    fn build(self, path: &str, uuid: [u8; 4], functions: &[Function]) -> (Image, Vec<usize>) {
        let Place { base, text_size, linkedit_size } = self;
        let (unwind, symbols, strings) = (base + text_size - 0x1000, base + text_size, base + text_size + 0x400);
        let (mut at, mut places, mut names) = (self.text(), Vec::new(), Bytes(vec![0]));
        for (index, function) in functions.iter().enumerate() {
            put(at, &function.code.0);
            let entry = symbols + index * 16;
            put(entry, &(names.0.len() as u32).to_le_bytes());
            put(entry + 4, &[0xf, 1, 0, 0]); // N_SECT | N_EXT, section 1
            put(entry + 8, &(at - base).to_le_bytes());
            names.0.extend_from_slice(function.name.as_bytes());
            names.0.push(0);
            places.push(at);
            at = function.end(at);
        }
        put(strings, &names.0);
        let rules: Vec<_> = places.iter().zip(functions).map(|(at, f)| ((at - base) as u32, f.encoding)).collect();
        let rules = unwind_info(&rules, (at - base) as u32);
        put(unwind, &rules);
        let sections = [
            ("__text", base + TEXT_START, at - base - TEXT_START, 0x8000_0400),
            ("__unwind_info", unwind, rules.len(), 0),
        ];
        let symbols = (symbols, functions.len(), strings, names.0.len());
        (header(base, path, uuid, &sections, (text_size, linkedit_size), symbols), places)
    }
}
