//! Which clients are let in, and the messages of both sides when a handshake fails.

use std::sync::Arc;

use palisade_tls::{ClientFiles, Server, ServerFiles, TlsClient};
use rustls::HandshakeKind;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Folder, ahead, handshake, over, valid};

#[tokio::test]
async fn a_certificate_of_the_trusted_ca_is_accepted_by_its_names() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    for (file, name, host) in [
        ("name", "locks.test", "locks.test"),
        ("v4", "127.0.0.1", "127.0.0.1"),
        ("v6", "::1", "[::1]"),
    ] {
        folder.issue(&ca, file, name, valid());
        let (server, client) = (folder.server(file, None), folder.client("ca", None));
        assert_eq!(
            handshake(&server, &client, host).await,
            (Ok(()), Ok(())),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_server_that_does_not_prove_its_name_is_refused_with_the_reason() {
    let folder = Folder::new();
    let (ca, other) = (folder.ca("ca"), folder.ca("other"));
    folder.issue(&ca, "right", "locks.test", valid());
    folder.issue(&ca, "expired", "locks.test", over());
    folder.issue(&ca, "early", "locks.test", ahead());
    folder.issue(&ca, "renamed", "evil.test", valid());
    folder.issue(&other, "stranger", "locks.test", valid());
    for (own, expected) in [
        ("expired", "expired 60 minutes ago"),
        ("early", "not valid for another"),
        ("renamed", "\"evil.test\""),
        ("renamed", "not for locks.test"),
        (
            "stranger",
            "CA that is not trusted here; name the right CA with --ca-file",
        ),
    ] {
        let server = folder.server(own, None);
        let (served, connected) =
            handshake(&server, &folder.client("ca", None), "locks.test").await;
        let said = connected.unwrap_err();
        assert!(said.contains(expected), "{own}: {said}");
        assert!(served.is_err(), "{own}");
    }
    // Control: the same client and name, with the right certificate.
    let right = folder.server("right", None);
    let let_in = handshake(&right, &folder.client("ca", None), "locks.test").await;
    assert_eq!(let_in, (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_client_that_does_not_prove_who_it_is_is_refused_and_both_sides_say_why() {
    let folder = Folder::new();
    let (ca, other) = (folder.ca("ca"), folder.ca("other"));
    folder.issue(&ca, "server", "locks.test", valid());
    folder.issue(&ca, "right", "spiffe://home/backup", valid());
    folder.issue(&ca, "expired", "spiffe://home/backup", over());
    folder.issue(&ca, "early", "spiffe://home/backup", ahead());
    folder.issue(&other, "stranger", "spiffe://home/backup", valid());
    let server = folder.server("server", Some("ca"));
    for (own, client_says, server_says) in [
        (
            None,
            "a client certificate is needed",
            "no client certificate was presented",
        ),
        (Some("expired"), "has expired", "expired 60 minutes ago"),
        (Some("early"), "not valid yet", "not valid for another"),
        (
            Some("stranger"),
            "was refused",
            "CA that is not trusted here",
        ),
    ] {
        let (served, connected) = handshake(&server, &folder.client("ca", own), "locks.test").await;
        let (server_said, client_said) = (served.unwrap_err(), connected.unwrap_err());
        assert!(client_said.contains(client_says), "{own:?}: {client_said}");
        assert!(server_said.contains(server_says), "{own:?}: {server_said}");
    }
    // Controls: the right certificate, and a server that asks for none.
    let right = folder.client("ca", Some("right"));
    assert_eq!(
        handshake(&server, &right, "locks.test").await,
        (Ok(()), Ok(()))
    );
    let open = folder.server("server", None);
    let nobody = folder.client("ca", None);
    assert_eq!(
        handshake(&open, &nobody, "locks.test").await,
        (Ok(()), Ok(()))
    );
}

#[tokio::test]
async fn a_client_says_that_a_server_has_no_tls() {
    let folder = Folder::new();
    folder.ca("ca");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        stream
    };
    let connect = async {
        let stream = TcpStream::connect(address).await.unwrap();
        folder
            .client("ca", None)
            .connect("localhost", stream)
            .await
            .unwrap_err()
    };
    let (_stream, error) = tokio::join!(serve, connect);
    let said = palisade_tls::explain(&error).unwrap();
    assert!(
        said.contains("does not speak TLS") && said.contains("http://"),
        "{said}"
    );
}

/// A client of its own, which would resume a session if the server let it.
#[tokio::test]
async fn a_session_is_never_resumed_because_a_resumed_one_shows_no_certificate() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    folder.issue(&ca, "right", "spiffe://home/backup", valid());
    let server = folder.server("server", Some("ca"));
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(folder.path("ca.pem")).unwrap())
        .unwrap();
    let own = CertificateDer::from_pem_file(folder.path("right.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.path("right.key")).unwrap();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(vec![own.clone()], key.clone_key())
            .unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        for _ in 0..2 {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serve = async {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = server.accept(stream).await.unwrap();
                stream.write_all(&[7]).await.unwrap();
                stream.shutdown().await.unwrap();
            };
            let connect = async {
                let stream = TcpStream::connect(address).await.unwrap();
                let name = ServerName::try_from("locks.test").unwrap();
                let mut stream = connector.connect(name, stream).await.unwrap();
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).await.unwrap();
                stream.get_ref().1.handshake_kind()
            };
            let ((), kind) = tokio::join!(serve, connect);
            assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
        }
    }
}

#[test]
fn files_that_cannot_be_used_are_named_and_a_key_is_never_shown() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "one", "one.test", valid());
    folder.issue(&ca, "two", "two.test", valid());
    std::fs::write(folder.path("empty.pem"), "").unwrap();
    std::fs::write(
        folder.path("half.key"),
        "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n",
    )
    .unwrap();
    let server = |certificate: &str, key: &str, client_ca: Option<&str>| {
        let files = ServerFiles {
            certificate: folder.path(certificate),
            key: folder.path(key),
            client_ca: client_ca.map(|ca| folder.path(ca)),
            client_crl: None,
            certificate_optional: false,
        };
        Server::new(files, true).unwrap_err().to_string()
    };
    let secret = std::fs::read_to_string(folder.path("two.key")).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    for (said, expected) in [
        (server("none.pem", "one.key", None), "cannot read"),
        (server("empty.pem", "one.key", None), "no certificate in it"),
        (server("one.pem", "one.pem", None), "no private key in it"),
        (server("one.pem", "half.key", None), "no private key in it"),
        (
            server("one.pem", "two.key", None),
            "the key is not that of the certificate",
        ),
        (
            server("one.pem", "one.key", Some("empty.pem")),
            "no certificate in it",
        ),
    ] {
        assert!(said.contains(expected) && !said.contains(secret), "{said}");
        assert!(said.contains(".pem") || said.contains(".key"), "{said}");
    }
    let files = ClientFiles {
        ca: Some(folder.path("empty.pem")),
        own: None,
    };
    let said = TlsClient::new(&files).unwrap_err().to_string();
    assert!(said.contains("empty.pem"), "{said}");
}

#[test]
fn a_name_that_no_certificate_can_have_is_refused() {
    let ca = Folder::new().ca("ca");
    for name in ["", "two words", "http://host", "höst"] {
        let said = ca.issue(&[name], valid()).unwrap_err().to_string();
        assert!(
            said.contains("no name for a certificate"),
            "{name:?}: {said}"
        );
    }
}
