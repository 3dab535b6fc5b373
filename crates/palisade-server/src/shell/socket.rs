//! Options for every socket.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Prepares a TCP socket: small frames are sent at once, and a peer that acknowledges nothing for about `peer_timeout`
/// counts as gone, whether or not data is in flight to it.
///
/// Without this, a waiter whose machine lost power would stay in its queue and be granted the lock.
///
/// # Errors
/// The operating system's error, usually because the peer is already gone.
pub fn prepare(socket: impl AsFd, peer_timeout: Duration) -> io::Result<()> {
    let fd = socket.as_fd();
    // Waiting for a full segment would cost 40 ms each time.
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    // The first probe after two fifths of the time, then three probes with a fifth between them.
    let fifth = (peer_timeout / 5).max(Duration::from_secs(1));
    let idle = peer_timeout.saturating_sub(3 * fifth);
    sockopt::set_tcp_keepidle(fd, idle.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepintvl(fd, fifth)?;
    sockopt::set_tcp_keepcnt(fd, PROBES)?;
    let ms = u32::try_from(peer_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, ms)?;
    Ok(())
}

/// Bounds how much of unread answers the operating system buffers; otherwise that grows to some megabytes for each
/// connection. Connections that a TCP listener accepts inherit the bound; those of a Unix socket do not.
///
/// # Errors
/// The operating system's error.
pub(super) fn bound_unread(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    sockopt::set_socket_send_buffer_size(socket.as_fd(), bytes)?;
    Ok(())
}

const PROBES: u32 = 3;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_silent_peer_is_probed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!sockopt::socket_keepalive(&socket).unwrap());
        prepare(&socket, Duration::from_secs(25)).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        assert_eq!(
            sockopt::tcp_keepidle(&socket).unwrap(),
            Duration::from_secs(10)
        );
        assert_eq!(
            sockopt::tcp_keepintvl(&socket).unwrap(),
            Duration::from_secs(5)
        );
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 3);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 25_000);
    }

    #[test]
    fn unread_bytes_are_bounded_on_every_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        bound_unread(&listener, 70_000).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let most = sockopt::socket_send_buffer_size(&accepted).unwrap();
        assert!((70_000..=140_000).contains(&most), "{most}");
    }
}
