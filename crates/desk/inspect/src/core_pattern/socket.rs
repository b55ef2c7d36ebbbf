//! The socket that the kernel connects to for each crashed process.
//!
//! Source: Linux `include/uapi/linux/coredump.h` and `fs/coredump.c`. With `@@PATH` (6.17) the
//! kernel sends its features (`coredump_req`), receives the instructions (`coredump_ack`), and
//! replies whether it accepted them (`coredump_mark`); with `@PATH` (6.16) it writes the core dump
//! immediately.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{MsgFlags, getsockopt, recv};

use super::{CollectError, MAX_AT_ONCE};

/// Bits of `mask`: the kernel writes the core dump; it waits until the connection is closed.
const COREDUMP_KERNEL: u64 = 1;
const COREDUMP_WAIT: u64 = 1 << 3;
/// `COREDUMP_REQ_SIZE_VER0`, `COREDUMP_ACK_SIZE_VER0`.
const REQUEST: usize = 16;
const ACK: u32 = 16;
/// `COREDUMP_MARK_REQACK`.
const ACCEPTED: u32 = 0;
/// Size in bytes of the largest request of a later version.
const MAX_REQUEST: u32 = 4096;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A crashed process for which the kernel connected.
#[derive(Debug)]
#[non_exhaustive]
pub struct Death {
    /// The process id.
    pub pid: u32,
    /// The process's user.
    pub user: u32,
    /// The process's group.
    pub group: u32,
    /// Whether the user is allowed to read the process's memory.
    pub is_dumpable: bool,
    /// Standard input for the process that calls [`collect`](super::collect).
    pub connection: UnixStream,
}

/// The reason for not recording a crashed process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRecorded {
    /// The maximum number of reports is already being made.
    #[error("crash not recorded: already making {MAX_AT_ONCE} reports")]
    Busy,
    /// A process for it could not be started.
    #[error("crash not recorded: can't start a process for the report: {0}")]
    NotStarted(io::Error),
}

/// Listens for crashed processes on the socket that `kernel.core_pattern` names after `@@`.
///
/// `start` is called for each crash and starts a process that makes the report. `lost` is called
/// with the process id for each crash that is not recorded.
///
/// # Errors
/// [`CollectError`] if the socket can't be created or no longer accepts connections.
pub fn serve(
    path: &Path,
    start: impl Fn(Death) -> io::Result<Child>,
    lost: impl Fn(u32, NotRecorded),
) -> Result<Infallible, CollectError> {
    let cannot_listen = || CollectError::system::<io::Error>(format!("can't listen on `{}`", path.display()));
    // Left by an earlier process. If a process is still listening on it, this one takes over.
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| is_socket(&metadata)) {
        std::fs::remove_file(path).map_err(cannot_listen())?;
    }
    let listener = UnixListener::bind(path).map_err(cannot_listen())?;
    // Only root may connect.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(cannot_listen())?;
    let mut children: Vec<Child> = Vec::new();
    loop {
        let (connection, _) = listener.accept().map_err(cannot_listen())?;
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let Ok(peer) = getsockopt(&connection, PeerCredentials) else { continue };
        let pid = peer.pid() as u32;
        // Dropping the connection closes it, and the kernel continues.
        if children.len() >= MAX_AT_ONCE || children.iter().any(|child| child.id() == pid) {
            lost(pid, NotRecorded::Busy);
            continue;
        }
        // A process whose memory its user may not read belongs to root in /proc.
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
        let (user, group) = (peer.uid(), peer.gid());
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

/// Answers the kernel, which is connected to standard input, so that the core dump follows.
pub(super) fn request_dump() -> io::Result<()> {
    // SAFETY: standard input is open for the process's lifetime, and is not closed here.
    let mut connection = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(0) });
    answer(&mut connection)
}

fn answer(connection: &mut UnixStream) -> io::Result<()> {
    connection.set_read_timeout(Some(TIMEOUT))?;
    let mut start = [0; 4];
    recv(connection.as_raw_fd(), &mut start, MsgFlags::MSG_PEEK | MsgFlags::MSG_WAITALL)?;
    if start == *b"\x7fELF" {
        return Ok(());
    }
    let mut request = [0; REQUEST];
    connection.read_exact(&mut request)?;
    let word = |at: usize| u32::from_le_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
    let size = word(0);
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if !(REQUEST as u32..=MAX_REQUEST).contains(&size) {
        return Err(invalid(format!("invalid request size: {size} bytes")));
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
        ACCEPTED => Ok(()),
        mark => Err(invalid(format!("the kernel rejected the answer (mark {mark})"))),
    }
}
