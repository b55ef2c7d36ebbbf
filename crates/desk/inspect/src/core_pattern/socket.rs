//! The socket that the kernel connects to for each death.
//!
//! Source: Linux `include/uapi/linux/coredump.h` and `fs/coredump.c`. With `@@PATH` (6.17) the kernel says what it can do (`coredump_req`), is answered
//! what to do (`coredump_ack`), and says whether that was understood (`coredump_mark`); with `@PATH` (6.16) it writes the core dump at once.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::{CollectError, MAX_AT_ONCE};

/// Bits of `mask`: the kernel writes the core dump; it waits until the connection is closed.
const COREDUMP_KERNEL: u64 = 1;
const COREDUMP_WAIT: u64 = 1 << 3;
/// `COREDUMP_REQ_SIZE_VER0`, `COREDUMP_ACK_SIZE_VER0`.
const REQUEST: usize = 16;
const ACK: u32 = 16;
/// `COREDUMP_MARK_REQACK`.
const UNDERSTOOD: u32 = 0;
/// Largest request of a later version.
const LARGEST: u32 = 4096;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A death that the kernel connected for.
#[derive(Debug)]
#[non_exhaustive]
pub struct Death {
    /// The process.
    pub pid: u32,
    /// Its user.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Whether its user may see its memory.
    pub is_dumpable: bool,
    /// To be standard input of the process that calls [`collect`](super::collect).
    pub connection: UnixStream,
}

/// Why a death that the kernel connected for is not recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// As many reports are being made as may be at once.
    #[error("{MAX_AT_ONCE} reports are being made, so this death is not recorded")]
    Busy,
    /// No process could be started for it.
    #[error("no report can be made: {0}")]
    NotStarted(io::Error),
}

/// Listens at a socket, which `kernel.core_pattern` names after `@@`, and calls `start` for each death, which starts a process for it. `lost` is
/// given the process id of each death that is not recorded.
///
/// # Errors
/// If the socket can't be created, or accepts no connections any more.
pub fn serve(
    path: &Path,
    start: impl Fn(Death) -> io::Result<Child>,
    lost: impl Fn(u32, NotRecorded),
) -> Result<Infallible, CollectError> {
    let cannot_listen = || CollectError::system::<io::Error>(format!("can't listen at `{}`", path.display()));
    // What an earlier process has left; of one that listens, it is taken over.
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| is_socket(&metadata)) {
        std::fs::remove_file(path).map_err(cannot_listen())?;
    }
    let listener = UnixListener::bind(path).map_err(cannot_listen())?;
    // Root's alone.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(cannot_listen())?;
    let mut children: Vec<Child> = Vec::new();
    loop {
        let (connection, _) = listener.accept().map_err(cannot_listen())?;
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&connection) else { continue };
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        // Dropped, the connection is closed, and the kernel goes on.
        if children.len() >= MAX_AT_ONCE || children.iter().any(|child| child.id() == pid) {
            lost(pid, NotRecorded::Busy);
            continue;
        }
        // What its user may not see belongs to root in /proc.
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
        let (user, group) = (peer.uid.as_raw(), peer.gid.as_raw());
        let is_dumpable = owner.is_ok_and(|owner| owner == user);
        match start(Death { pid, user, group, is_dumpable, connection }) {
            Ok(child) => children.push(child),
            Err(error) => lost(pid, NotRecorded::NotStarted(error)),
        }
    }
}

fn is_socket(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
}

/// Answers the kernel, which is at standard input, so that the core dump comes next.
pub(super) fn ask_for_the_dump() -> io::Result<()> {
    // SAFETY: standard input is open for as long as the process is, and is not closed here.
    let mut connection = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(0) });
    answer(&mut connection)
}

fn answer(connection: &mut UnixStream) -> io::Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut start = [0; 4];
    rustix::net::recv(&*connection, &mut start[..], rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::WAITALL)?;
    if start == *b"\x7fELF" {
        return Ok(());
    }
    let mut request = [0; REQUEST];
    connection.read_exact(&mut request)?;
    let word = |at: usize| u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
    let size = word(0);
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if !(REQUEST as u32..=LARGEST).contains(&size) {
        return Err(invalid(format!("a request of {size} bytes")));
    }
    io::copy(&mut Read::by_ref(connection).take(u64::from(size) - REQUEST as u64), &mut io::sink())?;
    // `coredump_ack`: size, spare, mask.
    let mut ack = Vec::new();
    ack.extend_from_slice(&ACK.to_le_bytes());
    ack.extend_from_slice(&0_u32.to_le_bytes());
    ack.extend_from_slice(&(COREDUMP_KERNEL | COREDUMP_WAIT).to_le_bytes());
    connection.write_all(&ack)?;
    let mut mark = [0; 4];
    connection.read_exact(&mut mark)?;
    match u32::from_le_bytes(mark) {
        UNDERSTOOD => Ok(()),
        mark => Err(invalid(format!("it did not understand the answer ({mark})"))),
    }
}
