//! Reading directories (<sys/dirent.h>, the structure with 64-bit inodes).

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};

/// `struct dirent`.
#[repr(C)]
struct Entry {
    inode: u64,
    seek: u64,
    record: u16,
    length: u16,
    kind: u8,
    name: [c_char; 1024],
}

/// `readdir_r`: fills in the caller's structure; null at the end. Entry types (DT_*) are the same.
extern "C" fn readdir_r(directory: *mut libc::DIR, entry: *mut Entry, result: *mut *mut Entry) -> i32 {
    // SAFETY: a stream of libc's; the program gave the addresses.
    unsafe {
        let errno = libc::__errno_location();
        *errno = 0;
        let linux = libc::readdir64(directory);
        if linux.is_null() {
            result.write(std::ptr::null_mut());
            return super::errno::to_darwin(std::mem::take(&mut *errno));
        }
        let name = CStr::from_ptr((&raw const (*linux).d_name).cast()).to_bytes_with_nul();
        (*entry).inode = (*linux).d_ino;
        (*entry).seek = (*linux).d_off as u64;
        (*entry).kind = (*linux).d_type;
        (*entry).length = name.len() as u16 - 1;
        // The header is 21 bytes; records are multiples of four.
        (*entry).record = ((21 + name.len() + 3) & !3) as u16;
        std::ptr::copy_nonoverlapping(name.as_ptr().cast::<c_char>(), (&raw mut (*entry).name).cast(), name.len());
        result.write(entry);
    }
    0
}

/// The structure of each stream that `readdir` has read, by the stream's address.
///
/// With a shared one, a thread could see the names that another thread reads.
static ENTRIES: Mutex<BTreeMap<usize, Box<Entry>>> = Mutex::new(BTreeMap::new());

/// `readdir`: fills in the stream's own structure, which is valid until the stream is closed.
extern "C" fn readdir(directory: *mut libc::DIR) -> *mut Entry {
    let entry = {
        let mut entries = ENTRIES.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = || Box::new(Entry { inode: 0, seek: 0, record: 0, length: 0, kind: 0, name: [0; 1024] });
        &raw mut **entries.entry(directory as usize).or_insert_with(empty)
    };
    let mut result = std::ptr::null_mut();
    let error = readdir_r(directory, entry, &raw mut result);
    if error != 0 {
        super::errno::fail(error);
    }
    result
}

extern "C" fn closedir(directory: *mut libc::DIR) -> i32 {
    // Do this before libc may reuse the address for another stream.
    ENTRIES.lock().unwrap_or_else(PoisonError::into_inner).remove(&(directory as usize));
    // SAFETY: a stream of libc's; the program gave the address.
    unsafe { libc::closedir(directory) }
}

super::exports! {
    "opendir" => libc::opendir,
    "fdopendir" => libc::fdopendir,
    "closedir" => closedir,
    "dirfd" => libc::dirfd,
    "rewinddir" => libc::rewinddir,
    "readdir_r" => readdir_r,
    "readdir" => readdir,
}
