//! Loaded images, as the caller describes them to a walk.

use crate::rule::Rule;

pub use coroner_process::AddressRange;

/// The container format of an image. It decides how far its unwind data are believed for a frame that was interrupted in
/// the middle: Mach-O's describe function bodies only, ELF's every instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ImageFormat {
    /// ELF.
    #[default]
    Elf = 1,
    /// Mach-O.
    MachO = 2,
}

/// One loaded image, or a part of one that has unwind data of its own. All addresses are absolute (avma), section ranges
/// that are not there are empty. Sections are read through the walk's memory at these addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Image {
    /// The format.
    pub format: ImageFormat,
    /// The code that this entry answers for: executable segments. Data between them does no harm but is then taken for
    /// code where [`Images::is_executable`] does not know better.
    pub text: AddressRange,
    /// Mach-O: the address of the Mach header, to which `__unwind_info` is relative. ELF: unused.
    pub base: u64,
    /// Actual minus stated address, for `.debug_frame`, whose addresses are not relocated.
    pub bias: u64,
    /// ELF `.eh_frame_hdr` (`PT_GNU_EH_FRAME`).
    pub eh_frame_hdr: AddressRange,
    /// ELF `.eh_frame` or Mach-O `__TEXT,__eh_frame`. May be empty in ELF if `eh_frame_hdr` is not: it then ends where
    /// memory or its terminator ends it.
    pub eh_frame: AddressRange,
    /// `.debug_frame`, uncompressed, at any address of the walk's memory.
    ///
    /// It is not loaded with an image (its section is not allocated), so that a walk of a live process has none: Coroner hands none
    /// in. Where a snapshot is walked, read it from the program's file or that of its symbols, put its bytes at an address that
    /// nothing else has, beside the stack's, and say so here; `bias` is then the slide. It is asked where `.eh_frame` has no
    /// entry.
    pub debug_frame: AddressRange,
    /// A search table for `.debug_frame`, in the format of `.eh_frame_hdr`, as [`build_search_table`](crate::build_search_table) makes it.
    pub debug_frame_hdr: AddressRange,
    /// ELF `.sframe` (`PT_GNU_SFRAME`). It is asked where `.eh_frame` has no entry.
    pub sframe: AddressRange,
    /// Mach-O `__TEXT,__unwind_info`.
    pub unwind_info: AddressRange,
    /// Mach-O `__TEXT,__stubs`: jumps that don't touch the stack.
    pub stubs: AddressRange,
    /// Mach-O `__TEXT,__stub_helper`: where functions of other images are first called through. It pushes two words and jumps to
    /// dyld's binder, and has no unwind data.
    pub stub_helper: AddressRange,
    /// Code relative to which `DW_EH_PE_textrel` pointers are (`.text`); `DW_EH_PE_datarel` pointers of `.eh_frame`
    /// are relative to [`Self::data`].
    pub text_section: u64,
    /// The base of `DW_EH_PE_datarel` in `.eh_frame` (`.got`).
    pub data: u64,
}

/// Code with a rule of its own, as an app registers it for a JIT, a bytecode interpreter or a trampoline.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// The code.
    pub range: AddressRange,
    /// What finds the caller of a frame in it, at every instruction.
    pub rule: Rule,
}

/// The code that is loaded in the process that is walked.
///
/// At crash time an implementation must not lock or allocate; it is asked once per address that the cache does not know.
pub trait Images {
    /// Whether an image can be one of Mach-O: where none is, what reads Mach-O's unwind data is not in the program.
    const MACH_O: bool = true;

    /// The image whose code `address` lies in.
    fn find(&self, address: u64) -> Option<Image>;

    /// Whether code can run at `address`; `None` if that is not known (a JIT that was not registered, say).
    fn is_executable(&self, address: u64) -> Option<bool> {
        self.find(address).map(|_| true)
    }

    /// The registered range that `address` lies in. It goes before everything else.
    fn registered(&self, _address: u64) -> Option<Registered> {
        None
    }

    /// A number that changes whenever an answer of [`Self::find`] or [`Self::registered`] may have changed: rules that were
    /// cached under another one are dropped.
    fn generation(&self) -> u64 {
        0
    }
}

impl Image {
    /// The format, of one of these.
    #[inline]
    pub(crate) fn format_in<I: Images>(&self) -> ImageFormat {
        if I::MACH_O { self.format } else { ImageFormat::Elf }
    }
}

/// Images in ascending order of [`Image::text`].
impl Images for [Image] {
    fn find(&self, address: u64) -> Option<Image> {
        let after = self.partition_point(|image| image.text.start <= address);
        self.get(after.checked_sub(1)?).filter(|image| image.text.contains(address)).copied()
    }
}

impl<I: Images + ?Sized> Images for &I {
    const MACH_O: bool = I::MACH_O;

    fn find(&self, address: u64) -> Option<Image> {
        (**self).find(address)
    }

    fn is_executable(&self, address: u64) -> Option<bool> {
        (**self).is_executable(address)
    }

    fn registered(&self, address: u64) -> Option<Registered> {
        (**self).registered(address)
    }

    fn generation(&self) -> u64 {
        (**self).generation()
    }
}
