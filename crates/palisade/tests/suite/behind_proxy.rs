//! The program behind a reverse proxy, with nginx's default settings: HTTP passes it, and a session does not.

use std::fs;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::common::{Run, Server, status, text, until};

/// nginx before a server, and its URL.
fn nginx(server: &Server) -> (Run, String) {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = free.local_addr().unwrap();
    drop(free);
    let folder = server.file("nginx");
    fs::create_dir(&folder).unwrap();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {}/{kind};", folder.display()))
        .join("\n");
    let settings = format!(
        "daemon off; pid {0}/pid; error_log {0}/errors; worker_processes 1; events {{}}\n\
         http {{ access_log off; {temporary}\n\
         server {{ listen {at}; location / {{ proxy_pass {1}; }} }} }}",
        folder.display(),
        server.url
    );
    fs::write(folder.join("conf"), settings).unwrap();
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap());
    let child = Command::new("nginx")
        .env("PATH", path)
        .arg("-c")
        .arg(folder.join("conf"))
        .stderr(Stdio::null())
        .spawn()
        .expect("nginx is installed");
    let proxy = Run::keep(child);
    until("nginx", || std::net::TcpStream::connect(at).is_ok());
    (proxy, format!("http://{at}"))
}

#[test]
fn a_client_behind_an_http_proxy_says_what_is_in_between_and_what_to_do() {
    let server = Server::start();
    let (proxy, url) = nginx(&server);
    let show = server
        .palisade(&["show", "job", "--authority", &url])
        .output();
    let show = show.unwrap();
    let said = text(&show.stderr);
    assert_eq!(status(&show), 2, "{said}");
    for part in ["HTTP/1.1 400", "reverse proxy", "mode tcp"] {
        assert!(said.contains(part), "{said}");
    }
    // Control: at the server's own address it works.
    assert_eq!(status(&server.output(&["show", "job"])), 0);
    // The master ends its worker.
    proxy.send(rustix::process::Signal::TERM);
    proxy.end();
}
