//! dyld: loads Mach-O images, binds them, runs their initializers, and tracks loaded images.
//!
//! Source: dyld's published behavior; <mach-o/loader.h>, <mach-o/dyld.h>, <mach-o/dyld_images.h>.
//! Differences: after the libraries that an image links, which come first, linkage is flat; install
//! names under `/usr/lib` and `/System` refer to the host's libSystem (and the folder given by
//! `--libraries`), `@rpath` and `@loader_path` to the main program's folder.

mod fixups;
pub(crate) mod image;
pub(crate) mod images;
pub(crate) mod macho;
pub(crate) mod synthetic;
pub(crate) mod system_images;
pub(crate) mod tlv;

use std::{
    cell::UnsafeCell,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use image::Image;
use macho::File;
use synthetic::Synthetic;

use crate::host::{
    gate,
    kernel::{ending::refuse, lock::QuietMutex, pages, thread},
    libsystem::{self, Kind},
};

/// The loader's state. Images are boxed and, except for those that dlclose unloads, never freed.
pub(crate) struct Loader {
    pub(crate) images: Vec<&'static mut Image>,
    synthetic: Option<Synthetic>,
    libraries: Option<PathBuf>,
    main_folder: PathBuf,
    /// Symbols that the host defines as data, or as code that must not go through the gate.
    direct: Vec<(String, usize)>,
}

struct Shared {
    mutex: QuietMutex,
    loader: UnsafeCell<Loader>,
}

// SAFETY: `loader` is only accessed in `with`, under the mutex.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    mutex: QuietMutex::new(),
    loader: UnsafeCell::new(Loader {
        images: Vec::new(),
        synthetic: None,
        libraries: None,
        main_folder: PathBuf::new(),
        direct: Vec::new(),
    }),
};

/// Runs `body` with the loader's state.
///
/// Signals are blocked: no suspended thread holds the loader's lock.
pub(crate) fn with<R>(body: impl FnOnce(&mut Loader) -> R) -> R {
    let held = SHARED.mutex.acquire();
    // SAFETY: the mutex is held.
    let result = body(unsafe { &mut *SHARED.loader.get() });
    SHARED.mutex.release(&held);
    result
}

/// Resets the lock in the child after fork.
pub(crate) fn reset() {
    SHARED.mutex.reset();
    images::reset();
}

/// Ranges of executable memory that belong to the host, mapped before any image was loaded.
static HOST_CODE: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

/// Whether `pc` is in the host's own code (or its libc's).
pub(crate) fn is_host_code(pc: usize) -> bool {
    HOST_CODE.iter().any(|[start, end]| (start.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)).contains(&pc))
}

/// Whether `pc` is in an image of the program, or in the synthetic one.
pub(crate) fn is_program_code(pc: usize) -> bool {
    synthetic::contains(pc) || images::find(pc).is_some()
}

fn note_host_code() {
    let mut address = 0;
    let mut ranges = HOST_CODE.iter();
    while let Some(mapping) = pages::mapping_at_or_after(address) {
        if mapping.protection & 4 != 0
            && let Some([start, end]) = ranges.next()
        {
            start.store(mapping.start, Ordering::Relaxed);
            end.store(mapping.end, Ordering::Relaxed);
        }
        address = mapping.end;
    }
}

/// The target of stubs for imports that the host doesn't support.
extern "C" fn unknown_import() {
    let stub = thread::current().gate_frame().stub;
    with(|loader| {
        if let Some(synthetic) = &loader.synthetic {
            refuse!("the program called {}, which the host doesn't have", synthetic.name_of(stub));
        }
        refuse!("the program called an unknown import")
    });
}

/// The target of stubs for forbidden imports.
extern "C" fn forbidden_import() {
    let stub = thread::current().gate_frame().stub;
    with(|loader| {
        let name = loader.synthetic.as_ref().map_or("?", |synthetic| synthetic.name_of(stub));
        refuse!("{name} waits for a lock that another thread holds for ever")
    });
}

/// Makes calls of these imports (names with Darwin's underscore) end the program from now on.
pub(crate) fn forbid(names: &[String]) {
    with(|loader| {
        if let Some(synthetic) = &mut loader.synthetic {
            synthetic.retarget(names.iter(), forbidden_import as *const () as usize);
        }
    });
}

/// Creates the host's symbols.
pub(crate) fn prepare(program: &Path, libraries: Option<PathBuf>) {
    note_host_code();
    let mut functions = Vec::new();
    with(|loader| {
        for export in libsystem::all() {
            let name = format!("_{}", export.name);
            match export.kind {
                Kind::Function => functions.push((name, export.address)),
                Kind::Direct => loader.direct.push((name, export.address)),
            }
        }
        // A name that compilers and linkers use without Darwin's underscore.
        functions.push(("dyld_stub_binder".into(), unknown_import as *const () as usize));
        let (synthetic, image) = Synthetic::create(&functions);
        let stub = |name: &str| synthetic.find(name).unwrap_or_else(|| panic!("no stub is called {name}"));
        let system = system_images::create(stub);
        loader.direct.extend(system.exports);
        if let Some(dyld) = system.dyld {
            images::set_dyld(dyld.header);
        }
        loader.synthetic = Some(synthetic);
        loader.libraries = libraries;
        loader.main_folder = program.parent().map(Path::to_path_buf).unwrap_or_default();
        // The main program is image 0; the system's libraries follow it.
        loader.images.extend(std::iter::once(image).chain(system.images).map(|image| Box::leak(Box::new(image))));
    });
}

impl Loader {
    /// Returns a symbol's address, if an image or the host defines it.
    ///
    /// The name has Darwin's underscore.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        // Variants of a function ($INODE64, $NOCANCEL, $DARWIN_EXTSN, …) are the same function
        // here.
        self.find_in_host(name)
            .or_else(|| self.find_in_images(name, 0))
            .or_else(|| self.find_in_host(name.split_once('$')?.0))
    }

    /// Like `find`, for RTLD_NEXT in the main program: the program's own definitions are left out.
    pub(crate) fn find_next(&self, name: &str) -> Option<usize> {
        self.find_in_host(name).or_else(|| self.find_in_images(name, 1))
    }

    fn find_in_host(&self, name: &str) -> Option<usize> {
        let direct = self.direct.iter().find(|(n, _)| n == name).map(|(_, at)| *at);
        direct.or_else(|| self.synthetic.as_ref()?.find(name))
    }

    /// Returns an exported symbol, starting at the image with index `first`.
    fn find_in_images(&self, name: &str, first: usize) -> Option<usize> {
        let own = |i: &&&'static mut Image| i.path.to_bytes() != synthetic::PATH.as_bytes();
        self.images.iter().skip(first).filter(own).find_map(|i| i.export(name))
    }

    fn resolve(&mut self, name: &str, weak: bool) -> usize {
        if let Some(address) = self.find(name) {
            return address;
        }
        if weak {
            return 0;
        }
        match &mut self.synthetic {
            Some(synthetic) => synthetic.unknown(name, unknown_import as *const () as usize),
            None => 0,
        }
    }

    /// Returns the file of an install name: `None` if the host itself is that library.
    pub(crate) fn locate(&self, name: &str) -> Option<PathBuf> {
        if let Some(rest) = name.strip_prefix("/usr/lib/") {
            let file = Path::new(rest).file_name()?;
            return self.libraries.as_ref().map(|folder| folder.join(file)).filter(|path| path.is_file());
        }
        if name.starts_with("/System/") {
            return None;
        }
        for prefix in ["@rpath/", "@loader_path/", "@executable_path/"] {
            if let Some(rest) = name.strip_prefix(prefix) {
                return Some(self.main_folder.join(rest));
            }
        }
        Some(PathBuf::from(name))
    }

    /// Publishes the images after a change.
    pub(crate) fn publish(&mut self) {
        images::publish(self);
    }

    /// Loads an image and its dependencies; returns its index, also if it is already loaded.
    pub(crate) fn load(&mut self, path: &Path) -> Result<usize, String> {
        let known = |i: &&'static mut Image| i.path.to_bytes() == path.as_os_str().as_encoded_bytes();
        if let Some(index) = self.images.iter().position(known) {
            self.images[index].references += 1;
            return Ok(index);
        }
        let file = File::read(path)?;
        if !matches!(file.kind, macho::MH_EXECUTE | macho::MH_DYLIB | macho::MH_BUNDLE) {
            return Err(format!("{}: neither a program nor a library", path.display()));
        }
        for dylib in file.dylibs.clone() {
            if let Some(library) = self.locate(&dylib)
                && !dylib.contains("libSystem")
            {
                self.load(&library)?;
            }
        }
        // Two-level namespace (<mach-o/loader.h>, MH_TWOLEVEL): a library's import comes from a
        // library that it links, regardless of other definitions. If it is not found there, the
        // lookup is flat.
        let linked: Vec<_> = file.dylibs.iter().filter_map(|dylib| self.locate(dylib)).collect();
        let mut image = Image::load(path, &file, &mut |name, weak| {
            let is_linked = |i: &&&'static mut Image| {
                linked.iter().any(|path| path.as_os_str().as_encoded_bytes() == i.path.to_bytes())
            };
            let of_linked = self.images.iter().filter(is_linked).find_map(|i| i.export(name));
            of_linked.unwrap_or_else(|| self.resolve(name, weak))
        })?;
        image.references = 1;
        let image = Box::leak(Box::new(image));
        let index = if file.kind == macho::MH_EXECUTE { 0 } else { self.images.len() };
        self.images.insert(index, image);
        Ok(index)
    }
}

/// Loads the main program and the unwinder's library; returns the address of `main`.
pub(crate) fn load_main(path: &Path) -> Result<usize, String> {
    with(|loader| {
        // libSystem re-exports the unwinder: it is loaded before the program looks it up by name.
        if let Some(unwinder) = loader.libraries.as_ref().map(|l| l.join("libunwind.dylib")).filter(|p| p.is_file()) {
            loader.load(&unwinder)?;
        }
        let index = loader.load(path)?;
        images::publish(loader);
        loader.images[index].entry.ok_or_else(|| format!("{}: it has no LC_MAIN", path.display()))
    })
}

/// Runs the pending initializers, a library's before those of images that depend on it.
pub(crate) fn initialise(arguments: [usize; 4]) {
    loop {
        let next = with(|loader| {
            // Libraries were loaded before the images that depend on them; the main program (index
            // 0) comes last.
            let count = loader.images.len();
            let order = (1..count).chain(0..1);
            let index = order.into_iter().find(|&i| !loader.images[i].initialised)?;
            loader.images[index].initialised = true;
            let image = &loader.images[index];
            let mut functions = Vec::new();
            for (at, size) in image.sections_of(macho::S_MOD_INIT_FUNC_POINTERS) {
                for word in (at..at + size).step_by(8) {
                    // SAFETY: the section is mapped and holds pointers, fixed up.
                    functions.push(unsafe { (word as *const usize).read() });
                }
            }
            for (at, size) in image.sections_of(macho::S_INIT_FUNC_OFFSETS) {
                for word in (at..at + size).step_by(4) {
                    // SAFETY: as above; these are offsets from the header.
                    functions.push(image.header + unsafe { (word as *const u32).read() } as usize);
                }
            }
            Some(functions)
        });
        let Some(functions) = next else { return };
        for function in functions {
            call(function, arguments);
        }
    }
}

/// Calls a function of the program with up to four arguments, on the thread's current stack.
pub(crate) fn call(function: usize, arguments: [usize; 4]) -> usize {
    // SAFETY: the program gave the function, of an ABI in which unused argument registers are
    // ignored.
    let function: extern "C" fn(usize, usize, usize, usize) -> usize = unsafe { std::mem::transmute(function) };
    let depth = thread::current().gate_depth();
    let result = function(arguments[0], arguments[1], arguments[2], arguments[3]);
    debug_assert_eq!(depth, gate_depth_now());
    result
}

fn gate_depth_now() -> *mut gate::GateFrame {
    thread::current().gate_depth()
}
