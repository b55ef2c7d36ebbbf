//! Linux: reads the dynamic linker's list while it doesn't change.

use coroner_process::images::{self, ImageKind, Images, Mappings, Refresh};
use coroner_process::memory::{CheckedMemory, LoadGuarded, Memory, Windowed};
use coroner_process::syscall::Result;

use crate::fault_handler;
use crate::image_list::CAPACITY;
use crate::image_list::ImageList;
use crate::jit_code::JitCode;
use crate::live_reader::LiveReader;
use crate::os::jit::JitDescriptor;
use crate::os::search_table;

impl ImageList {
    /// Creates the table for the calling process, whose ID is `pid` (not async-signal-safe);
    /// nothing is listed yet.
    ///
    /// # Errors
    /// The kernel's error if there is no memory.
    pub fn map(pid: i32) -> Result<ImageList> {
        // Without `/proc` the images come from the dynamic linker's list, and frames outside of
        // them are not distinguished.
        let mappings = Mappings::open_by(pid).unwrap_or_else(|_| Mappings::unopened());
        Ok(ImageList { table: Images::map(CAPACITY)?, mappings, generation: 0, dropped: 0, jit: JitDescriptor::new() })
    }

    /// Returns the number of bytes that a list's table maps.
    pub fn bytes() -> usize {
        Images::bytes(CAPACITY)
    }

    /// Lists the images again, reusing what is known of each.
    pub fn refresh(&mut self, memory: &mut impl Memory) {
        self.jit.forget();
        self.generation = self.generation.wrapping_add(1);
        let refresh = self.table.refresh(memory);
        self.dropped = refresh.dropped;
    }

    /// Lists the images at install (not async-signal-safe): by guarded loads if Coroner's handler
    /// already has the signals of bad loads, which the calling thread must not block; otherwise
    /// every read is checked by the kernel. If the kernel refuses all of those, the first crash
    /// lists the images.
    pub fn refresh_at_install(&mut self) {
        let refreshed = if fault_handler::has_owner() {
            // SAFETY: the handler is in place, and this thread leaves its signals open.
            Some(self.refresh_by_linker(&mut unsafe { LoadGuarded::new() }))
        } else {
            CheckedMemory::open().map(|memory| self.refresh_by_linker(&mut Windowed::<_, 4>::new(memory)))
        };
        if let Some(refreshed) = refreshed {
            self.generation = self.generation.wrapping_add(1);
            self.dropped = refreshed.dropped;
        }
    }

    /// Compiled once for both memories: this code neither runs at crash time nor often.
    fn refresh_by_linker(&mut self, mut memory: &mut dyn Memory) -> Refresh {
        let memory = &mut memory;
        let refreshed = self.table.refresh_by_linker(memory);
        if let Some(program) = self.table.iter().find(|image| image.kind == ImageKind::Main) {
            search_table::prepare(memory, program);
        }
        refreshed
    }

    /// Touches the memory that a crash may need (not async-signal-safe).
    pub fn touch(&mut self) {
        self.table.touch();
    }

    /// Releases everything (not async-signal-safe).
    pub fn unmap(self) {
        self.mappings.close();
        self.table.unmap();
    }

    /// Returns the code at an address outside all images that a compiler registered for debuggers.
    /// Async-signal-safe.
    pub fn jit_code(&self, address: u64) -> Option<JitCode> {
        self.jit.find(&self.table, &mut LiveReader::new()?, address)
    }

    /// Returns the path of an image's file, in the bytes of its file system.
    pub fn path(&self, image: &images::Image) -> &[u8] {
        self.table.path(image)
    }

    /// Returns `true` if an image stays where it is, whatever other threads unload: the program,
    /// the dynamic linker, the kernel's own image, the image that contains this code, and the C
    /// library that it is linked with.
    pub fn is_permanent(image: &images::Image) -> bool {
        let here = Self::is_permanent as *const () as u64;
        let c_library = libc::getauxval as *const () as u64;
        image.kind != ImageKind::Library || [here, c_library].iter().any(|address| image.range.contains(*address))
    }
}
