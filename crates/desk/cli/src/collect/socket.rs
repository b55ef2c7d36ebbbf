//! The socket that the kernel connects to for each death.
//!
//! Source: Linux `include/uapi/linux/coredump.h` and `fs/coredump.c`. With `@@PATH` (6.17) the kernel says what it can do (`coredump_req`), is answered
//! what to do (`coredump_ack`), and says whether that was understood (`coredump_mark`); with `@PATH` (6.16) it writes the core dump at once.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use super::user_store::make_private;
use crate::failure::{Context, Failure};

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

/// Who died.
pub(super) struct Death {
    pub(super) pid: u32,
    pub(super) user: u32,
    pub(super) group: u32,
    /// Whether its user may see its memory.
    pub(super) is_dumpable: bool,
    pub(super) connection: UnixStream,
}

/// Takes connections, up to so many at once, and lets `start` begin with each.
pub(super) fn serve(
    path: &Path,
    at_once: usize,
    start: impl Fn(Death) -> io::Result<Child>,
) -> Result<Infallible, Failure> {
    let doing = || format!("can't listen at `{}`", path.display());
    // What an earlier process has left; of one that listens, it is taken over.
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| is_socket(&metadata)) {
        std::fs::remove_file(path).context(doing())?;
    }
    let listener = UnixListener::bind(path).context(doing())?;
    make_private(path).context(doing())?;
    let mut children: Vec<Child> = Vec::new();
    loop {
        let (connection, _) = listener.accept().context(doing())?;
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let Ok(peer) = rustix::net::sockopt::socket_peercred(&connection) else { continue };
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        // Dropped, the connection is closed, and the kernel goes on.
        if children.len() >= at_once || children.iter().any(|child| child.id() == pid) {
            anstream::eprintln!("process {pid}: {at_once} reports are being made, so this death is not recorded");
            continue;
        }
        // What its user may not see belongs to root in /proc.
        let owner = std::fs::metadata(format!("/proc/{pid}")).map(|metadata| metadata.uid());
        let (user, group) = (peer.uid.as_raw(), peer.gid.as_raw());
        let is_dumpable = owner.is_ok_and(|owner| owner == user);
        match start(Death { pid, user, group, is_dumpable, connection }) {
            Ok(child) => children.push(child),
            Err(error) => anstream::eprintln!("process {pid}: no report can be made: {error}"),
        }
    }
}

fn is_socket(metadata: &std::fs::Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type())
}

/// Answers the kernel, which is at standard input, so that the core dump comes next.
pub(super) fn ask_for_the_dump() -> Result<(), Failure> {
    // SAFETY: standard input is open for as long as the process is, and is not closed here.
    let mut connection = ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(0) });
    answer(&mut connection).context("the kernel's question can't be answered")
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
