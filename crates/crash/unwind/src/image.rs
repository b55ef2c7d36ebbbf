//! Descriptions of loaded images that the caller provides to a walk.

use crate::rule::Rule;

pub use coroner_process::AddressRange;

/// Container format of an image. It determines how far its unwind data are trusted for a frame that
/// was interrupted in the middle: Mach-O's describe function bodies only, ELF's describe every
/// instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum ImageFormat {
    /// ELF.
    #[default]
    Elf = 1,
    /// Mach-O.
    MachO = 2,
}

/// A loaded image, or a part of one with separate unwind data. All addresses are absolute (avma);
/// ranges of missing sections are empty. Sections are read through the walk's memory at these
/// addresses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Image {
    /// Container format of the image.
    pub format: ImageFormat,
    /// The code that this entry covers: executable segments. Data between them do no harm, but are
    /// taken for code unless [`Images::is_executable`] reports otherwise.
    pub text: AddressRange,
    /// Mach-O: the address of the Mach header, which `__unwind_info` is relative to. ELF: unused.
    pub base: u64,
    /// Actual address minus stated address, for `.debug_frame`, whose addresses are not relocated.
    pub bias: u64,
    /// ELF `.eh_frame_hdr` (`PT_GNU_EH_FRAME`).
    pub eh_frame_hdr: AddressRange,
    /// ELF `.eh_frame` or Mach-O `__TEXT,__eh_frame`. May be empty in ELF if `eh_frame_hdr` is not:
    /// it then ends at the end of the memory or at its terminator.
    pub eh_frame: AddressRange,
    /// `.debug_frame`, uncompressed, at any address of the walk's memory.
    ///
    /// It is not loaded with an image (its section is not allocated), so a walk of a live process
    /// has none: Coroner passes none. To walk a snapshot, read it from the program's file or from
    /// its symbol file, put its bytes at an address that nothing else uses, in addition to the
    /// stack's, and set that address here; `bias` is then the slide. It is used if `.eh_frame` has
    /// no entry.
    pub debug_frame: AddressRange,
    /// Search table for `.debug_frame`, in the format of `.eh_frame_hdr`, created by
    /// [`build_search_table`](crate::build_search_table).
    pub debug_frame_hdr: AddressRange,
    /// ELF `.sframe` (`PT_GNU_SFRAME`). It is used if `.eh_frame` has no entry.
    pub sframe: AddressRange,
    /// Mach-O `__TEXT,__unwind_info`.
    pub unwind_info: AddressRange,
    /// Mach-O `__TEXT,__stubs`: jumps that don't touch the stack.
    pub stubs: AddressRange,
    /// Mach-O `__TEXT,__stub_helper`: the code for the first calls of other images' functions. It
    /// pushes two words and jumps to dyld's binder, and has no unwind data.
    pub stub_helper: AddressRange,
    /// Base of `DW_EH_PE_textrel` pointers (`.text`); `DW_EH_PE_datarel` pointers of `.eh_frame`
    /// are relative to [`Self::data`].
    pub text_section: u64,
    /// Base of `DW_EH_PE_datarel` in `.eh_frame` (`.got`).
    pub data: u64,
}

/// Code with its own rule, registered by an app for a JIT, a bytecode interpreter or a trampoline.
#[derive(Clone, Copy, Debug)]
pub struct Registered {
    /// The code's address range.
    pub range: AddressRange,
    /// The rule that finds the caller of a frame in the range, at every instruction.
    pub rule: Rule,
}

/// The code that is loaded in the process to be walked.
///
/// At crash time an implementation must not lock or allocate; it is called once per address that
/// isn't in the cache.
pub trait Images {
    /// Whether an image can be Mach-O: if none can, the code that reads Mach-O's unwind data is not
    /// in the program.
    const MACH_O: bool = true;

    /// Returns the image whose code contains `address`.
    fn find(&self, address: u64) -> Option<Image>;

    /// Returns whether code can run at `address`; `None` if unknown (for example for a JIT that was
    /// not registered).
    fn is_executable(&self, address: u64) -> Option<bool> {
        self.find(address).map(|_| true)
    }

    /// Returns the registered range that contains `address`. It has priority over everything else.
    fn registered(&self, _address: u64) -> Option<Registered> {
        None
    }

    /// Returns a number that changes whenever a result of [`Self::find`] or [`Self::registered`]
    /// may have changed: rules that were cached under a different number are dropped.
    fn generation(&self) -> u64 {
        0
    }
}

impl Image {
    /// Returns the format of an image from `I`.
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
