//! What is set on every socket.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Prepares a TCP socket: small frames leave at once, and a peer that acknowledges nothing for about
/// `peer_timeout` is taken for gone, whether something is on its way to it or not.
///
/// Without this a waiter whose machine lost its power stays in its queue, and is granted the lock.
///
/// # Errors
/// What the system said; the peer is gone already, mostly.
pub fn prepare(socket: impl AsFd, peer_timeout: Duration) -> io::Result<()> {
    let fd = socket.as_fd();
    // Waiting to fill a segment would cost 40 ms each.
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    // The first question after two fifths of the time, then three with a fifth between them.
    let fifth = (peer_timeout / 5).max(Duration::from_secs(1));
    let idle = peer_timeout.saturating_sub(3 * fifth);
    sockopt::set_tcp_keepidle(fd, idle.max(Duration::from_secs(1)))?;
    sockopt::set_tcp_keepintvl(fd, fifth)?;
    sockopt::set_tcp_keepcnt(fd, PROBES)?;
    let ms = u32::try_from(peer_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(fd, ms)?;
    Ok(())
}

/// Bounds what the system keeps of answers that a peer does not read: otherwise it lets that grow to some
/// megabytes for each connection. Connections that a listener accepts inherit it.
///
/// # Errors
/// What the system said.
pub(super) fn bound_unread(listener: impl AsFd, bytes: usize) -> io::Result<()> {
    sockopt::set_socket_send_buffer_size(listener.as_fd(), bytes)?;
    Ok(())
}

const PROBES: u32 = 3;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_peer_that_vanished_is_asked_for() {
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
    fn what_a_peer_leaves_unread_has_a_bound_on_every_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        bound_unread(&listener, 70_000).unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let most = sockopt::socket_send_buffer_size(&accepted).unwrap();
        assert!((70_000..=140_000).contains(&most), "{most}");
    }
}
