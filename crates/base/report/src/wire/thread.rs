//! Threads, their registers and their frames.

use super::encoder::{Encoder, optional_int, optional_text, optional_uint};
use super::keys::{futex, registers, thread};
use super::numbers::{AddressKind, CaptureMethod, ExtraRegister, FoundBy, NotCaptured, ThreadState, WalkEnd};
use coroner_process::futex_wait::FutexWait;
use coroner_process::registers::{Aarch64Registers, Arch, X86_64Registers};

/// The registers of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Registers<'a> {
    general: General<'a>,
    extra: &'a [(ExtraRegister, u64)],
    shadow_stack: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum General<'a> {
    X86_64(&'a X86_64Registers),
    Aarch64(&'a Aarch64Registers),
}

impl<'a> From<&'a X86_64Registers> for Registers<'a> {
    fn from(registers: &'a X86_64Registers) -> Self {
        Registers { general: General::X86_64(registers), extra: &[], shadow_stack: None }
    }
}

impl<'a> From<&'a Aarch64Registers> for Registers<'a> {
    fn from(registers: &'a Aarch64Registers) -> Self {
        Registers { general: General::Aarch64(registers), extra: &[], shadow_stack: None }
    }
}

impl<'a> Registers<'a> {
    /// Adds registers beyond the general ones.
    #[must_use]
    pub fn with_extra(self, extra: &'a [(ExtraRegister, u64)]) -> Self {
        Registers { extra, ..self }
    }

    /// Adds the shadow stack pointer.
    #[must_use]
    pub fn with_shadow_stack(self, shadow_stack: Option<u64>) -> Self {
        Registers { shadow_stack, ..self }
    }

    /// Encodes the registers as a map.
    ///
    /// It has the architecture's number, an array of the general registers, and a map of the
    /// others. The general registers are in the order of [`X86_64Registers`] (16 gpr, pc, flags) or
    /// [`Aarch64Registers`] (31 x, sp, pc, pstate).
    pub fn encode(&self, encoder: &mut Encoder<'_>) {
        let shadow_stack = self.shadow_stack.map(|pointer| (ExtraRegister::SHADOW_STACK, pointer));
        let extra = self.extra.len().wrapping_add(usize::from(shadow_stack.is_some()));
        encoder.map(registers::REQUIRED.wrapping_add(usize::from(extra > 0)));
        encoder.uint(registers::ARCH);
        match self.general {
            General::X86_64(registers) => {
                encoder.uint(u64::from(Arch::X86_64 as u8));
                encoder.uint(registers::GENERAL);
                encoder.array(18);
                for value in registers.gpr {
                    encoder.uint(value);
                }
                encoder.uint(registers.pc);
                encoder.uint(registers.flags);
            }
            General::Aarch64(registers) => {
                encoder.uint(u64::from(Arch::Aarch64 as u8));
                encoder.uint(registers::GENERAL);
                encoder.array(34);
                for value in registers.x {
                    encoder.uint(value);
                }
                encoder.uint(registers.sp);
                encoder.uint(registers.pc);
                encoder.uint(registers.pstate);
            }
        }
        if extra > 0 {
            encoder.uint(registers::EXTRA);
            encoder.map(extra);
            for (register, value) in self.extra.iter().chain(&shadow_stack) {
                encoder.uint(register.0.into());
                encoder.uint(*value);
            }
        }
    }
}

/// A stack frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The address (avma), without pointer authentication code.
    pub pc: u64,
    /// Method by which the frame was found.
    pub found_by: FoundBy,
    /// Kind of the address: instruction or return address.
    pub address_kind: AddressKind,
    /// The stack pointer in this frame, if known.
    pub sp: Option<u64>,
    /// The canonical frame address: the caller's stack pointer, if known.
    pub cfa: Option<u64>,
}

impl Frame {
    /// Encodes `[pc, found_by, address_kind, ? sp - base, ? cfa - sp]`.
    ///
    /// sp is nearly always the CFA of the frame before it, so a frame takes 14 bytes. `base` is
    /// [`next_base`](Self::next_base) of the frame before, 0 for the first.
    pub(super) fn encode(&self, encoder: &mut Encoder<'_>, base: u64) {
        encoder.array(match (self.sp, self.cfa) {
            (None, None) => 3,
            (Some(_), None) => 4,
            (_, Some(_)) => 5,
        });
        encoder.uint(self.pc);
        encoder.uint(self.found_by.0.into());
        encoder.uint(self.address_kind.0.into());
        match self.sp {
            Some(sp) => encoder.int(sp.wrapping_sub(base).cast_signed()),
            None if self.cfa.is_some() => encoder.null(),
            None => {}
        }
        if let Some(cfa) = self.cfa {
            encoder.int(cfa.wrapping_sub(self.sp.unwrap_or(base)).cast_signed());
        }
    }

    /// Returns the address that the next frame's sp is relative to.
    pub(super) fn next_base(&self, base: u64) -> u64 {
        self.cfa.or(self.sp).unwrap_or(base)
    }
}

/// Flags of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadFlags(pub u32);

impl ThreadFlags {
    /// The thread crashed: the first one or, if the report has several, one of them.
    pub const CRASHED: ThreadFlags = ThreadFlags(1);
    /// The thread was running the handler that wrote this report.
    pub const CURRENT: ThreadFlags = ThreadFlags(1 << 1);
    /// The thread is the process's first thread.
    pub const MAIN: ThreadFlags = ThreadFlags(1 << 2);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, other: ThreadFlags) -> ThreadFlags {
        ThreadFlags(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: ThreadFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A thread's data other than its frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thread<'a> {
    /// The system's thread id (Linux tid; Mach thread id).
    pub tid: u64,
    /// Thread name.
    pub name: Option<&'a [u8]>,
    /// Flags of the thread.
    pub flags: ThreadFlags,
    /// State of the thread.
    pub state: Option<ThreadState>,
    /// The system call that the thread was blocked in, if known.
    pub syscall: Option<i64>,
    /// The futex that the thread waits for.
    pub futex: Option<&'a FutexWait>,
    /// Source of the registers.
    pub captured_by: Option<CaptureMethod>,
    /// Why there are no registers.
    pub not_captured: Option<NotCaptured>,
    /// Registers of the thread.
    pub registers: Option<Registers<'a>>,
    /// Stack range, if known: the lowest address and the address after the highest.
    pub stack: Option<(u64, u64)>,
    /// The dispatch queue whose work the thread ran.
    pub queue: Option<&'a [u8]>,
    /// Processor time used, in nanoseconds: in user mode and in the kernel.
    pub cpu_time: Option<(u64, u64)>,
    /// The name of the thread's port in the process (Apple).
    pub port: Option<u32>,
}

impl Thread<'_> {
    /// Encodes one element of a threads section; `false` (and nothing written) if it does not fit.
    ///
    /// If not all frames fit, as many as fit are written, followed by the number of the rest.
    pub fn encode(&self, encoder: &mut Encoder<'_>, frames: &[Frame], end: WalkEnd) -> bool {
        let Some(mut thread) = ThreadEncoder::begin(encoder, self) else { return false };
        for frame in frames {
            thread.frame(frame);
        }
        thread.finish(end);
        true
    }
}

fn encode_futex(encoder: &mut Encoder<'_>, wait: &FutexWait) {
    encoder.map(futex::REQUIRED);
    encoder.uint_pair(futex::ADDRESS, wait.address);
    encoder.uint_pair(futex::OPERATION, wait.operation.into());
    encoder.uint_pair(futex::EXPECTED, wait.expected.into());
    encoder.uint(futex::TIMED);
    encoder.bool(wait.timed);
    encoder.uint_pair(futex::START, wait.start());
    encoder.uint(futex::BYTES);
    encoder.bytes(wait.bytes());
}

/// Bytes kept free for the data after a thread's frames.
///
/// These are the number of frames that did not fit, the end of the array and why the walk ended.
const TAIL: usize = 16;

/// A thread being written frame by frame.
///
/// Once a frame doesn't fit, it and all later frames are counted; the count follows the frames.
#[derive(Debug)]
pub struct ThreadEncoder<'e, 'b> {
    encoder: &'e mut Encoder<'b>,
    base: u64,
    did_not_fit: u64,
}

impl<'e, 'b> ThreadEncoder<'e, 'b> {
    /// Begins an element of a threads section; `None` (and nothing written) if the thread does not
    /// fit.
    pub fn begin(encoder: &'e mut Encoder<'b>, thread: &Thread<'_>) -> Option<Self> {
        let begun = encoder.remaining() > TAIL
            && encoder.element(|encoder| {
                encoder.begin_map();
                encoder.uint_pair(thread::TID, thread.tid);
                optional_text(encoder, thread::NAME, thread.name);
                encoder.uint_pair(thread::FLAGS, thread.flags.0.into());
                optional_uint(encoder, thread::STATE, thread.state.map(|state| state.0.into()));
                optional_uint(encoder, thread::NOT_CAPTURED, thread.not_captured.map(|reason| reason.0.into()));
                optional_int(encoder, thread::SYSCALL, thread.syscall);
                optional_uint(encoder, thread::CAPTURED_BY, thread.captured_by.map(|method| method.0.into()));
                if let Some(wait) = thread.futex {
                    encoder.uint(thread::FUTEX);
                    encode_futex(encoder, wait);
                }
                if let Some((low, high)) = thread.stack {
                    encoder.uint(thread::STACK);
                    encoder.array(2);
                    encoder.uint(low);
                    encoder.uint(high.wrapping_sub(low));
                }
                optional_text(encoder, thread::QUEUE, thread.queue);
                if let Some((user, system)) = thread.cpu_time {
                    encoder.uint(thread::CPU_TIME);
                    encoder.array(2);
                    encoder.uint(user);
                    encoder.uint(system);
                }
                optional_uint(encoder, thread::PORT, thread.port.map(u64::from));
                if let Some(registers) = &thread.registers {
                    encoder.uint(thread::REGISTERS);
                    registers.encode(encoder);
                }
                encoder.uint(thread::FRAMES);
                encoder.begin_array();
                // The output of `finish` must fit: checked here by writing the same number of
                // bytes.
                let mark = encoder.mark();
                encoder.raw(&[0; TAIL]);
                if !encoder.overflowed() {
                    encoder.rollback(mark);
                }
            });
        begun.then_some(ThreadEncoder { encoder, base: 0, did_not_fit: 0 })
    }

    /// Adds a frame, innermost first. `false` if it did not fit and was only counted.
    pub fn frame(&mut self, frame: &Frame) -> bool {
        if self.did_not_fit == 0 {
            let base = self.base;
            if self.keeping_tail(|encoder| frame.encode(encoder, base)) {
                self.base = frame.next_base(base);
                return true;
            }
        }
        self.did_not_fit = self.did_not_fit.saturating_add(1);
        false
    }

    /// Records that `count` frames are left out here, between the previous frame and the next.
    pub fn skip(&mut self, count: u64) {
        if count > 0 && (self.did_not_fit > 0 || !self.keeping_tail(|encoder| encoder.uint(count))) {
            self.did_not_fit = self.did_not_fit.saturating_add(count);
        }
    }

    /// Ends the thread, with the reason for the end of its walk.
    pub fn finish(self, end: WalkEnd) {
        let encoder = self.encoder;
        let end = if self.did_not_fit > 0 {
            encoder.uint(self.did_not_fit);
            WalkEnd::LIMIT
        } else {
            end
        };
        encoder.end();
        encoder.uint_pair(thread::WALK_END, end.0.into());
        encoder.end();
    }

    fn keeping_tail(&mut self, write: impl FnOnce(&mut Encoder<'b>)) -> bool {
        self.encoder.element(|encoder| {
            write(encoder);
            if encoder.remaining() < TAIL {
                // Provokes the overflow that removes the element.
                encoder.raw(&[0; TAIL]);
            }
        })
    }
}
