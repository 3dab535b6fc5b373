//! New certificates while a port serves.

use std::fs;
use std::time::SystemTime;

use palisade_tls::Reloaded;
use palisade_tls::issue::{CertificateAuthority, Validity};

use crate::support::{Folder, ahead, handshake, over, valid};

#[tokio::test]
async fn a_rotated_ca_revokes_the_certificates_of_the_old_one() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    folder.issue(&ca, "old", "spiffe://home/backup", valid());
    let server = folder.server("server", Some("ca"));
    // A client reads its files again for each connection; this one keeps to the first CA.
    fs::copy(folder.path("ca.pem"), folder.path("first.pem")).unwrap();
    let old = folder.client("first", Some("old"));
    assert_eq!(
        handshake(&server, &old, "locks.test").await,
        (Ok(()), Ok(()))
    );

    let next = folder.ca("ca");
    folder.issue(&next, "server", "locks.test", valid());
    folder.issue(&next, "new", "spiffe://home/backup", valid());
    // Control: without a reload the old certificate is still let in.
    assert_eq!(
        handshake(&server, &old, "locks.test").await,
        (Ok(()), Ok(()))
    );
    assert_eq!(server.reload().unwrap(), Reloaded::Taken);
    assert_eq!(server.reload().unwrap(), Reloaded::Unchanged);
    let (served, connected) = handshake(&server, &old, "locks.test").await;
    assert!(served.is_err() && connected.unwrap_err().contains("not trusted here"));
    // A client that trusts the new CA and still has the old certificate.
    folder.issue(&ca, "old", "spiffe://home/backup", valid());
    let (served, connected) =
        handshake(&server, &folder.client("ca", Some("old")), "locks.test").await;
    assert!(served.unwrap_err().contains("not trusted here"));
    assert!(connected.unwrap_err().contains("was refused"));
    let new = folder.client("ca", Some("new"));
    assert_eq!(
        handshake(&server, &new, "locks.test").await,
        (Ok(()), Ok(()))
    );
}

#[tokio::test]
async fn a_bad_new_file_is_refused_and_the_old_certificate_stays() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    let server = folder.server("server", None);
    let client = folder.client("ca", None);
    let good = fs::read(folder.path("server.key")).unwrap();
    for bad in ["nonsense", ""] {
        fs::write(folder.path("server.key"), bad).unwrap();
        let said = server.reload().unwrap_err().to_string();
        assert!(said.contains("server.key"), "{said}");
        assert!(
            server.reload().is_err(),
            "a refused file is refused again when it is asked for again"
        );
        assert_eq!(
            handshake(&server, &client, "locks.test").await,
            (Ok(()), Ok(()))
        );
    }
    fs::remove_file(folder.path("server.key")).unwrap();
    assert!(
        server
            .reload()
            .unwrap_err()
            .to_string()
            .contains("cannot read")
    );
    fs::write(folder.path("server.key"), good).unwrap();
    assert_eq!(server.reload().unwrap(), Reloaded::Unchanged);
}

#[tokio::test]
async fn a_changed_pair_is_taken_when_it_is_complete_and_a_bad_one_is_reported_once() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    let server = folder.server("server", None);
    let looks = || server.reload_if_changed();
    assert_eq!(looks().unwrap(), Reloaded::Unchanged);

    folder.issue(&ca, "next", "next.test", valid());
    // Between the two files they do not belong together; one look falls into that moment.
    fs::copy(folder.path("next.key"), folder.path("server.key")).unwrap();
    assert_eq!(looks().unwrap(), Reloaded::Unchanged);
    fs::copy(folder.path("next.pem"), folder.path("server.pem")).unwrap();
    assert_eq!(looks().unwrap(), Reloaded::Unchanged);
    assert_eq!(looks().unwrap(), Reloaded::Taken);
    let client = folder.client("ca", None);
    assert_eq!(
        handshake(&server, &client, "next.test").await,
        (Ok(()), Ok(()))
    );

    fs::write(folder.path("server.pem"), "nonsense").unwrap();
    assert_eq!(looks().unwrap(), Reloaded::Unchanged);
    assert!(looks().is_err());
    assert_eq!(looks().unwrap(), Reloaded::Unchanged, "once");
    assert_eq!(
        handshake(&server, &client, "next.test").await,
        (Ok(()), Ok(()))
    );
    fs::copy(folder.path("next.pem"), folder.path("server.pem")).unwrap();
    assert_eq!(looks().unwrap(), Reloaded::Unchanged);
    fs::write(folder.path("server.pem"), "nonsense").unwrap();
    looks().unwrap();
    assert!(looks().is_err(), "a new change is reported again");
}

#[tokio::test]
async fn a_client_presents_the_certificate_that_is_in_its_files_now() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    folder.issue(&ca, "client", "spiffe://home/backup", over());
    let server = folder.server("server", Some("ca"));
    let client = folder.client("ca", Some("client"));
    // Control: the certificate that it was made with is over.
    let (served, _) = handshake(&server, &client, "locks.test").await;
    assert!(served.unwrap_err().contains("expired"));

    folder.issue(&ca, "client", "spiffe://home/backup", valid());
    for client in [client.clone(), client.http2()] {
        let said = handshake(&server, &client, "locks.test").await;
        assert_eq!(said, (Ok(()), Ok(())));
    }
    // After the certificate is written and before its key is, the old ones stay in force.
    let other = ca.issue(&["spiffe://home/backup"], valid()).unwrap();
    for half in ["", &other.key] {
        fs::write(folder.path("client.key"), half).unwrap();
        let said = handshake(&server, &client, "locks.test").await;
        assert_eq!(said, (Ok(()), Ok(())));
    }
    folder.issue(&ca, "client", "spiffe://home/backup", valid());
    // A new CA of the servers is trusted without a restart, and the old one no longer.
    let next = folder.ca("ca");
    let (_, connected) = handshake(&server, &client, "locks.test").await;
    assert!(connected.unwrap_err().contains("not trusted here"));
    folder.issue(&next, "server", "locks.test", valid());
    folder.issue(&next, "client", "spiffe://home/backup", valid());
    server.reload().unwrap();
    let said = handshake(&server, &client, "locks.test").await;
    assert_eq!(said, (Ok(()), Ok(())));
}

#[tokio::test]
async fn a_certificate_on_the_list_of_its_ca_is_refused_from_the_reload_on() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    folder.issue(&ca, "stays", "spiffe://home/backup", valid());
    let lost = ca.issue(&["spiffe://home/laptop"], valid()).unwrap();
    folder.put("lost", &lost);
    let list = |revoked: &[&str]| {
        let list = ca.revoke(revoked, valid()).unwrap();
        fs::write(folder.path("ca.crl"), list).unwrap();
    };
    list(&[]);
    let server = folder.server_with_list("server", "ca", "ca.crl");
    let [stays, lost_client] = ["stays", "lost"].map(|own| folder.client("ca", Some(own)));
    // Control: nobody is on the list yet.
    for client in [&stays, &lost_client] {
        let said = handshake(&server, client, "locks.test").await;
        assert_eq!(said, (Ok(()), Ok(())));
    }
    list(&[&lost.certificate]);
    assert_eq!(server.reload().unwrap(), Reloaded::Taken);
    let (served, connected) = handshake(&server, &lost_client, "locks.test").await;
    let said = served.unwrap_err();
    assert!(said.contains("revoked"), "{said}");
    assert!(connected.is_err());
    let said = handshake(&server, &stays, "locks.test").await;
    assert_eq!(said, (Ok(()), Ok(())));
    // A file without a list is refused, and the old list stays in force.
    fs::write(folder.path("ca.crl"), "nonsense").unwrap();
    let said = server.reload().unwrap_err().to_string();
    assert!(said.contains("ca.crl") && said.contains("CRL"), "{said}");
    assert!(
        handshake(&server, &lost_client, "locks.test")
            .await
            .0
            .is_err()
    );
}

#[test]
fn a_port_says_when_its_certificate_ends() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    let validity = valid();
    folder.issue(&ca, "server", "locks.test", validity);
    let until = validity
        .until
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    assert_eq!(
        folder.server("server", None).ends().certificate,
        Some(until)
    );
}

#[test]
fn a_port_says_when_the_ca_of_its_clients_and_its_list_end() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", valid());
    let seconds = |time: std::time::SystemTime| {
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap();
        Some(since.as_secs())
    };
    let list = |validity: Validity| {
        let list = ca.revoke(&[], validity).unwrap();
        fs::write(folder.path("ca.crl"), list).unwrap();
        seconds(validity.until)
    };
    // A list that should have been replaced counts on, and its end is reported.
    let past = over();
    let due = list(past);
    let server = folder.server_with_list("server", "ca", "ca.crl");
    assert_eq!(server.ends().client_crl, due);
    let until = server.ends().client_ca;
    assert!(until > due, "{until:?}");
    let later = list(valid());
    assert_ne!(due, later);
    assert_eq!(server.reload().unwrap(), Reloaded::Taken);
    assert_eq!(server.ends().client_crl, later);
    // With two CAs, the earlier end is reported.
    let (_, soon) = CertificateAuthority::make(past).unwrap();
    let mut both = fs::read_to_string(folder.path("ca.pem")).unwrap();
    both.push_str(&soon.certificate);
    fs::write(folder.path("ca.pem"), both).unwrap();
    assert_eq!(server.reload().unwrap(), Reloaded::Taken);
    assert_eq!(server.ends().client_ca, seconds(past.until));
    // Without the files there is nothing that ends.
    let plain = folder.server("server", None).ends();
    assert_eq!((plain.client_ca, plain.client_crl), (None, None));
}

#[test]
fn a_certificate_that_is_out_of_date_is_told_with_its_date_and_its_file() {
    let folder = Folder::new();
    let ca = folder.ca("ca");
    folder.issue(&ca, "server", "locks.test", over());
    let server = folder.server("server", None);
    let since = |at: SystemTime| at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let now = since(SystemTime::now());
    let file = folder.path("server.pem").display().to_string();
    let told = server.out_of_date(now).unwrap();
    for part in [&*file, "expired at 2", "palisade auth cert", "clock"] {
        assert!(told.contains(part), "{told}");
    }
    // Control: in its last second it was valid.
    let last = server.ends().certificate.unwrap();
    assert_eq!(server.out_of_date(last), None);
    assert!(server.out_of_date(last + 1).is_some());

    folder.issue(&ca, "server", "locks.test", ahead());
    server.reload().unwrap();
    let told = server.out_of_date(now).unwrap();
    assert!(told.contains("is not valid before 2"), "{told}");
    folder.issue(&ca, "server", "locks.test", valid());
    server.reload().unwrap();
    assert_eq!(server.out_of_date(now), None);
}
