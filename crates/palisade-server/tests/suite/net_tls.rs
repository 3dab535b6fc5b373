//! Handshakes: bounded in time and in number; a client without TLS gets an error that says so.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::time::{Duration, SystemTime};

use palisade_server::net;
use palisade_server::shell::{self, Settings};
use palisade_tls::issue::{CertificateAuthority, Validity};
use palisade_tls::{ClientFiles, ServerFiles, Stream, TlsClient};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::net_support::{Server, Wish, soon};

/// Certificates in a folder, and the settings that name them.
struct Certificates {
    _dir: TempDir,
    settings: Settings,
    client: TlsClient,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a certificate is valid by the wall clock"
)]
fn certificates(handshakes: u32, limit: Duration) -> Certificates {
    let dir = tempfile::tempdir().unwrap();
    let validity = Validity::days(SystemTime::now(), 1);
    let (ca, root) = CertificateAuthority::make(validity).unwrap();
    let issued = ca.issue(&["t"], validity).unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("ca"), root.certificate).unwrap();
    std::fs::write(path("certificate"), issued.certificate).unwrap();
    std::fs::write(path("key"), issued.key).unwrap();
    let client = TlsClient::new(&ClientFiles {
        ca: Some(path("ca")),
        own: None,
    });
    let settings = Settings {
        tls: Some(ServerFiles {
            certificate: path("certificate"),
            key: path("key"),
            client_ca: None,
            client_crl: None,
            certificate_optional: false,
        }),
        handshakes,
        handshake_timeout: limit,
        ..Settings::default()
    };
    Certificates {
        _dir: dir,
        settings,
        client: client.unwrap(),
    }
}

impl Certificates {
    async fn server(&self) -> Server {
        Server::with(Wish::shell(self.settings.clone())).await
    }

    async fn connect(&self, server: &Server) -> Stream<TcpStream> {
        let stream = TcpStream::connect(server.addr).await.unwrap();
        self.client.connect("t", stream).await.unwrap()
    }

    async fn healthy(&self, server: &Server) -> bool {
        let mut stream = self.connect(server).await;
        let request = b"GET /healthz HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.starts_with("HTTP/1.1 200")
    }
}

const LONG: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_handshake_that_stalls_is_cut_and_delays_nobody_else() {
    let certificates = certificates(64, Duration::from_millis(300));
    let server = certificates.server().await;
    // One says nothing, one says that it speaks TLS and no more.
    let mut silent = TcpStream::connect(server.addr).await.unwrap();
    let mut half = TcpStream::connect(server.addr).await.unwrap();
    half.write_all(&[palisade_tls::FIRST_BYTE]).await.unwrap();
    assert!(soon(certificates.healthy(&server)).await);
    for stalled in [&mut silent, &mut half] {
        // Cut by the server: the end of the stream, or a reset because of unread bytes.
        let mut byte = [0];
        let read = soon(stalled.read(&mut byte)).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
}

#[tokio::test]
async fn an_address_waits_for_its_turn_when_it_has_too_many_handshakes() {
    // Two at once, and one for each address.
    let certificates = certificates(2, LONG);
    let server = certificates.server().await;
    let mut half = TcpStream::connect(server.addr).await.unwrap();
    half.write_all(&[palisade_tls::FIRST_BYTE]).await.unwrap();
    // The first to connect may not be the first to be served: until it is, others get through.
    let beside = certificates.server().await;
    let waits = || async {
        // The control: in this time a server where nobody stalls serves five times.
        let meanwhile = async {
            for _ in 0..5 {
                assert!(certificates.healthy(&beside).await);
            }
        };
        tokio::select! {
            _ = certificates.healthy(&server) => false,
            () = meanwhile => true,
        }
    };
    soon(async { while !waits().await {} }).await;
    drop(half);
    assert!(soon(certificates.healthy(&server)).await, "it left");
}

#[tokio::test]
async fn a_session_without_tls_is_refused_in_its_own_form() {
    let certificates = certificates(64, LONG);
    let server = certificates.server().await;
    let mut session = TcpStream::connect(server.addr).await.unwrap();
    session
        .write_all(&palisade_proto::frames::PREFACE)
        .await
        .unwrap();
    session.shutdown().await.unwrap();
    let mut answer = Vec::new();
    soon(session.read_to_end(&mut answer)).await.unwrap();
    let frame = palisade_proto::frames::first(&answer, 1 << 16)
        .unwrap()
        .unwrap();
    let replies = <palisade_proto::v1::Replies as prost::Message>::decode(frame).unwrap();
    let said = format!("{:?}", replies.replies);
    assert!(said.contains("this port speaks TLS only"), "{said}");
}

#[tokio::test]
async fn sessions_inside_tls_answer_and_stay_off_the_pipelines_thread() {
    let certificates = certificates(64, LONG);
    let server = certificates.server().await;
    let mut session = certificates.connect(&server).await;
    let mut opening = palisade_proto::frames::PREFACE.to_vec();
    palisade_proto::frames::put_empty(&mut opening);
    session.write_all(&opening).await.unwrap();
    session.flush().await.unwrap();
    // An empty frame is answered by an empty frame.
    let mut answer = [1; palisade_proto::frames::HEADER];
    soon(session.read_exact(&mut answer)).await.unwrap();
    assert_eq!(answer, [0; palisade_proto::frames::HEADER]);
}

#[tokio::test]
async fn a_server_with_unusable_certificates_does_not_start() {
    let mut certificates = certificates(64, LONG);
    certificates.settings.tls.as_mut().unwrap().key = "/nowhere".into();
    let error = shell::Shell::new(certificates.settings.clone()).unwrap_err();
    assert!(error.to_string().contains("/nowhere"), "{error}");
    certificates.settings.handshakes = 0;
    let settings = net::Settings {
        shell: certificates.settings,
        ..net::Settings::default()
    };
    let error = settings.shell.check().unwrap_err();
    assert_eq!(error.to_string(), "handshakes is outside 1 ..= 1000000");
}
