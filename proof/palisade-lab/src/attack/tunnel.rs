//! The same attacks on servers with TLS and rules: each server has a tunnel before it, which takes plain connections and makes
//! TLS connections of them, with the attacker's certificate.
//!
//! ```text
//!   attack ── plain ──► tunnel ── TLS, certificate of `attacker` ──► palisade serve --tls-… --access …
//! ```
//!
//! So an attack needs no second form. The tunnel holds nothing back: it passes on all bytes, closes a direction when its
//! source closes, and reads no more than the other side takes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use palisade_tls::{ClientFiles, TlsClient};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;

use super::failure::text;

/// The certificates of the servers and the attacker, and the runtime of the tunnels.
pub(super) struct Secure {
    folder: PathBuf,
    client: TlsClient,
    runtime: Runtime,
}

/// The attacker may do everything, so no refusal can protect the server.
const RULES: &str = r#"
[auth]

[[auth.principals]]
name = "attacker"
certificates = ["attacker"]

[[auth.rules]]
principal = "attacker"
prefix = ""
verbs = ["hold", "share", "observe", "break", "admin"]
"#;

impl Secure {
    /// Has the program under test make the certificates.
    pub(super) fn new(binary: &Path, folder: &Path) -> Result<Secure, String> {
        let folder = folder.join("certificates");
        for name in ["127.0.0.1", "attacker"] {
            let mut command = Command::new(binary);
            command.args(["auth", "cert", name, "--dir"]).arg(&folder);
            let output = command.output().map_err(text)?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
        }
        std::fs::write(folder.join("access.toml"), RULES).map_err(text)?;
        let file = |name: &str| folder.join(name);
        let client = TlsClient::new(&ClientFiles {
            ca: Some(file("ca.pem")),
            own: Some((file("attacker.pem"), file("attacker.key"))),
        });
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        Ok(Secure {
            client: client.map_err(text)?,
            runtime: runtime
                .worker_threads(2)
                .enable_all()
                .build()
                .map_err(text)?,
            folder,
        })
    }

    /// The flags of a server with this role.
    pub(super) fn arguments(&self, role: &str) -> Vec<String> {
        let mut flags = vec![
            ("--tls-cert", "127.0.0.1.pem"),
            ("--tls-key", "127.0.0.1.key"),
            ("--tls-client-ca", "ca.pem"),
        ];
        if role == "serve" {
            flags.push(("--access", "access.toml"));
        }
        let words = |(flag, name): (&str, &str)| {
            [
                flag.to_owned(),
                self.folder.join(name).display().to_string(),
            ]
        };
        flags.into_iter().flat_map(words).collect()
    }

    /// A tunnel to a server; it ends with the attack.
    pub(super) fn tunnel(&self, to: SocketAddr) -> Result<SocketAddr, String> {
        let _inside = self.runtime.enter();
        let socket = small_socket().map_err(text)?;
        socket
            .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .map_err(text)?;
        let listener = socket.listen(1_024).map_err(text)?;
        let address = listener.local_addr().map_err(text)?;
        let client = self.client.clone();
        self.runtime.spawn(async move {
            while let Ok((plain, from)) = listener.accept().await {
                let client = client.clone();
                tokio::spawn(async move {
                    // A connection that the server refuses is closed for the attack, too.
                    let _ = carry(plain, from, to, &client).await;
                });
            }
        });
        Ok(address)
    }
}

/// The server sees the attacker's own address, since it has bounds for each.
async fn carry(
    mut plain: TcpStream,
    from: SocketAddr,
    to: SocketAddr,
    client: &TlsClient,
) -> std::io::Result<()> {
    let socket = small_socket()?;
    socket.bind(SocketAddr::new(from.ip(), 0))?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    plain.set_nodelay(true)?;
    let mut secure = client.connect(&to.ip().to_string(), stream).await?;
    copy_bidirectional(&mut plain, &mut secure).await.map(drop)
}

/// With small buffers, so that a peer that does not read is soon noticed.
fn small_socket() -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(BUFFER)?;
    socket.set_send_buffer_size(BUFFER)?;
    Ok(socket)
}

const BUFFER: u32 = 64 << 10;
