//! Loaded images of real processes, read without the dynamic linker's help while it is active.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::support::{self, Flag};
use coroner_process::AddressRange;
use coroner_process::context::Context;
use coroner_process::images::{Image, ImageKind, ImageStamp, Images, ListState, Mappings, Refresh};
use coroner_process::memory::{
    CheckedMemory, KernelCopy, LoadGuarded, Memory, Unreadable, Windowed, recover_guarded_load,
};

support::forked![
    the_list_is_that_of_dl_iterate_phdr,
    the_program_is_found,
    a_second_refresh_reads_nothing_anew,
    every_code_address_is_found_and_executable,
    a_small_table_counts_what_it_drops,
    unreadable_memory_is_not_an_image,
    memory_is_read_through_a_pipe,
];

support::forked![
    dynamic:
    unwind_sections_are_those_of_the_file,
    loaded_and_unloaded_images_come_and_go,
    snapshots_hold_while_another_thread_loads_and_unloads,
    snapshots_by_guarded_loads_hold_too,
    snapshots_through_windows_hold_too,
    another_file_of_the_same_name_is_another_image,
    images_without_build_id_are_distinguished_by_their_names,
    images_of_another_namespace_are_listed,
    a_deleted_file_keeps_its_path,
    a_relative_path_is_made_absolute,
    a_long_path_is_kept,
    a_list_in_mid_change_is_read_to_its_end,
    a_damaged_list_takes_no_known_image_away,
    a_list_that_is_a_cycle_ends,
    an_image_with_another_base_is_found,
    an_image_without_an_elf_header_in_memory_is_found,
    images_that_can_not_be_read_are_refused,
    an_image_at_its_own_base_is_found,
];

/// A reader that works here: the kernel's copy, or recovered loads if that is not implemented.
enum AnyMemory {
    Kernel(KernelCopy),
    Loads(LoadGuarded),
}

impl AnyMemory {
    fn new() -> Self {
        KernelCopy::new().map_or_else(guarded_loads, AnyMemory::Kernel)
    }
}

impl Memory for AnyMemory {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        match self {
            AnyMemory::Kernel(memory) => memory.read(address, into),
            AnyMemory::Loads(memory) => memory.read(address, into),
        }
    }
}

extern "C" fn on_fault(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the third argument of a handler with SA_SIGINFO.
    if !recover_guarded_load(unsafe { Context::from_pointer(context) }) {
        // SAFETY: a real fault: exit.
        unsafe { libc::_exit(99) };
    }
}

fn guarded_loads() -> AnyMemory {
    // SAFETY: the handler continues faults of guarded loads with an error, and ends the process for
    // others.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
        }
        AnyMemory::Loads(LoadGuarded::new())
    }
}

fn images() -> (Images, Refresh) {
    let mut images = Images::map(1024).unwrap();
    let refresh = images.refresh(&mut AnyMemory::new());
    images.touch();
    (images, refresh)
}

/// dl_iterate_phdr's data about an image.
#[derive(Debug)]
struct Listed {
    slide: u64,
    name: Vec<u8>,
    /// kind, flags, address, memory size, file offset
    headers: Vec<(u32, u32, u64, u64, u64)>,
}

#[allow(clippy::unnecessary_cast, reason = "the types differ between C libraries")]
fn listed() -> Vec<Listed> {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, into: *mut libc::c_void) -> i32 {
        // SAFETY: the C library passes a valid structure, and our own vector.
        unsafe {
            let (info, into) = (&*info, &mut *into.cast::<Vec<Listed>>());
            let name = if info.dlpi_name.is_null() { c"" } else { CStr::from_ptr(info.dlpi_name) };
            // bionic's linker lists itself without headers.
            let count = info.dlpi_phnum as usize;
            let headers = if count == 0 { &[] } else { std::slice::from_raw_parts(info.dlpi_phdr, count) };
            into.push(Listed {
                slide: info.dlpi_addr as u64,
                name: name.to_bytes().to_vec(),
                headers: headers
                    .iter()
                    .map(|h| (h.p_type as u32, h.p_flags as u32, h.p_vaddr as u64, h.p_memsz as u64, h.p_offset as u64))
                    .collect(),
            });
        }
        0
    }
    let mut listed: Vec<Listed> = Vec::new();
    // SAFETY: the callback has the form that the C library requires.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut listed).cast()) };
    listed.retain(|entry| !entry.headers.is_empty());
    listed
}

fn path_of<'i>(images: &'i Images, image: &Image) -> &'i Path {
    Path::new(OsStr::from_bytes(images.path(image)))
}

fn the_list_is_that_of_dl_iterate_phdr() {
    let (images, refresh) = images();
    let listed = listed();
    let names: Vec<_> = images.iter().map(|image| path_of(&images, image)).collect();
    assert!(images.len() >= listed.len(), "{names:?} {listed:?}");
    assert_eq!((refresh.images, refresh.read, refresh.dropped, refresh.refused), (images.len(), images.len(), 0, 0));
    for entry in &listed {
        let first = entry.headers.iter().find(|header| header.0 == libc::PT_LOAD).unwrap();
        let image = images.find(entry.slide + first.2).unwrap_or_else(|| panic!("{entry:?} is missing"));
        assert_eq!(image.slide, entry.slide);
        let segments: Vec<_> =
            image.segments().iter().map(|s| (1, s.flags, s.address, s.size, s.file_offset)).collect();
        let loads: Vec<_> = entry.headers.iter().filter(|header| header.0 == libc::PT_LOAD).copied().collect();
        assert_eq!(segments, loads, "{entry:?}");
        let hdr = entry.headers.iter().find(|header| header.0 == libc::PT_GNU_EH_FRAME);
        let start = hdr.map_or(0, |header| header.2 + entry.slide);
        assert_eq!((image.eh_frame_hdr.start, image.eh_frame_hdr.len()), (start, hdr.map_or(0, |header| header.3)));
        let dynamic = entry.headers.iter().find(|header| header.0 == libc::PT_DYNAMIC);
        assert_eq!(image.dynamic, dynamic.map_or(0, |header| header.2 + entry.slide));
        if entry.name.starts_with(b"/") && image.kind != ImageKind::Main {
            assert_eq!(images.path(image), entry.name);
        }
    }
    // Some have no dl_iterate_phdr entry: the vDSO in a static program, if there is one, or
    // bionic's linker.
    assert!(images.len() <= listed.len() + 1, "{names:?} {listed:?}");
}

fn the_program_is_found() {
    let (images, refresh) = images();
    let main = images.find(the_program_is_found as *const () as u64).unwrap();
    assert_eq!(main.kind, ImageKind::Main);
    assert_eq!(path_of(&images, main), std::env::current_exe().unwrap());
    assert_eq!(images.iter().filter(|image| image.kind == ImageKind::Main).count(), 1);
    assert!(main.range.contains(main.eh_frame.start) && main.eh_frame.len() > 1000, "{main:?}");
    // SAFETY: reads a table that was set up at the start.
    let vdso = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if vdso != 0 {
        let vdso = images.find(vdso).unwrap();
        assert_eq!((vdso.kind, images.path(vdso)), (ImageKind::Vdso, &b"[vdso]"[..]));
    }
    if cfg!(target_feature = "crt-static") {
        assert_eq!(refresh.list, ListState::Absent);
        return;
    }
    assert_eq!(refresh.list, ListState::Consistent);
    // SAFETY: as above.
    let linker = images.find(unsafe { libc::getauxval(libc::AT_BASE) }).unwrap();
    assert_eq!(linker.kind, ImageKind::DynamicLinker);
    let path = path_to_libc();
    assert!(images.iter().any(|image| image.kind == ImageKind::Library && path_of(&images, image) == path));
}

fn a_second_refresh_reads_nothing_anew() {
    let (mut images, first) = images();
    let before: Vec<Image> = images.iter().copied().collect();
    for _ in 0..3 {
        let again = images.refresh(&mut AnyMemory::new());
        // The list has the vDSO and, in a second namespace, the dynamic linker: those are checked,
        // not read.
        assert_eq!(again, Refresh { read: 0, ..first });
        assert_eq!(images.iter().copied().collect::<Vec<_>>(), before);
    }
    images.unmap();
}

fn every_code_address_is_found_and_executable() {
    let (images, _) = images();
    let ranges: Vec<AddressRange> = images.iter().map(|image| image.range).collect();
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "sorted, and none overlaps: {ranges:x?}");
    let mappings = Mappings::open().unwrap();
    for image in images.iter() {
        for (address, inside) in [
            (image.range.start.wrapping_sub(1), false),
            (image.range.start, true),
            (image.range.end - 1, true),
            (image.range.end, false),
        ] {
            let found = images.find(address);
            assert_eq!(found.is_some_and(|found| found.range == image.range), inside);
        }
        let mut text = 0;
        for segment in image.segments() {
            let range = image.segment_range(segment);
            for address in [range.start, range.end - 1] {
                let executable = images.is_executable(address).unwrap();
                assert_eq!(executable, segment.flags & 1 != 0);
                if let Some(mapping) = mappings.at(address).unwrap()
                    && image.kind != ImageKind::Vdso
                {
                    assert_eq!(mapping.permissions.execute, executable, "{mapping:x?}");
                }
            }
            text += usize::from(segment.flags & 1 != 0);
        }
        assert_eq!(image.text().count(), text);
    }
    let on_stack = 0_u8;
    assert_eq!(images.is_executable(&raw const on_stack as u64), None);
    assert!(images.find(0).is_none() && images.find(u64::MAX).is_none());
}

fn a_small_table_counts_what_it_drops() {
    let (whole, _) = images();
    let mut images = Images::map(1).unwrap();
    let mut memory = AnyMemory::new();
    for _ in 0..3 {
        let refresh = images.refresh(&mut memory);
        assert_eq!((refresh.images, images.len()), (images.len(), whole.len().min(4)));
        assert_eq!(refresh.images + refresh.dropped, whole.len());
        assert!(
            images.find(a_small_table_counts_what_it_drops as *const () as u64).is_some(),
            "the program comes first"
        );
    }
}

fn unreadable_memory_is_not_an_image() {
    struct Nothing;
    impl Memory for Nothing {
        fn read(&mut self, address: u64, _: &mut [u8]) -> Result<(), Unreadable> {
            Err(Unreadable { address })
        }
    }
    let mut images = Images::map(64).unwrap();
    assert_eq!(images.refresh(&mut Nothing), Refresh::default());
    assert!(images.is_empty());
    // Once found, the program stays: it can't be unloaded.
    let all = images.refresh(&mut AnyMemory::new()).images;
    assert!(all > 0);
    let blind = images.refresh(&mut Nothing);
    assert!(blind.images >= 1 && blind.images <= all, "{blind:?}");
    assert!(images.find(unreadable_memory_is_not_an_image as *const () as u64).is_some());
    assert_eq!(images.refresh(&mut AnyMemory::new()).images, all);
}

// ───────────────────────────── with a dynamic linker ─────────────────────────────

/// Returns the path of the C library's file.
fn path_to_libc() -> PathBuf {
    let listed = listed();
    let is_it = |listed: &&Listed| {
        let name = Path::new(OsStr::from_bytes(&listed.name)).file_name().unwrap_or_default().as_bytes();
        name.starts_with(b"libc.")
    };
    PathBuf::from(OsStr::from_bytes(&listed.iter().find(is_it).unwrap().name))
}

/// Small libraries next to the C library.
const SMALL_LIBRARIES: [&str; 2] =
    if cfg!(target_os = "android") { ["libdl.so", "libm.so"] } else { ["libutil.so.1", "libanl.so.1"] };

/// Copies of two small shared objects of the system, in a separate directory.
struct Objects {
    directory: tempfile::TempDir,
}

impl Objects {
    fn new() -> Self {
        Objects { directory: tempfile::tempdir().unwrap() }
    }

    fn copy(&self, system: &str, name: &str) -> PathBuf {
        let to = self.directory.path().join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(path_to_libc().with_file_name(system), &to).unwrap();
        to
    }

    fn one(&self) -> PathBuf {
        self.copy(SMALL_LIBRARIES[0], "one.so")
    }

    fn other(&self) -> PathBuf {
        self.copy(SMALL_LIBRARIES[1], "other.so")
    }
}

struct Loaded(*mut libc::c_void);

fn load(path: &Path) -> Loaded {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: these objects have no significant constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{}", path.display());
    Loaded(handle)
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: nothing of the object is in use.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}

fn named<'i>(images: &'i Images, path: &Path) -> Option<&'i Image> {
    let found: Vec<_> = images.iter().filter(|image| path_of(images, image) == path).collect();
    assert!(found.len() <= 1, "{found:?}");
    found.first().copied()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// A section of an ELF file: address, offset and size.
fn section(file: &[u8], name: &str) -> Option<(u64, usize, usize)> {
    let headers = u64_at(file, 40) as usize;
    let count = usize::from(u16::from_le_bytes([file[60], file[61]]));
    let names = usize::from(u16::from_le_bytes([file[62], file[63]]));
    let header = |index: usize| &file[headers + index * 64..][..64];
    let strings = u64_at(header(names), 24) as usize;
    (0..count).map(header).find_map(|header| {
        let start = strings + u32_at(header, 0) as usize;
        let end = start + file[start..].iter().position(|byte| *byte == 0)?;
        let is_it = &file[start..end] == name.as_bytes();
        is_it.then(|| (u64_at(header, 16), u64_at(header, 24) as usize, u64_at(header, 32) as usize))
    })
}

fn build_id_of(path: &Path) -> Vec<u8> {
    let file = std::fs::read(path).unwrap();
    let (_, offset, size) = section(&file, ".note.gnu.build-id").unwrap();
    file[offset + 16..offset + size].to_vec()
}

fn unwind_sections_are_those_of_the_file() {
    let (images, _) = images();
    let mut checked = 0;
    for image in images.iter().filter(|image| image.kind != ImageKind::Vdso) {
        let path = path_of(&images, image);
        let file = std::fs::read(path).unwrap();
        if let Some((address, _, size)) = section(&file, ".eh_frame_hdr") {
            let start = address + image.slide;
            assert_eq!(
                (image.eh_frame_hdr.start, image.eh_frame_hdr.len()),
                (start, size as u64),
                "{}",
                path.display()
            );
        }
        if let Some((address, _, size)) = section(&file, ".eh_frame") {
            assert_eq!(image.eh_frame.start, address + image.slide, "{}", path.display());
            assert!(image.eh_frame.len() >= size as u64);
            checked += 1;
        }
        match section(&file, ".note.gnu.build-id") {
            Some(_) => assert_eq!(image.build_id(), build_id_of(path), "{}", path.display()),
            None => assert_eq!(image.build_id(), b""),
        }
    }
    assert!(checked >= 3, "{checked}");
}

fn loaded_and_unloaded_images_come_and_go() {
    let objects = Objects::new();
    let (one, other) = (objects.one(), objects.other());
    let (mut images, first) = images();
    let mut memory = AnyMemory::new();
    for _ in 0..5 {
        let loaded = load(&one);
        let refresh = images.refresh(&mut memory);
        assert_eq!((refresh.images, refresh.read), (first.images + 1, 1));
        assert_eq!(named(&images, &one).unwrap().build_id(), build_id_of(&one));
        let also = load(&other);
        assert_eq!(images.refresh(&mut memory).read, 1);
        assert!(named(&images, &one).is_some() && named(&images, &other).is_some());
        drop(loaded);
        assert_eq!(images.refresh(&mut memory).read, 0);
        assert!(named(&images, &one).is_none() && named(&images, &other).is_some());
        drop(also);
        assert_eq!(images.refresh(&mut memory), Refresh { read: 0, ..first });
    }
}

/// Takes snapshots while another thread loads and unloads two objects.
///
/// At least `snapshots`, and as many more as it takes to find the two often, which depends on how
/// busy the processor is.
fn hammer(mut memory: impl Memory, snapshots: usize) {
    const OFTEN: usize = 100;
    let objects = Objects::new();
    let (one, other) = (objects.one(), objects.other());
    let ids = [(one.clone(), build_id_of(&one)), (other.clone(), build_id_of(&other))];
    let (mut images, first) = images();
    let constant: Vec<Image> = images.iter().copied().collect();
    let stop = Arc::new(Flag::default());
    let hammering = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            while !stop.is_set() {
                // Alternately, so that one is mapped at the other's address.
                drop(load(&one));
                drop(load(&other));
                let both = (load(&one), load(&other));
                drop(both);
            }
        })
    };
    let (mut seen, mut refused, mut taken) = (0, 0, 0);
    while taken < snapshots || (seen < OFTEN && taken < 100 * snapshots) {
        taken += 1;
        let refresh = images.refresh(&mut memory);
        refused += refresh.refused;
        assert!(refresh.images >= first.images && refresh.images <= first.images + 2, "{refresh:?}");
        for image in &constant {
            assert_eq!(images.find(image.range.start), Some(image), "what stays is there");
        }
        for (path, id) in &ids {
            if let Some(image) = named(&images, path) {
                seen += 1;
                assert_eq!(image.build_id(), id, "an image has its own facts");
            }
        }
        let strangers = images.iter().filter(|image| !constant.contains(image));
        for image in strangers {
            let path = path_of(&images, image);
            assert!(ids.iter().any(|(known, _)| known == path), "{}", path.display());
        }
    }
    stop.set();
    hammering.join().unwrap();
    println!("  {taken} snapshots: {seen} times one of the two was there, {refused} entries were refused");
    assert!(seen >= OFTEN, "{seen}");
    assert_eq!(images.refresh(&mut memory).images, first.images);
}

fn snapshots_hold_while_another_thread_loads_and_unloads() {
    hammer(AnyMemory::new(), 5000);
}

fn snapshots_by_guarded_loads_hold_too() {
    hammer(guarded_loads(), 5000);
}

fn snapshots_through_windows_hold_too() {
    hammer(Windowed::<_, 4>::new(AnyMemory::new()), 5000);
}

fn another_file_of_the_same_name_is_another_image() {
    let objects = Objects::new();
    let path = objects.one();
    let (mut images, _) = images();
    let mut memory = AnyMemory::new();
    let loaded = load(&path);
    images.refresh(&mut memory);
    let first = *named(&images, &path).unwrap();
    let stamps = stamps(&images);
    assert!(stamps.iter().all(|stamp| stamp.holds(&mut memory)));
    let fingerprint = coroner_process::images::fingerprint(&mut memory, images.debug_address());
    drop(loaded);
    // A plugin that is rebuilt and reloaded, with the same entry and at the same address: only the
    // build id differs.
    let mut file = std::fs::read(&path).unwrap();
    let (_, offset, _) = section(&file, ".note.gnu.build-id").unwrap();
    file[offset + 16] ^= 0xff;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, file).unwrap();
    let loaded = load(&path);
    // The list is the same as before, but the image isn't. (An emulator or bionic may choose
    // another place: then there is nothing to see.)
    if (support::is_emulated() || cfg!(target_os = "android"))
        && coroner_process::images::fingerprint(&mut memory, images.debug_address()) != fingerprint
    {
        return;
    }
    assert_eq!(coroner_process::images::fingerprint(&mut memory, images.debug_address()), fingerprint);
    assert!(!stamps.iter().all(|stamp| stamp.holds(&mut memory)));
    let refresh = images.refresh(&mut memory);
    assert_eq!(refresh.read, 1);
    let second = *named(&images, &path).unwrap();
    assert_ne!(first.build_id(), second.build_id());
    assert_eq!(second.build_id(), build_id_of(&path));
    drop(loaded);
}

fn stamps(images: &Images) -> Vec<ImageStamp> {
    let mut stamps = Vec::new();
    images.stamps(&mut AnyMemory::new(), |stamp| stamps.push(stamp));
    stamps
}

fn images_without_build_id_are_distinguished_by_their_names() {
    let objects = Objects::new();
    let paths = ["a-plugin.so", "b-plugin.so"].map(|name| {
        let path = objects.copy(SMALL_LIBRARIES[0], name);
        let mut file = std::fs::read(&path).unwrap();
        let (_, offset, _) = section(&file, ".note.gnu.build-id").unwrap();
        // Another type of note.
        file[offset + 8] = 77;
        std::fs::write(&path, file).unwrap();
        path
    });
    let (mut images, _) = images();
    let mut memory = AnyMemory::new();
    let loaded = load(&paths[0]);
    images.refresh(&mut memory);
    assert_eq!(named(&images, &paths[0]).unwrap().build_id(), b"");
    let stamps = stamps(&images);
    assert!(stamps.len() > 5 && stamps.iter().all(|stamp| stamp.holds(&mut memory)), "{stamps:x?}");
    drop(loaded);
    let loaded = load(&paths[1]);
    assert!(!stamps.iter().all(|stamp| stamp.holds(&mut memory)));
    drop(loaded);
}

#[cfg(target_env = "gnu")]
fn images_of_another_namespace_are_listed() {
    let objects = Objects::new();
    let path = objects.one();
    let (mut images, first) = images();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: as for `load`.
    let handle = unsafe { libc::dlmopen(libc::LM_ID_NEWLM, name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    let loaded = Loaded(handle);
    let mut memory = AnyMemory::new();
    let refresh = images.refresh(&mut memory);
    assert!(named(&images, &path).is_some());
    // It has a C library of its own.
    let libc = path_to_libc();
    assert_eq!(images.iter().filter(|image| path_of(&images, image) == libc).count(), 2);
    assert_eq!(images.iter().filter(|image| image.kind == ImageKind::DynamicLinker).count(), 1);
    assert!(refresh.images >= first.images + 2, "{refresh:?}");
    assert_eq!(images.refresh(&mut memory).read, 0);
    drop(loaded);
    assert_eq!(images.refresh(&mut memory).images, first.images);
}

#[cfg(not(target_env = "gnu"))]
fn images_of_another_namespace_are_listed() {}

fn a_deleted_file_keeps_its_path() {
    let objects = Objects::new();
    let path = objects.one();
    let id = build_id_of(&path);
    let loaded = load(&path);
    std::fs::remove_file(&path).unwrap();
    let (images, _) = images();
    assert_eq!(named(&images, &path).unwrap().build_id(), id);
    drop(loaded);
}

fn a_relative_path_is_made_absolute() {
    let objects = Objects::new();
    let path = objects.one().canonicalize().unwrap();
    std::env::set_current_dir(objects.directory.path()).unwrap();
    let loaded = load(Path::new("./one.so"));
    std::env::set_current_dir("/").unwrap();
    let (mut images, first) = images();
    assert!(named(&images, &path).is_some());
    assert_eq!(images.refresh(&mut AnyMemory::new()), Refresh { read: 0, ..first });
    drop(loaded);
}

fn a_long_path_is_kept() {
    let objects = Objects::new();
    let mut loaded = Vec::new();
    let mut paths = Vec::new();
    for index in 0..8 {
        let directories = vec!["a-directory-with-a-name-of-medium-length"; 3 + index * 3].join("/");
        let path = objects.copy(SMALL_LIBRARIES[0], &format!("{directories}/{index}.so"));
        loaded.push(load(&path));
        paths.push(path);
    }
    assert!(paths.iter().any(|path| path.as_os_str().len() > 900));
    let (mut images, first) = images();
    for path in &paths {
        assert!(named(&images, path).is_some(), "{}", path.display());
    }
    assert_eq!(images.refresh(&mut AnyMemory::new()).read, 0);
    // Their slots are reused.
    for _ in 0..40 {
        loaded.pop();
        images.refresh(&mut AnyMemory::new());
        loaded.push(load(paths.last().unwrap()));
        assert_eq!(images.refresh(&mut AnyMemory::new()).images, first.images);
        assert!(paths.iter().all(|path| named(&images, path).is_some()));
    }
}

/// Reads this process's memory, except for changed words.
struct Changed {
    memory: AnyMemory,
    words: Vec<(u64, u64)>,
    reads: usize,
}

impl Changed {
    fn new(words: Vec<(u64, u64)>) -> Self {
        Changed { memory: AnyMemory::new(), words, reads: 0 }
    }
}

impl Memory for Changed {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.reads += 1;
        self.memory.read(address, into)?;
        for (at, word) in &self.words {
            for (index, byte) in word.to_le_bytes().into_iter().enumerate() {
                let place = (at + index as u64).wrapping_sub(address);
                if let Some(to) = usize::try_from(place).ok().and_then(|place| into.get_mut(place)) {
                    *to = byte;
                }
            }
        }
        Ok(())
    }
}

/// Returns the addresses of the list's entries.
fn entries(images: &Images, memory: &mut AnyMemory) -> Vec<u64> {
    let mut entries = Vec::new();
    let mut at = memory.read_u64(images.debug_address() + 8).unwrap();
    while at != 0 {
        entries.push(at);
        at = memory.read_u64(at + 24).unwrap();
    }
    entries
}

fn a_list_in_mid_change_is_read_to_its_end() {
    let (known, first) = images();
    let debug = known.debug_address();
    let mut memory = AnyMemory::new();
    let entries = entries(&known, &mut memory);
    assert!(entries.len() >= 3);
    let fingerprint = |memory: &mut Changed| coroner_process::images::fingerprint(memory, debug);
    assert_eq!(first.fingerprint, fingerprint(&mut Changed::new(vec![])), "what was read is what is there");
    let mut fresh = Images::map(64).unwrap();
    // The dynamic linker has marked the list as changing: the result must differ from those before
    // and after.
    let mut at_work = Changed::new(vec![(debug + 24, 1)]);
    let refresh = fresh.refresh(&mut at_work);
    assert_eq!((refresh.images, refresh.list), (first.images, ListState::Changing));
    assert_eq!(refresh.fingerprint, fingerprint(&mut at_work));
    assert_ne!(refresh.fingerprint, first.fingerprint);
    // An entry is linked in one direction only, while all threads are stopped.
    let mut fresh = Images::map(64).unwrap();
    let refresh = fresh.refresh(&mut Changed::new(vec![(entries[2] + 32, 0)]));
    assert_eq!((refresh.images, refresh.list), (first.images, ListState::Broken));
    assert_ne!(refresh.fingerprint, first.fingerprint);
    // The image of an entry is already gone, but not the entry.
    let slide = memory.read_u64(entries[2]).unwrap();
    let mut fresh = Images::map(64).unwrap();
    let words = vec![(entries[2], 0x10_0000), (entries[2] + 16, 0x10_0000)];
    let refresh = fresh.refresh(&mut Changed::new(words));
    assert_eq!((refresh.refused, refresh.list), (1, ListState::Consistent));
    assert!(fresh.find(slide).is_none() || known.find(slide).unwrap().kind != ImageKind::Library);
    // An entry points to nothing.
    let mut fresh = Images::map(64).unwrap();
    let refresh = fresh.refresh(&mut Changed::new(vec![(entries[1] + 24, 0x1234)]));
    assert_eq!(refresh.list, ListState::Broken);
    assert!(refresh.images >= 2);
}

fn a_damaged_list_takes_no_known_image_away() {
    let (mut images, first) = images();
    let entries = entries(&images, &mut AnyMemory::new());
    let damages = [
        // An entry points to nothing, and so does the head; the list ends too early; an entry has
        // another base or another dynamic section.
        vec![(entries[1] + 24, 0x1234)],
        vec![(entries[0] + 24, 0)],
        vec![(images.debug_address() + 8, 0x1234)],
        vec![(entries[2], 0x10_0000)],
        vec![(entries[2] + 16, 0x10_0000)],
    ];
    for (number, words) in damages.into_iter().enumerate() {
        let refresh = images.refresh(&mut Changed::new(words));
        assert_eq!((refresh.images, refresh.read), (first.images, 0), "damage {number}: {refresh:?}");
        images.refresh(&mut AnyMemory::new());
    }
}

fn a_list_that_is_a_cycle_ends() {
    let (known, first) = images();
    let mut memory = AnyMemory::new();
    let entries = entries(&known, &mut memory);
    let (last, before) = (entries[entries.len() - 1], entries[entries.len() - 2]);
    for back in [entries[0], entries[1], last] {
        // The second time with back links that hide it.
        for words in [vec![(last + 24, back)], vec![(last + 24, back), (back + 32, last)]] {
            let mut fresh = Images::map(64).unwrap();
            let mut memory = Changed::new(words);
            let refresh = fresh.refresh(&mut memory);
            assert_eq!((refresh.images, refresh.list), (first.images, ListState::Broken));
            assert!(memory.reads < 5000, "it is not followed for long: {} reads", memory.reads);
        }
    }
    assert_ne!(last, before);
}

// ──────── libraries whose headers are elsewhere; no handler recovers from a bad load here ────────

/// Sections behind a base of 2 MiB; neither ELF header nor program headers are in a segment.
const NO_HEADER: &str = "PHDRS { text PT_LOAD FLAGS(5); data PT_LOAD FLAGS(6); dynamic PT_DYNAMIC FLAGS(6);
    note PT_NOTE FLAGS(4); hdr 0x6474e550 FLAGS(4); }
SECTIONS {
    . = 0x200000;
    .note.gnu.build-id : { *(.note.gnu.build-id) } :text :note
    .gnu.hash : { *(.gnu.hash) } :text
    .dynsym : { *(.dynsym) } .dynstr : { *(.dynstr) } .rela.dyn : { *(.rela.*) } .text : { *(.text .text.*) }
    .eh_frame_hdr : { *(.eh_frame_hdr) } :text :hdr
    .eh_frame : { *(.eh_frame) } :text
    . = ALIGN(0x1000) + 0x1000;
    .dynamic : { *(.dynamic) } :data :dynamic
    .got : { *(.got .got.plt) } :data
    .data : { *(.data) } .bss : { *(.bss) }
}
";

/// Compiles a library with additional linker options.
///
/// Uses the words of `CORONER_TEST_CC`, or `cc`, and the first of several options that the linker
/// knows.
fn linked(directory: &Path, name: &str, options: &[&str]) -> PathBuf {
    let (source, library) = (directory.join(format!("{name}.c")), directory.join(format!("lib{name}.so")));
    std::fs::write(&source, "int value = 3; int function(void) { return value; }\n").unwrap();
    let words = std::env::var("CORONER_TEST_CC").unwrap_or_else(|_| "cc".to_owned());
    let compile = |option: &&str| {
        let mut words = words.split_whitespace();
        let mut compiler = Command::new(words.next().expect("a compiler"));
        compiler.args(words).args(["-shared", "-fPIC", "-nostdlib", "-Wl,--build-id", option]);
        compiler.arg("-o").arg(&library).arg(&source).output().expect("a C compiler").status.success()
    };
    assert!(options.iter().any(compile), "no {name} by {words}");
    library
}

fn with_other_base(directory: &Path) -> PathBuf {
    // GNU's linkers, and LLVM's.
    linked(directory, "other_base", &["-Wl,-Ttext-segment=0x40000000", "-Wl,--image-base=0x40000000"])
}

fn without_header(directory: &Path) -> PathBuf {
    let script = directory.join("no_header.ld");
    std::fs::write(&script, NO_HEADER).unwrap();
    linked(directory, "no_header", &[&format!("-Wl,-T,{}", script.display())])
}

/// Returns both readers that can't fault, if they are available.
fn checked() -> Vec<CheckedMemory> {
    [CheckedMemory::open(), CheckedMemory::through_pipe()].into_iter().flatten().collect()
}

/// Asserts that an image in the table agrees with the dynamic linker and the file.
fn assert_is_listed(images: &Images, path: &Path) {
    let image = named(images, path).unwrap_or_else(|| panic!("{} is missing", path.display()));
    let entry = listed().into_iter().find(|entry| entry.name == path.as_os_str().as_bytes()).unwrap();
    let header = |kind| entry.headers.iter().find(|header| header.0 == kind).unwrap();
    assert_eq!(image.slide, entry.slide);
    assert_eq!(image.dynamic, header(libc::PT_DYNAMIC).2 + entry.slide);
    assert_eq!(image.range.start, header(libc::PT_LOAD).2 + entry.slide);
    assert_eq!(image.eh_frame_hdr.start, header(libc::PT_GNU_EH_FRAME).2 + entry.slide);
    assert_eq!(image.build_id(), build_id_of(path));
}

fn memory_is_read_through_a_pipe() {
    let bytes: Vec<u8> = (0..20_000_u32).map(|number| (number / 3) as u8).collect();
    let mut memory = CheckedMemory::through_pipe().unwrap();
    for (at, length) in [(0, 1), (1, 4096), (5, 4097), (3, 19_000), (0, 0)] {
        let mut into = vec![0; length];
        memory.read(bytes.as_ptr() as u64 + at as u64, &mut into).unwrap();
        assert_eq!(into, bytes[at..at + length]);
    }
    // A page followed by nothing: what was copied until there must not be taken for the next bytes.
    // SAFETY: a new mapping, of which the second half is made inaccessible.
    let page = unsafe {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), 8192, protection, flags, -1, 0);
        assert_eq!(libc::mprotect(at.byte_add(4096), 4096, libc::PROT_NONE), 0);
        at as u64
    };
    let mut into = [1; 64];
    for address in [page + 4096 - 32, page + 4096, 0, 8, u64::MAX - 8] {
        assert_eq!(memory.read(address, &mut into), Err(Unreadable { address }));
    }
    assert_eq!(memory.read_u64(bytes.as_ptr() as u64).unwrap().to_le_bytes(), bytes[..8]);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    drop(memory);
    assert_eq!(open(), before - 2);
}

fn an_image_with_another_base_is_found() {
    let objects = Objects::new();
    let path = with_other_base(objects.directory.path());
    let loaded = load(&path);
    for mut memory in checked() {
        // As at install, and as in a crash that has not found the image before.
        let mut images = Images::map(64).unwrap();
        assert_eq!(images.refresh_by_linker(&mut memory).refused, 0);
        assert_is_listed(&images, &path);
        assert_eq!(images.refresh(&mut memory).read, 0);
        let mut fresh = Images::map(64).unwrap();
        assert_eq!(fresh.refresh(&mut memory).refused, 0);
        assert_is_listed(&fresh, &path);
        assert!(fresh.iter().eq(images.iter()));
    }
    drop(loaded);
}

fn an_image_without_an_elf_header_in_memory_is_found() {
    if cfg!(target_os = "android") {
        // bionic refuses to load it.
        return;
    }
    let objects = Objects::new();
    let path = without_header(objects.directory.path());
    let loaded = load(&path);
    for mut memory in checked() {
        let mut images = Images::map(64).unwrap();
        assert_eq!(images.refresh_by_linker(&mut memory).refused, 0);
        assert_is_listed(&images, &path);
        // It is known from then on.
        let found = images.refresh(&mut memory);
        assert_eq!((found.read, found.refused), (0, 0));
        assert_is_listed(&images, &path);
        // Nothing in memory identifies it.
        assert_eq!(Images::map(64).unwrap().refresh(&mut memory).refused, 1);
    }
    drop(loaded);
}

/// A listed library whose memory or first page is gone, or is not readable.
fn images_that_can_not_be_read_are_refused() {
    let objects = Objects::new();
    let directory = objects.directory.path();
    let mut made = vec![(true, with_other_base(directory)), (true, linked(directory, "plain", &["-O1"]))];
    if cfg!(not(target_os = "android")) {
        made.push((false, without_header(directory)));
    }
    for (number, (has_header, path)) in made.into_iter().enumerate() {
        // It can't be closed any more: its memory differs from what the dynamic linker assumes.
        std::mem::forget(load(&path));
        let mut images = Images::map(64).unwrap();
        images.refresh_by_linker(&mut CheckedMemory::open().unwrap_or_else(|| checked().remove(0)));
        let range = named(&images, &path).unwrap().range;
        let (start, length) = (range.start as *mut libc::c_void, range.len() as usize);
        for step in 0..3 {
            // SAFETY: nothing of the library is in use.
            let done = unsafe {
                match step {
                    0 => libc::mprotect(start, 4096, libc::PROT_NONE),
                    1 => libc::munmap(start, 4096),
                    _ => libc::munmap(start, length),
                }
            };
            assert_eq!(done, 0);
            for mut memory in checked() {
                let found = images.refresh_by_linker(&mut memory);
                assert_eq!(found.list, ListState::Consistent);
                let mut fresh = Images::map(64).unwrap();
                let found = fresh.refresh_by_linker(&mut memory);
                // The program headers of the library without a header are the dynamic linker's own
                // copy: it counts as loaded as long as its dynamic section is there. LLVM's linker
                // maps the file's first page twice, so that there is another copy of the headers.
                let refused = number + usize::from(has_header || step == 2);
                let is_it = found.refused == refused || (cfg!(target_os = "android") && step < 2);
                assert!(is_it, "library {number}, step {step}: {found:?}");
            }
        }
    }
}

/// Set in the process with a prelinked library; contains the library's path.
const PRELOADED: &str = "CORONER_TEST_PRELOADED";

/// Like a prelinked library, at its linked address: its slide is 0, which is not an address.
fn an_image_at_its_own_base_is_found() {
    if let Some(library) = std::env::var_os(PRELOADED) {
        return preloaded_is_listed(Path::new(&library));
    }
    if support::is_emulated() {
        // The variables below would apply to the emulator.
        return;
    }
    let objects = Objects::new();
    let path = with_other_base(objects.directory.path());
    // This process runs only this test, and so does another one with the same arguments.
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(std::env::args_os().skip(1));
    // Without this variable, glibc (up to 2.36) leaves a library there only in programs that have a
    // fixed address themselves.
    program.env("LD_USE_LOAD_BIAS", "1").env("LD_PRELOAD", &path).env(PRELOADED, &path);
    assert!(program.status().unwrap().success());
}

fn preloaded_is_listed(library: &Path) {
    let entry = listed().into_iter().find(|entry| entry.name == library.as_os_str().as_bytes()).unwrap();
    println!("  its slide is {:#x}", entry.slide);
    for mut memory in checked() {
        let mut images = Images::map(64).unwrap();
        images.refresh_by_linker(&mut memory);
        assert_is_listed(&images, library);
        let mut images = Images::map(64).unwrap();
        images.refresh(&mut memory);
        assert_is_listed(&images, library);
    }
}
