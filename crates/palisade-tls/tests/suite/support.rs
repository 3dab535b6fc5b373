//! A folder with a CA, and one handshake.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use palisade_tls::issue::{CertificateAuthority, Issued, Validity};
use palisade_tls::{ClientFiles, Server, ServerFiles, TlsClient, explain};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Folder {
    dir: TempDir,
}

/// Days from now: valid, over, or ahead.
pub(crate) fn valid() -> Validity {
    Validity::days(SystemTime::now(), 1)
}

pub(crate) fn over() -> Validity {
    let now = SystemTime::now();
    Validity {
        from: now - Duration::from_secs(7_200),
        until: now - Duration::from_secs(3_600),
    }
}

pub(crate) fn ahead() -> Validity {
    let now = SystemTime::now();
    Validity {
        from: now + Duration::from_secs(3_600),
        until: now + Duration::from_secs(7_200),
    }
}

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, issued: &Issued) {
        fs::write(self.path(&format!("{name}.pem")), &issued.certificate).unwrap();
        fs::write(self.path(&format!("{name}.key")), &issued.key).unwrap();
    }

    /// A CA, with its files.
    pub(crate) fn ca(&self, name: &str) -> CertificateAuthority {
        let (ca, issued) = CertificateAuthority::make(valid()).unwrap();
        self.put(name, &issued);
        ca
    }

    pub(crate) fn issue(
        &self,
        ca: &CertificateAuthority,
        file: &str,
        name: &str,
        validity: Validity,
    ) {
        self.put(file, &ca.issue(&[name], validity).unwrap());
    }

    /// A server with this certificate, which trusts clients of this CA.
    pub(crate) fn server(&self, own: &str, client_ca: Option<&str>) -> Server {
        Server::new(self.server_files(own, client_ca), true).unwrap()
    }

    /// The same, with a list of the certificates that the CA has revoked.
    pub(crate) fn server_with_list(&self, own: &str, client_ca: &str, list: &str) -> Server {
        let files = ServerFiles {
            client_crl: Some(self.path(list)),
            ..self.server_files(own, Some(client_ca))
        };
        Server::new(files, true).unwrap()
    }

    fn server_files(&self, own: &str, client_ca: Option<&str>) -> ServerFiles {
        ServerFiles {
            certificate: self.path(&format!("{own}.pem")),
            key: self.path(&format!("{own}.key")),
            client_ca: client_ca.map(|ca| self.path(&format!("{ca}.pem"))),
            client_crl: None,
            certificate_optional: false,
        }
    }

    /// A client that trusts this CA and has this certificate.
    pub(crate) fn client(&self, ca: &str, own: Option<&str>) -> TlsClient {
        let pair = |own: &str| {
            let file = |end: &str| self.path(&format!("{own}.{end}"));
            (file("pem"), file("key"))
        };
        let files = ClientFiles {
            ca: Some(self.path(&format!("{ca}.pem"))),
            own: own.map(pair),
        };
        TlsClient::new(&files).unwrap()
    }
}

/// One connection up to the end of one message in both directions, with the result on each side.
pub(crate) async fn handshake(
    server: &Server,
    client: &TlsClient,
    host: &str,
) -> (Result<(), String>, Result<(), String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let (stream, _) = listener.accept().await?;
        let mut stream = match server.accept(stream).await {
            Ok(stream) => stream,
            Err((error, mut stream)) => {
                let mut rest = Vec::new();
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut rest).await;
                return Err(error);
            }
        };
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        stream.write_all(&byte).await?;
        stream.flush().await
    };
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        let mut stream = client.connect(host, stream).await?;
        stream.write_all(&[7]).await?;
        stream.flush().await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await.map(drop)
    };
    let said = |ended: io::Result<()>| {
        ended.map_err(|error| explain(&error).unwrap_or(format!("not TLS: {error}")))
    };
    let (served, connected) = tokio::join!(serve, connect);
    (said(served), said(connected))
}
