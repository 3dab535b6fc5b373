//! The addresses that a server listens on: TCP addresses and Unix sockets.
//!
//! ```text
//!   lock PATH.lock ─► what is at PATH? ─┬─ nothing ──────────────────────┐
//!       │ taken                         ├─ a socket that refuses ─► rm ──┴─► bind ─► chmod ─► listen ─► … ─► rm
//!       ▼                               ├─ a socket that answers ─► refused
//!    refused                            └─ anything else ─────────► refused, untouched
//! ```
//!
//! A socket refuses connections when its server is dead, and also between `bind` and `listen`. Without the lock, two
//! servers that start at the same time could each take the other's socket for a dead one.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::{Origin, socket};

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port; 0 is a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Listen {
    /// The longest path of a Unix socket. The kernel has 108 bytes for it, with a zero at the end.
    pub const PATH_BYTES: usize = 107;

    /// A Unix socket at `path`, which may have `//` before it, as in a URL.
    ///
    /// # Errors
    /// The path is not absolute, or too long.
    pub fn unix(path: &str) -> Result<Listen, String> {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(
                "the path of a Unix socket is absolute: unix:/run/palisade.sock".to_owned(),
            );
        }
        if path.len() > Listen::PATH_BYTES {
            let (bytes, most) = (path.len(), Listen::PATH_BYTES);
            return Err(format!(
                "the path has {bytes} bytes, and that of a Unix socket has at most {most}"
            ));
        }
        Ok(Listen::Unix(path.into()))
    }

    /// Its TCP address.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Listen::Tcp(at) => Some(*at),
            Listen::Unix(_) => None,
        }
    }

    /// Its URL for clients. `scheme` is that of a TCP address.
    #[must_use]
    pub fn url(&self, scheme: &str) -> String {
        match self {
            Listen::Tcp(at) => format!("{scheme}://{at}"),
            Listen::Unix(path) => format!("unix://{}", path.display()),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(at) => at.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a server cannot listen somewhere.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {at}: {source}")]
pub struct BindError {
    /// Where.
    pub at: Listen,
    /// Why not. For a Unix socket [`AddrInUse`](io::ErrorKind::AddrInUse) means that a server lives there, and
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) that something other than a socket is there.
    pub source: io::Error,
}

/// Everything that one server listens on. Dropping it closes the ports and removes the Unix sockets.
#[derive(Debug)]
pub struct Listeners(Vec<BoundSocket>);

#[derive(Debug)]
enum BoundSocket {
    Tcp(TcpListener),
    Unix(Socket),
}

/// A connection that was accepted.
pub(super) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpListener> for Listeners {
    fn from(listener: TcpListener) -> Listeners {
        Listeners(vec![BoundSocket::Tcp(listener)])
    }
}

impl Listeners {
    /// Listens on all of these.
    ///
    /// # Errors
    /// [`BindError`] for the first one where that is not possible; nothing stays open then.
    pub async fn bind(all: &[Listen]) -> Result<Listeners, BindError> {
        let mut listeners = Vec::with_capacity(all.len());
        for at in all {
            let bound = match at {
                Listen::Tcp(at) => TcpListener::bind(at).await.map(BoundSocket::Tcp),
                Listen::Unix(path) => Socket::open(path).map(BoundSocket::Unix),
            };
            listeners.push(bound.map_err(|source| BindError {
                at: at.clone(),
                source,
            })?);
        }
        Ok(Listeners(listeners))
    }

    /// Where it listens, with the ports that the system has chosen.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn addresses(&self) -> io::Result<Vec<Listen>> {
        let address = |listener: &BoundSocket| match listener {
            BoundSocket::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            BoundSocket::Unix(socket) => Ok(Listen::Unix(socket.file.path.clone())),
        };
        self.0.iter().map(address).collect()
    }

    /// The TCP ports once more. Both accept their connections until one of the two is dropped.
    ///
    /// # Errors
    /// The operating system's error.
    pub(crate) fn ports(&self) -> io::Result<Listeners> {
        let again = |listener: &BoundSocket| match listener {
            BoundSocket::Tcp(listener) => Some(same_port(listener).map(BoundSocket::Tcp)),
            BoundSocket::Unix(_) => None,
        };
        let ports: io::Result<_> = self.0.iter().filter_map(again).collect();
        Ok(Listeners(ports?))
    }

    /// The next connection on any of them. After one was accepted, the others are asked first, so that a flood on one
    /// does not keep them waiting.
    pub(super) async fn accept(&self, turn: &mut usize) -> io::Result<(Accepted, Origin)> {
        poll_fn(|cx| {
            for _ in 0..self.0.len() {
                let listener = &self.0[*turn % self.0.len()];
                *turn = turn.wrapping_add(1);
                if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// See [`socket::bound_unread`].
    pub(super) fn bound_unread(&self, bytes: usize) -> io::Result<()> {
        self.0.iter().try_for_each(|listener| match listener {
            BoundSocket::Tcp(listener) => socket::bound_unread(listener, bytes),
            // Its connections do not inherit it.
            BoundSocket::Unix(_) => Ok(()),
        })
    }
}

fn same_port(listener: &TcpListener) -> io::Result<TcpListener> {
    TcpListener::from_std(listener.as_fd().try_clone_to_owned()?.into())
}

impl BoundSocket {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Accepted, Origin)>> {
        Poll::Ready(match self {
            BoundSocket::Tcp(listener) => {
                let (stream, address) = ready!(listener.poll_accept(cx))?;
                Ok((Accepted::Tcp(stream), Origin::Address(address)))
            }
            BoundSocket::Unix(socket) => {
                let (stream, _) = ready!(socket.listener.poll_accept(cx))?;
                let uid = stream.peer_cred()?.uid();
                Ok((Accepted::Unix(stream), Origin::Uid(uid)))
            }
        })
    }
}

/// A Unix socket that listens. Its fields are dropped in their order.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    file: SocketFile,
    _lock: SocketLock,
}

/// The file of a socket of this process.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
}

impl Socket {
    fn open(path: &Path) -> io::Result<Socket> {
        let lock = SocketLock::take(path)?;
        make_room(path)?;
        let (socket, file) = bound(path)?;
        net::listen(&socket, BACKLOG)?;
        Ok(Socket {
            listener: UnixListener::from_std(socket.into())?,
            file,
            _lock: lock,
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Somebody may have put something else there.
        if file_at(&self.path).is_ok_and(|id| id == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a dead server, and nothing else.
fn make_room(path: &Path) -> io::Result<()> {
    let there = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there?,
    };
    if !there.file_type().is_socket() {
        let why = "something else than a socket is there, and stays as it is";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    match net::connect(&stream_socket()?, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        // Its queue of connections is full.
        Ok(()) | Err(Errno::AGAIN) => Err(alive()),
        Err(error) => Err(error.into()),
    }
}

/// A socket that has its file and does not listen yet: until it does, nobody can connect, so it does not matter which mode
/// the umask gave the file at first.
fn bound(path: &Path) -> io::Result<(OwnedFd, SocketFile)> {
    let socket = stream_socket()?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile {
        path: path.to_owned(),
        id: file_at(path)?,
    };
    rustix::fs::chmod(path, MODE)?;
    Ok((socket, file))
}

fn stream_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

fn file_at(path: &Path) -> io::Result<(u64, u64)> {
    let file = fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

fn alive() -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, "another server listens there")
}

/// The lock of a socket's path, in a file beside it. It lasts as long as its server, and the file, too, if that ends in
/// order.
#[derive(Debug)]
struct SocketLock {
    path: PathBuf,
    _file: File,
}

impl SocketLock {
    fn take(socket: &Path) -> io::Result<SocketLock> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        // Neither follows a link that somebody has put there, nor waits at a pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags.bits().cast_signed())
                .open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(alive()),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // A server that was just ending may have removed the file that was opened here.
            if file.metadata()?.nlink() > 0 {
                return Ok(SocketLock { path, _file: file });
            }
        }
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The server's user and group may connect.
const MODE: Mode = Mode::from_raw_mode(0o660);

/// How many connections wait to be accepted, if the system allows as many. A client of a Unix socket whose queue is full
/// is refused at once.
const BACKLOG: i32 = 4_096;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener as Plain, UnixStream as Client};

    use super::*;

    fn refused(path: &Path) -> io::ErrorKind {
        Client::connect(path).unwrap_err().kind()
    }

    /// The mode before `chmod` depends on the umask of the user who runs this.
    #[tokio::test]
    async fn nobody_can_connect_before_the_file_has_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (socket, file) = bound(&path).unwrap();
        assert_eq!(refused(&path), io::ErrorKind::ConnectionRefused);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o660, "{mode:o}");
        net::listen(&socket, BACKLOG).unwrap();
        Client::connect(&path).unwrap();
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_dead_servers_socket_is_replaced_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(Plain::bind(&path).unwrap());
        assert_eq!(refused(&path), io::ErrorKind::ConnectionRefused, "dead");
        let own = Socket::open(&path).unwrap();
        Client::connect(&path).unwrap();
        // Alive, of this program and of another one.
        let again = Socket::open(&path).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
        drop(own);
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 0, "neither the socket nor its lock stays");
        let other = Plain::bind(&path).unwrap();
        let second = Socket::open(&path).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        Client::connect(&path).unwrap();
        drop(other);
        fs::remove_file(&path).unwrap();
        // No socket at all, also behind a link.
        let text = dir.path().join("text");
        fs::write(&text, "kept").unwrap();
        std::os::unix::fs::symlink(&text, &path).unwrap();
        for place in [&text, &path] {
            let refused = Socket::open(place).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    }

    /// As it is for a moment at each start: the file is there, and refuses connections.
    #[tokio::test]
    async fn a_server_that_is_just_starting_is_not_taken_for_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let lock = SocketLock::take(&path).unwrap();
        let (_socket, file) = bound(&path).unwrap();
        assert_eq!(refused(&path), io::ErrorKind::ConnectionRefused);
        let second = Socket::open(&path).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::AddrInUse);
        assert!(path.exists());
        // Control: without the lock it would be.
        drop(lock);
        let second = Socket::open(&path).unwrap();
        assert_ne!(second.file.id, file.id);
        drop(file);
        assert!(path.exists(), "it is the second one's");
    }

    #[test]
    fn a_path_is_absolute_and_fits_the_kernel() {
        let unix = |path: &str| Listen::unix(path).map(|listen| listen.to_string());
        for written in ["/run/s", "///run/s"] {
            assert_eq!(unix(written).unwrap(), "unix:/run/s");
        }
        for relative in ["", "s", "//s", "@s"] {
            assert!(
                unix(relative).unwrap_err().contains("absolute"),
                "{relative:?}"
            );
        }
        let longest = format!("/{}", "s".repeat(106));
        assert!(SocketAddrUnix::new(&*longest).is_ok() && unix(&longest).is_ok());
        let longer = format!("{longest}s");
        assert!(
            SocketAddrUnix::new(&*longer).is_ok(),
            "without the zero at the end"
        );
        let said = unix(&longer).unwrap_err();
        assert!(
            said.contains("108 bytes") && said.contains("at most 107"),
            "{said}"
        );
        let url = Listen::unix("/run/s").unwrap().url("http");
        assert_eq!(url, "unix:///run/s");
    }
}
