//! The measured unwinders, each as a function that walks the calling thread's stack.
//!
//! Each returns the number of frames that it found. All do the same work: every return address is
//! obtained (and passed to `black_box`).

use std::{
    arch::asm,
    ffi::{c_int, c_void},
    hint::black_box,
    mem::{self, MaybeUninit},
    ops::{ControlFlow, Range},
    ptr, slice,
};

use coroner_process::{
    context::Context,
    memory::{KernelCopy, LoadGuarded, Windowed, recover_guarded_load},
    registers::{Arch, Registers},
};
use coroner_unwind::{FramePointers, Image, Options, RuleCache, Walker};
use framehop::{CacheNative, ExplicitModuleSectionInfo, Module, Unwinder as _, UnwinderNative};

#[cfg(target_arch = "x86_64")]
type Native = coroner_unwind::X86_64;
#[cfg(target_arch = "aarch64")]
type Native = coroner_unwind::Aarch64;

/// Windows of the kernel's copy: the stack's, and those of three unwind sections.
const WINDOWS: usize = 8;

/// Whether `cargo xtask bench unwind` builds this with frame pointers everywhere.
const FRAME_POINTERS: bool = option_env!("CORONER_BENCH_FRAME_POINTERS").is_some();

/// The unwinders' preparations, which run outside a signal handler.
pub(crate) struct Bench {
    images: Vec<Image>,
    cache: Box<RuleCache>,
    framehop: UnwinderNative<&'static [u8], framehop::MayAllocateDuringUnwind>,
    framehop_cache: CacheNative<framehop::MayAllocateDuringUnwind>,
    libunwind: Option<Libunwind>,
    kernel: Option<Box<Windowed<KernelCopy, WINDOWS>>>,
    /// The bounds of this thread's stack, for the plain walk.
    stack: Range<u64>,
    /// The addresses found, if they are to be recorded.
    pub(crate) record: Option<Vec<u64>>,
}

/// An unwinder.
#[derive(Clone, Copy)]
pub(crate) struct Unwinder {
    pub(crate) name: &'static str,
    /// Prepares the measured state, such as an empty cache. Not timed.
    pub(crate) prepare: fn(&mut Bench),
    /// Walks.
    pub(crate) walk: fn(&mut Bench) -> usize,
    /// Whether it needs frame pointers in all code.
    frame_pointers: bool,
    /// Whether it needs libunwind.
    libunwind: bool,
    /// Whether it is suitable for a stack of 100,000 frames.
    pub(crate) deep: bool,
}

const fn unwinder(name: &'static str, prepare: fn(&mut Bench), walk: fn(&mut Bench) -> usize) -> Unwinder {
    Unwinder { name, prepare, walk, frame_pointers: false, libunwind: false, deep: true }
}

/// All unwinders, ours first.
const ALL: &[Unwinder] = &[
    unwinder("ours cfi warm", nothing, ours),
    unwinder("ours cfi cold", |bench| bench.cache.clear(), ours),
    unwinder("ours cfi warm, kernel copy", forget_windows, ours_by_kernel_copy),
    Unwinder { frame_pointers: true, ..unwinder("ours frame pointers", nothing, ours_frame_pointers) },
    unwinder("libgcc _Unwind_Backtrace", nothing, libgcc),
    unwinder("glibc backtrace", nothing, glibc),
    Unwinder { libunwind: true, deep: false, ..unwinder("libunwind unw_backtrace", nothing, unw_backtrace) },
    Unwinder { libunwind: true, ..unwinder("libunwind unw_step", nothing, unw_step) },
    unwinder("backtrace crate", nothing, backtrace_crate),
    unwinder("framehop warm", nothing, framehop),
    unwinder("framehop cold", framehop_forgets, framehop),
    Unwinder { frame_pointers: true, ..unwinder("plain frame pointers", nothing, plain_frame_pointers) },
];

impl Bench {
    /// Prepares everything that an app would prepare at launch.
    pub(crate) fn new() -> Bench {
        install_fault_handler();
        let mut found: Vec<Found> = Vec::new();
        // SAFETY: the callback has the right C types and doesn't unwind.
        unsafe { libc::dl_iterate_phdr(Some(add_image), (&raw mut found).cast()) };
        found.sort_by_key(|image| image.text.start);
        let images = found.iter().map(Found::image).collect();
        let mut framehop = UnwinderNative::new();
        for image in &found {
            framehop.add_module(image.module());
        }
        let mut cache = Box::new(RuleCache::new());
        cache.prepare();
        let kernel = KernelCopy::new().map(|copy| Box::new(Windowed::new(copy)));
        Bench {
            images,
            cache,
            framehop,
            framehop_cache: CacheNative::new(),
            libunwind: Libunwind::load(),
            kernel,
            stack: stack_bounds(),
            record: None,
        }
    }

    /// Returns the unwinders that can be measured in this build, on this machine.
    pub(crate) fn available(&self) -> Vec<Unwinder> {
        let has = |unwinder: &&Unwinder| {
            (!unwinder.frame_pointers || FRAME_POINTERS) && (!unwinder.libunwind || self.libunwind.is_some())
        };
        ALL.iter().filter(has).copied().collect()
    }

    /// Updates what differs on another thread than the one that created this.
    pub(crate) fn moved_to_this_thread(&mut self) {
        self.stack = stack_bounds();
    }

    #[inline]
    fn see(&mut self, pc: u64) {
        black_box(pc);
        if let Some(record) = &mut self.record {
            record.push(pc);
        }
    }
}

fn nothing(_: &mut Bench) {}

// ---- ours ----

fn ours(bench: &mut Bench) -> usize {
    // SAFETY: `install_fault_handler` installed a handler that calls `recover_guarded_load`, and
    // nothing blocks the signals.
    let memory = unsafe { LoadGuarded::new() };
    let mut registers = Registers::default();
    capture(&mut registers);
    let mut walker =
        Walker::<Native, _, _>::new(&registers, memory, &bench.images[..], &mut bench.cache, Options::default());
    let mut frames = 0;
    walker.for_each(|frame| {
        frames += 1;
        black_box(frame.pc);
        if let Some(record) = &mut bench.record {
            record.push(frame.pc);
        }
        ControlFlow::Continue(())
    });
    frames
}

fn forget_windows(bench: &mut Bench) {
    if let Some(kernel) = &mut bench.kernel {
        coroner_process::memory::Memory::forget(kernel.as_mut());
    }
}

fn ours_by_kernel_copy(bench: &mut Bench) -> usize {
    let Some(kernel) = &mut bench.kernel else { return 0 };
    let mut registers = Registers::default();
    capture(&mut registers);
    let mut walker =
        Walker::<Native, _, _>::new(&registers, &mut **kernel, &bench.images[..], &mut bench.cache, Options::default());
    let mut frames = 0;
    walker.for_each(|frame| {
        frames += 1;
        black_box(frame.pc);
        if let Some(record) = &mut bench.record {
            record.push(frame.pc);
        }
        ControlFlow::Continue(())
    });
    frames
}

fn ours_frame_pointers(bench: &mut Bench) -> usize {
    // SAFETY: as in `ours`.
    let memory = unsafe { LoadGuarded::new() };
    let mut registers = Registers::default();
    capture(&mut registers);
    bench.see(registers.pc);
    let mut frames = 1;
    for pc in FramePointers::<Native, _>::new(registers.fp(), memory, None) {
        frames += 1;
        black_box(pc);
        if let Some(record) = &mut bench.record {
            record.push(pc);
        }
    }
    frames
}

// ---- peers ----

type UnwindCallback = extern "C" fn(context: *mut c_void, argument: *mut c_void) -> c_int;

unsafe extern "C" {
    fn _Unwind_Backtrace(callback: UnwindCallback, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    fn backtrace(buffer: *mut *mut c_void, length: c_int) -> c_int;
}

fn libgcc(bench: &mut Bench) -> usize {
    extern "C" fn count(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: `argument` is the pair that `libgcc` passes; `context` is libgcc's own.
        let (bench, frames) = unsafe { &mut *argument.cast::<(&mut Bench, usize)>() };
        *frames += 1;
        // SAFETY: as above.
        bench.see(unsafe { _Unwind_GetIP(context) } as u64);
        0
    }
    let mut argument = (bench, 0usize);
    // SAFETY: the callback has the type that libgcc expects, and `argument` outlives the walk.
    unsafe { _Unwind_Backtrace(count, (&raw mut argument).cast()) };
    argument.1
}

/// Returns the calling thread's return addresses, as found by libgcc.
pub(crate) fn libgcc_addresses() -> Vec<u64> {
    extern "C" fn keep(context: *mut c_void, argument: *mut c_void) -> c_int {
        // SAFETY: `argument` is the vector that `libgcc_addresses` passes; `context` is libgcc's
        // own.
        unsafe { (*argument.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
        0
    }
    let mut addresses = Vec::new();
    // SAFETY: the callback has the type that libgcc expects, and `addresses` outlives the walk.
    unsafe { _Unwind_Backtrace(keep, (&raw mut addresses).cast()) };
    addresses
}

fn glibc(bench: &mut Bench) -> usize {
    let mut shallow = [ptr::null_mut(); 128];
    // A recursion needs a larger buffer than fits on a signal handler's stack.
    let mut deep: Vec<*mut c_void> = Vec::new();
    let buffer = if bench.stack.end - bench.stack.start > 16 << 20 {
        deep.resize(110_000, ptr::null_mut());
        &mut deep[..]
    } else {
        &mut shallow[..]
    };
    // SAFETY: the buffer has this many elements.
    let frames = unsafe { backtrace(buffer.as_mut_ptr(), buffer.len() as c_int) };
    let frames = usize::try_from(frames).unwrap_or(0);
    for pc in &buffer[..frames] {
        bench.see(*pc as u64);
    }
    frames
}

fn backtrace_crate(bench: &mut Bench) -> usize {
    let mut frames = 0;
    // SAFETY: no other thread of the program uses the crate.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            frames += 1;
            bench.see(frame.ip() as u64);
            true
        });
    }
    frames
}

/// This machine's nongnu libunwind, if there is one.
///
/// The names of its functions contain the architecture.
struct Libunwind {
    backtrace: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int,
    get_context: unsafe extern "C" fn(*mut c_void) -> c_int,
    init: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
    step: unsafe extern "C" fn(*mut c_void) -> c_int,
    register: unsafe extern "C" fn(*mut c_void, c_int, *mut usize) -> c_int,
    _library: libloading::Library,
}

/// `UNW_REG_IP`.
const UNW_REG_IP: c_int = if cfg!(target_arch = "x86_64") { 16 } else { 30 };

impl Libunwind {
    fn load() -> Option<Libunwind> {
        let arch = match Arch::NATIVE {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        };
        // SAFETY: libunwind's constructors only fill tables.
        let library = unsafe { libloading::Library::new("libunwind.so.8") }.ok()?;
        macro_rules! function {
            ($name:expr) => {
                // SAFETY: the fields have the types of libunwind.h; they live as long as the
                // library.
                *unsafe { library.get($name.as_bytes()) }.ok()?
            };
        }
        Some(Libunwind {
            backtrace: function!("unw_backtrace"),
            get_context: function!(format!("_U{arch}_getcontext")),
            init: function!(format!("_UL{arch}_init_local")),
            step: function!(format!("_UL{arch}_step")),
            register: function!(format!("_UL{arch}_get_reg")),
            _library: library,
        })
    }
}

fn unw_backtrace(bench: &mut Bench) -> usize {
    let Some(libunwind) = &bench.libunwind else { return 0 };
    let mut buffer = [ptr::null_mut(); 128];
    // SAFETY: the buffer has 128 elements.
    let frames = unsafe { (libunwind.backtrace)(buffer.as_mut_ptr(), 128) };
    let frames = usize::try_from(frames).unwrap_or(0);
    for pc in &buffer[..frames] {
        bench.see(*pc as u64);
    }
    frames
}

fn unw_step(bench: &mut Bench) -> usize {
    let Some(libunwind) = &bench.libunwind else { return 0 };
    let (step, register) = (libunwind.step, libunwind.register);
    // Larger than `unw_context_t` and `unw_cursor_t` on both architectures.
    let mut context = MaybeUninit::<[u64; 1024]>::uninit();
    let mut cursor = MaybeUninit::<[u64; 4096]>::uninit();
    let mut frames = 0;
    // SAFETY: the buffers are large enough, and the context is that of this function, which does
    // not return meanwhile.
    unsafe {
        (libunwind.get_context)(context.as_mut_ptr().cast());
        (libunwind.init)(cursor.as_mut_ptr().cast(), context.as_mut_ptr().cast());
        loop {
            let mut pc = 0usize;
            (register)(cursor.as_mut_ptr().cast(), UNW_REG_IP, &raw mut pc);
            frames += 1;
            bench.see(pc as u64);
            if (step)(cursor.as_mut_ptr().cast()) <= 0 {
                return frames;
            }
        }
    }
}

fn framehop(bench: &mut Bench) -> usize {
    let mut registers = Registers::default();
    capture(&mut registers);
    let Bench { framehop, framehop_cache, stack, record, .. } = bench;
    // As its documentation requires: a bounds check and a plain load.
    let mut read = |address: u64| {
        if address < stack.start || address > stack.end - 8 {
            return Err(());
        }
        // SAFETY: the address is in this thread's stack.
        Ok(unsafe { (address as *const u64).read_unaligned() })
    };
    #[cfg(target_arch = "x86_64")]
    let native = framehop::UnwindRegsNative::new(registers.pc, registers.sp(), registers.fp());
    #[cfg(target_arch = "aarch64")]
    let native = framehop::UnwindRegsNative::new(registers.lr(), registers.sp(), registers.fp());
    let mut iterator = framehop.iter_frames(registers.pc, native, framehop_cache, &mut read);
    let mut frames = 0;
    while let Ok(Some(frame)) = iterator.next() {
        frames += 1;
        black_box(frame.address());
        if let Some(record) = record {
            record.push(frame.address());
        }
    }
    frames
}

/// Its cache can't be cleared; rules of another generation of modules are not used.
fn framehop_forgets(bench: &mut Bench) {
    let far = 0x10..0x20;
    let module =
        Module::new(String::new(), far.clone(), far.start, ExplicitModuleSectionInfo::<&'static [u8]>::default());
    bench.framehop.add_module(module);
    bench.framehop.remove_module(far.start);
}

fn plain_frame_pointers(bench: &mut Bench) -> usize {
    let mut registers = Registers::default();
    capture(&mut registers);
    bench.see(registers.pc);
    let mut frames = 1;
    let mut frame_pointer = registers.fp();
    while frame_pointer >= bench.stack.start && frame_pointer <= bench.stack.end - 16 && frame_pointer.is_multiple_of(8)
    {
        // SAFETY: both words are in this thread's stack.
        let [next, pc] = unsafe { (frame_pointer as *const [u64; 2]).read() };
        if pc == 0 {
            break;
        }
        bench.see(pc);
        frames += 1;
        if next <= frame_pointer {
            break;
        }
        frame_pointer = next;
    }
    frames
}

// ---- shared code ----

/// Captures the registers at this point of the function that this is inlined into.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the registers must be the caller's")]
fn capture(registers: &mut Registers) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: stores registers to memory, and changes only rax.
    unsafe {
        asm!(
            "mov [{to} + 24], rbx", "mov [{to} + 48], rbp", "mov [{to} + 56], rsp", "mov [{to} + 96], r12",
            "mov [{to} + 104], r13", "mov [{to} + 112], r14", "mov [{to} + 120], r15", "lea rax, [rip]",
            "mov [{to} + 128], rax",
            to = in(reg) ptr::from_mut(registers), out("rax") _, options(nostack, preserves_flags),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: stores registers to memory, and changes only x8.
    unsafe {
        asm!(
            "stp x19, x20, [{to}, #152]", "stp x21, x22, [{to}, #168]", "stp x23, x24, [{to}, #184]",
            "stp x25, x26, [{to}, #200]", "stp x27, x28, [{to}, #216]", "stp x29, x30, [{to}, #232]",
            "mov x8, sp", "str x8, [{to}, #248]", "adr x8, .", "str x8, [{to}, #256]",
            to = in(reg) ptr::from_mut(registers), out("x8") _, options(nostack, preserves_flags),
        );
    }
}

fn install_fault_handler() {
    extern "C" fn handler(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: it is the third argument of a handler with SA_SIGINFO.
        let context = unsafe { Context::from_pointer(context) };
        if !recover_guarded_load(context) {
            // SAFETY: the fault happens again on return and ends the process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: a zeroed sigaction is valid; the handler has the type that SA_SIGINFO requires.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(signal, &raw const action, ptr::null_mut());
        }
    }
}

fn stack_bounds() -> Range<u64> {
    // SAFETY: reads this thread's attributes and releases them.
    unsafe {
        let mut attributes: libc::pthread_attr_t = mem::zeroed();
        let (mut start, mut length) = (ptr::null_mut(), 0);
        libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes);
        libc::pthread_attr_getstack(&raw const attributes, &raw mut start, &raw mut length);
        libc::pthread_attr_destroy(&raw mut attributes);
        start as u64..start as u64 + length as u64
    }
}

/// An image of this process.
struct Found {
    bias: u64,
    text: Range<u64>,
    eh_frame_hdr: Range<u64>,
    /// From `.eh_frame` to the end of its segment.
    eh_frame: Range<u64>,
}

extern "C" fn add_image(info: *mut libc::dl_phdr_info, _: usize, images: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a valid description; `images` is the vector of
    // `Bench::new`.
    let (info, images) = unsafe { (&*info, &mut *images.cast::<Vec<Found>>()) };
    // SAFETY: as above.
    let segments = unsafe { slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let bias = info.dlpi_addr;
    let range = |segment: &libc::Elf64_Phdr| bias + segment.p_vaddr..bias + segment.p_vaddr + segment.p_memsz;
    let text = segments.iter().find(|segment| segment.p_type == libc::PT_LOAD && segment.p_flags & libc::PF_X != 0);
    let hdr = segments.iter().find(|segment| segment.p_type == libc::PT_GNU_EH_FRAME);
    let (Some(text), Some(hdr)) = (text, hdr) else { return 0 };
    let hdr = range(hdr);
    // Every linker writes the pointer to .eh_frame as 32 bits relative to its own address
    // (DW_EH_PE_pcrel | sdata4).
    // SAFETY: the segment is mapped and begins with this header.
    let offset = unsafe { ((hdr.start + 4) as *const i32).read_unaligned() };
    let eh_frame = (hdr.start + 4).wrapping_add_signed(i64::from(offset));
    let end = segments
        .iter()
        .filter(|segment| segment.p_type == libc::PT_LOAD)
        .map(range)
        .find(|range| range.contains(&eh_frame))
        .map_or(eh_frame, |range| range.end);
    images.push(Found { bias, text: range(text), eh_frame_hdr: hdr, eh_frame: eh_frame..end });
    0
}

impl Found {
    fn image(&self) -> Image {
        Image {
            text: self.text.clone().into(),
            bias: self.bias,
            eh_frame_hdr: self.eh_frame_hdr.clone().into(),
            eh_frame: self.eh_frame.clone().into(),
            ..Image::default()
        }
    }

    fn module(&self) -> Module<&'static [u8]> {
        let bytes = |range: &Range<u64>| -> &'static [u8] {
            // SAFETY: the range is in a mapped read-only segment of an image that is never unloaded
            // here.
            unsafe { slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize) }
        };
        let stated = |range: &Range<u64>| range.start - self.bias..range.end - self.bias;
        Module::new(
            String::new(),
            self.text.clone(),
            self.bias,
            ExplicitModuleSectionInfo {
                base_svma: 0,
                eh_frame_hdr_svma: Some(stated(&self.eh_frame_hdr)),
                eh_frame_hdr: Some(bytes(&self.eh_frame_hdr)),
                eh_frame_svma: Some(stated(&self.eh_frame)),
                eh_frame: Some(bytes(&self.eh_frame)),
                ..Default::default()
            },
        )
    }
}
