//! Files: open, fcntl, stat, and other functions with different layouts or flags.
//!
//! Sources: <sys/fcntl.h>, <sys/stat.h> (the 64-bit inode structure), <sys/unistd.h>, <copyfile.h>.

use std::{ffi::c_char, io::Write};

use super::errno::fail;
use crate::host::kernel::ending::refuse;

/// Darwin's and Linux's O_*; the access modes are the same.
const OPEN_FLAGS: &[(i32, i32)] = &[
    (0x4, libc::O_NONBLOCK),
    (0x8, libc::O_APPEND),
    (0x100, libc::O_NOFOLLOW),
    (0x200, libc::O_CREAT),
    (0x400, libc::O_TRUNC),
    (0x800, libc::O_EXCL),
    (0x2_0000, libc::O_NOCTTY),
    (0x10_0000, libc::O_DIRECTORY),
    (0x80, libc::O_SYNC),
    (0x40_0000, libc::O_DSYNC),
    (0x100_0000, libc::O_CLOEXEC),
];

fn open_flags(darwin: i32) -> i32 {
    let known = OPEN_FLAGS.iter().fold(3, |all, (d, _)| all | d);
    if darwin & !known != 0 {
        refuse!("open with flags {:#x}", darwin & !known);
    }
    OPEN_FLAGS.iter().filter(|(d, _)| darwin & d == *d).fold(darwin & 3, |all, (_, l)| all | l)
}

fn open_flags_back(linux: i32) -> i32 {
    OPEN_FLAGS.iter().filter(|(_, l)| linux & l == *l).fold(linux & 3, |all, (d, _)| all | d)
}

/// `AT_FDCWD` is -2 and Linux's -100.
pub(super) fn at(directory: i32) -> i32 {
    if directory == -2 { libc::AT_FDCWD } else { directory }
}

super::variadic! {
    fn open(path: *const c_char, flags: i32; _a _b _c _d _e _f; mode) -> i32 {
        // SAFETY: the program gave the path.
        unsafe { libc::open(path, open_flags(flags), mode as libc::mode_t) }
    }
}

super::variadic! {
    fn openat(directory: i32, path: *const c_char, flags: i32; _a _b _c _d _e; mode) -> i32 {
        // SAFETY: the program gave the path.
        unsafe { libc::openat(at(directory), path, open_flags(flags), mode as libc::mode_t) }
    }
}

/// `struct flock` (<sys/fcntl.h>): start, length, pid, type (read 1, unlock 2, write 3), whence.
#[repr(C)]
struct Lock {
    start: i64,
    length: i64,
    pid: i32,
    kind: i16,
    whence: i16,
}

fn file_lock(file: i32, command: i32, lock: *mut Lock) -> i32 {
    // SAFETY: the program gave the structure.
    unsafe {
        let mut linux: libc::flock = std::mem::zeroed();
        linux.l_start = (*lock).start;
        linux.l_len = (*lock).length;
        linux.l_whence = (*lock).whence;
        linux.l_type = [0, libc::F_RDLCK, libc::F_UNLCK, libc::F_WRLCK][(*lock).kind as usize & 3] as i16;
        let result = libc::fcntl(file, command, &raw mut linux);
        if result == 0 && command == libc::F_GETLK {
            let kind = [(libc::F_RDLCK, 1), (libc::F_UNLCK, 2), (libc::F_WRLCK, 3)];
            (*lock).kind = kind.iter().find(|(l, _)| *l == i32::from(linux.l_type)).map_or(2, |k| k.1);
            (*lock).pid = linux.l_pid;
        }
        result
    }
}

super::variadic! {
    fn fcntl(file: i32, command: i32; _a _b _c _d _e _f; argument) -> i32 {
        // SAFETY: the argument is what the command expects.
        unsafe {
            match command {
                0..=2 => libc::fcntl(file, command, argument), // F_DUPFD, F_GETFD, F_SETFD
                3 => match libc::fcntl(file, libc::F_GETFL) {
                    -1 => -1,
                    flags => open_flags_back(flags),
                },
                4 => libc::fcntl(file, libc::F_SETFL, open_flags(argument as i32)),
                7 => file_lock(file, libc::F_GETLK, argument as *mut Lock),
                8 => file_lock(file, libc::F_SETLK, argument as *mut Lock),
                9 => file_lock(file, libc::F_SETLKW, argument as *mut Lock),
                // F_PREALLOCATE: fst_flags, fst_posmode, fst_offset, fst_length, fst_bytesalloc.
                // F_PEOFPOSMODE is 3.
                42 => {
                    let store = argument as *mut [i64; 4];
                    let length = (*store)[2];
                    let mut facts: libc::stat = std::mem::zeroed();
                    libc::fstat(file, &raw mut facts);
                    let error = libc::posix_fallocate(file, 0, facts.st_size + length);
                    libc::ftruncate(file, facts.st_size);
                    (*store)[3] = length;
                    if error == libc::EFBIG {
                        // Linux sends it to the thread, XNU to the process (`psignal`): any thread
                        // that doesn't block it gets it.
                        libc::kill(libc::getpid(), libc::SIGXFSZ);
                    }
                    if error == 0 { 0 } else { fail(super::errno::to_darwin(error)) }
                }
                45 | 48 | 73 => 0, // F_RDAHEAD, F_NOCACHE, F_SETNOSIGPIPE
                50 => {
                    // F_GETPATH: into a buffer of MAXPATHLEN 1024.
                    let mut link = [0u8; 64];
                    let _ = write!(&mut link[..], "/proc/self/fd/{file}\0");
                    let length = libc::readlink(link.as_ptr().cast(), argument as *mut c_char, 1023);
                    if length < 0 {
                        return -1;
                    }
                    (argument as *mut c_char).offset(length).write(0);
                    0
                }
                51 | 85 => libc::fsync(file),           // F_FULLFSYNC, F_BARRIERFSYNC
                67 => libc::fcntl(file, libc::F_DUPFD_CLOEXEC, argument),
                other => refuse!("fcntl with command {other}"),
            }
        }
    }
}

super::variadic! {
    fn ioctl(file: i32, request: u64; _a _b _c _d _e _f; argument) -> i32 {
        // SAFETY: the argument is what the request expects.
        unsafe {
            match request as u32 {
                0x2000_6601 => libc::ioctl(file, libc::FIOCLEX),          // FIOCLEX
                0x8004_667e => libc::ioctl(file, libc::FIONBIO, argument), // FIONBIO
                0x4008_7468 => libc::ioctl(file, libc::TIOCGWINSZ, argument), // TIOCGWINSZ: the same structure
                0x4048_7413 => fail(25),                                   // TIOCGETA: ENOTTY
                other => refuse!("ioctl with request {other:#x}"),
            }
        }
    }
}

/// `struct stat` with 64-bit inodes.
#[repr(C)]
struct Stat {
    device: i32,
    mode: u16,
    links: u16,
    inode: u64,
    uid: u32,
    gid: u32,
    special: i32,
    access: [i64; 2],
    modification: [i64; 2],
    change: [i64; 2],
    birth: [i64; 2],
    size: i64,
    blocks: i64,
    block_size: i32,
    flags: u32,
    generation: u32,
    spare: i32,
    more: [i64; 2],
}

const _: () = assert!(size_of::<Stat>() == 144);

fn give(result: i32, linux: &libc::stat, to: *mut Stat) -> i32 {
    if result == 0 {
        let change = [linux.st_ctime, linux.st_ctime_nsec];
        let stat = Stat {
            device: linux.st_dev as i32,
            mode: linux.st_mode as u16,
            links: linux.st_nlink as u16,
            inode: linux.st_ino,
            uid: linux.st_uid,
            gid: linux.st_gid,
            special: linux.st_rdev as i32,
            access: [linux.st_atime, linux.st_atime_nsec],
            modification: [linux.st_mtime, linux.st_mtime_nsec],
            change,
            birth: change,
            size: linux.st_size,
            blocks: linux.st_blocks,
            block_size: i32::try_from(linux.st_blksize).unwrap_or(4096),
            flags: 0,
            generation: 0,
            spare: 0,
            more: [0; 2],
        };
        // SAFETY: the program gave the address.
        unsafe { to.write(stat) };
    }
    result
}

extern "C" fn stat(path: *const c_char, to: *mut Stat) -> i32 {
    // SAFETY: the program gave the path.
    unsafe {
        let mut linux = std::mem::zeroed();
        give(libc::stat(path, &raw mut linux), &linux, to)
    }
}

extern "C" fn lstat(path: *const c_char, to: *mut Stat) -> i32 {
    // SAFETY: as above.
    unsafe {
        let mut linux = std::mem::zeroed();
        give(libc::lstat(path, &raw mut linux), &linux, to)
    }
}

extern "C" fn fstat(file: i32, to: *mut Stat) -> i32 {
    // SAFETY: a local result.
    unsafe {
        let mut linux = std::mem::zeroed();
        give(libc::fstat(file, &raw mut linux), &linux, to)
    }
}

/// AT_SYMLINK_NOFOLLOW is 0x20 and Linux's 0x100.
extern "C" fn fstatat(directory: i32, path: *const c_char, to: *mut Stat, flags: i32) -> i32 {
    let linux_flags = if flags & 0x20 != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: as above.
    unsafe {
        let mut linux = std::mem::zeroed();
        give(libc::fstatat(at(directory), path, &raw mut linux, linux_flags), &linux, to)
    }
}

/// `struct statvfs` (<sys/statvfs.h>): block and file counts have 32 bits.
#[repr(C)]
struct FileSystem {
    block_size: u64,
    fragment_size: u64,
    blocks: u32,
    free: u32,
    available: u32,
    files: [u32; 3],
    id: u64,
    flags: u64,
    longest_name: u64,
}

extern "C" fn statvfs(path: *const c_char, to: *mut FileSystem) -> i32 {
    // SAFETY: the program gave the path and the structure.
    unsafe {
        let mut linux: libc::statvfs = std::mem::zeroed();
        let result = libc::statvfs(path, &raw mut linux);
        if result == 0 {
            to.write(FileSystem {
                block_size: linux.f_bsize,
                fragment_size: linux.f_frsize,
                blocks: linux.f_blocks as u32,
                free: linux.f_bfree as u32,
                available: linux.f_bavail as u32,
                files: [linux.f_files as u32, linux.f_ffree as u32, linux.f_favail as u32],
                id: linux.f_fsid,
                flags: 0,
                longest_name: linux.f_namemax,
            });
        }
        result
    }
}

/// AT_REMOVEDIR is 0x80 and Linux's 0x200.
extern "C" fn unlinkat(directory: i32, path: *const c_char, flags: i32) -> i32 {
    let flags = if flags & 0x80 != 0 { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the program gave the path.
    unsafe { libc::unlinkat(at(directory), path, flags) }
}

extern "C" fn linkat(from: i32, path: *const c_char, to: i32, new: *const c_char, _flags: i32) -> i32 {
    // SAFETY: the program gave the paths.
    unsafe { libc::linkat(at(from), path, at(to), new, 0) }
}

extern "C" fn mkdirat(directory: i32, path: *const c_char, mode: u16) -> i32 {
    // SAFETY: the program gave the path.
    unsafe { libc::mkdirat(at(directory), path, mode.into()) }
}

/// `mkfifo`: opening such a pipe, and `ENXIO`, are as on Linux.
///
/// Source: XNU bsd/miscfs/fifofs/fifo_vnops.c, `fifo_open`.
extern "C" fn mkfifo(path: *const c_char, mode: u16) -> i32 {
    // SAFETY: the program gave the path.
    unsafe { libc::mkfifo(path, mode.into()) }
}

/// `futimens`: two timespecs in Linux's layout. UTIME_NOW is -1 and UTIME_OMIT -2 (<sys/stat.h>).
extern "C" fn futimens(file: i32, times: *const [libc::timespec; 2]) -> i32 {
    // SAFETY: the program gave two timespecs, or none.
    unsafe {
        if !times.is_null() && (*times).iter().any(|time| time.tv_nsec < 0) {
            refuse!("futimens with UTIME_NOW or UTIME_OMIT");
        }
        libc::futimens(file, times.cast())
    }
}

extern "C" fn renameat(from: i32, path: *const c_char, to: i32, new: *const c_char) -> i32 {
    // SAFETY: the program gave the paths.
    unsafe { libc::renameat(at(from), path, at(to), new) }
}

/// `struct attrlist` (<sys/attr.h>).
#[repr(C)]
struct AttributeList {
    count: u16,
    reserved: u16,
    common: u32,
    others: [u32; 4],
}

/// `fsetattrlist`, by which Rust's std sets a file's times.
///
/// ATTR_CMN_CRTIME 0x200 (dropped, because Linux has none), ATTR_CMN_MODTIME 0x400,
/// ATTR_CMN_ACCTIME 0x1000, each a `timespec`, in this order.
extern "C" fn fsetattrlist(
    file: i32,
    list: &AttributeList,
    mut from: *const libc::timespec,
    size: usize,
    _: u32,
) -> i32 {
    const TIMES: [u32; 3] = [0x200, 0x400, 0x1000];
    let wanted = TIMES.iter().filter(|time| list.common & **time != 0).count();
    if list.common & !0x1600 != 0 || list.others != [0; 4] || size != wanted * size_of::<libc::timespec>() {
        refuse!("fsetattrlist of attributes {:#x} {:x?}", list.common, list.others);
    }
    let omitted = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let [_, modified, accessed] = TIMES.map(|time| {
        if list.common & time == 0 {
            return omitted;
        }
        // SAFETY: the program provided as many times as it sets.
        unsafe {
            let time = from.read_unaligned();
            from = from.add(1);
            time
        }
    });
    // SAFETY: two times.
    unsafe { libc::futimens(file, [accessed, modified].as_ptr()) }
}

/// Clones are an APFS feature: returns ENOTSUP, and callers copy.
extern "C" fn fclonefileat(_file: i32, _directory: i32, _path: *const c_char, _flags: u32) -> i32 {
    fail(45)
}

/// `fcopyfile` with COPYFILE_DATA: copies the bytes and counts them in the state.
extern "C" fn fcopyfile(from: i32, to: i32, state: *mut i64, _flags: u32) -> i32 {
    let mut buffer = vec![0u8; 65536];
    let mut total = 0;
    loop {
        // SAFETY: a local buffer.
        let count = unsafe { libc::read(from, buffer.as_mut_ptr().cast(), buffer.len()) };
        if count <= 0 {
            if !state.is_null() {
                // SAFETY: a state of ours.
                unsafe { state.write(total) };
            }
            return count as i32;
        }
        let mut rest = &buffer[..count as usize];
        while !rest.is_empty() {
            // SAFETY: as above.
            let written = unsafe { libc::write(to, rest.as_ptr().cast(), rest.len()) };
            if written < 0 {
                return -1;
            }
            rest = &rest[written as usize..];
        }
        total += i64::try_from(count).unwrap_or(0);
    }
}

extern "C" fn copyfile_state_alloc() -> *mut libc::c_void {
    // SAFETY: no preconditions.
    unsafe { libc::calloc(1, 8) }
}

extern "C" fn copyfile_state_free(state: *mut libc::c_void) -> i32 {
    // SAFETY: a state of ours.
    unsafe { libc::free(state) };
    0
}

/// COPYFILE_STATE_COPIED (8): the bytes copied.
extern "C" fn copyfile_state_get(state: *const i64, flag: u32, value: *mut i64) -> i32 {
    if flag != 8 {
        refuse!("copyfile_state_get of {flag}");
    }
    // SAFETY: a state of ours; the program gave the address.
    unsafe { value.write(state.read()) };
    0
}

/// `realpath$DARWIN_EXTSN`: same as POSIX.
extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    // SAFETY: the program gave the path.
    unsafe { libc::realpath(path, to) }
}

super::exports! {
    "open" => open,
    "openat" => openat,
    "fcntl" => fcntl,
    "ioctl" => ioctl,
    "stat" => stat,
    "lstat" => lstat,
    "fstat" => fstat,
    "fstatat" => fstatat,
    "statvfs" => statvfs,
    "unlinkat" => unlinkat,
    "linkat" => linkat,
    "mkdirat" => mkdirat,
    "mkfifo" => mkfifo,
    "futimens" => futimens,
    "renameat" => renameat,
    "fsetattrlist" => fsetattrlist,
    "fclonefileat" => fclonefileat,
    "fcopyfile" => fcopyfile,
    "copyfile_state_alloc" => copyfile_state_alloc,
    "copyfile_state_free" => copyfile_state_free,
    "copyfile_state_get" => copyfile_state_get,
    "realpath" => realpath,
    "access" => libc::access,
    "close" => libc::close,
    "read" => libc::read,
    "write" => libc::write,
    "readv" => libc::readv,
    "writev" => libc::writev,
    "pread" => libc::pread,
    "pwrite" => libc::pwrite,
    "lseek" => libc::lseek,
    "ftruncate" => libc::ftruncate,
    "truncate" => libc::truncate,
    "fsync" => libc::fsync,
    "flock" => libc::flock,
    "dup" => libc::dup,
    "dup2" => libc::dup2,
    "pipe" => libc::pipe,
    "poll" => libc::poll,
    "isatty" => libc::isatty,
    "unlink" => libc::unlink,
    "rename" => libc::rename,
    "link" => libc::link,
    "symlink" => libc::symlink,
    "readlink" => libc::readlink,
    "mkdir" => libc::mkdir,
    "rmdir" => libc::rmdir,
    "chmod" => libc::chmod,
    "fchmod" => libc::fchmod,
    "chown" => libc::chown,
    "fchown" => libc::fchown,
    "lchown" => libc::lchown,
    "mkfifo" => libc::mkfifo,
    "umask" => libc::umask,
    "chdir" => libc::chdir,
    "getcwd" => libc::getcwd,
    "socketpair" => libc::socketpair,
}
