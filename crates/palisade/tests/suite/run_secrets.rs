//! `palisade run` keeps passwords to itself: no job, message or log gets one.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;

use crate::common::{Server, palisade, status, text};
use palisade_testbed::{Postgres, Redis};

const SECRET: &str = "sesame";

/// `palisade run job -- env` under the authority at `url`, with the most verbose log.
fn job(url: &str) -> Output {
    let mut command = palisade();
    command.args(["run", "job", "-n", "-vv", "--json", "--", "env"]);
    command.env("PALISADE_AUTHORITY", url);
    // Our variables that carry a secret; the job must get none of them.
    command.env("PALISADE_PASSWORD", SECRET);
    command.env("PALISADE_FENCE_URL", format!("redis://:{SECRET}@host"));
    command.env("PALISADE_LOCK_TOKEN", SECRET);
    command.env("PALISADE_LOG", "trace");
    command.output().unwrap()
}

fn variable(output: &Output, name: &str) -> Option<String> {
    let text = text(&output.stdout);
    let mut lines = text.lines();
    lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

fn keeps_the_secret(output: &Output) {
    let (said, logged) = (text(&output.stdout), text(&output.stderr));
    assert!(!said.contains(SECRET), "{said}");
    assert!(!logged.contains(SECRET), "{logged}");
}

fn runs(url: &str, passed_as: &str) {
    let output = job(url);
    assert_eq!(status(&output), 0, "{url}: {}", text(&output.stderr));
    keeps_the_secret(&output);
    assert_eq!(variable(&output, "PALISADE_AUTHORITY").unwrap(), passed_as);
    assert_eq!(variable(&output, "PALISADE_LOCK").unwrap(), "job");
    assert_eq!(variable(&output, "PALISADE_LOG").unwrap(), "trace");
}

#[test]
fn a_palisade_servers_address_is_passed_on_as_it_is() {
    let server = Server::start();
    runs(&server.url, &server.url);
}

#[test]
fn the_password_of_a_redis_url_stays_with_palisade() {
    let redis = Redis::start(&[]);
    let place = redis.url().strip_prefix("redis://").unwrap().to_owned();
    let mut stream = TcpStream::connect(place.split('/').next().unwrap()).unwrap();
    let user = format!("ACL SETUSER app on >{SECRET} ~* &* +@all\r\n");
    stream.write_all(user.as_bytes()).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
    runs(
        &format!("redis://app:{SECRET}@{place}"),
        &format!("redis://app@{place}"),
    );
    // Control: the password was needed.
    let output = job(&format!("redis://app:{SECRET}-not@{place}"));
    assert_eq!(status(&output), 125);
    keeps_the_secret(&output);
}

#[test]
fn the_password_of_a_postgres_url_stays_with_palisade() {
    let postgres = Postgres::start(&[]);
    let url = postgres.url();
    let (start, place) = url.rsplit_once('@').unwrap();
    runs(&format!("{start}:{SECRET}@{place}"), &url);
    runs(&format!("{url}?password={SECRET}"), &url);
    runs(
        &format!("{url}?password={SECRET}&application_name=job"),
        &format!("{url}?application_name=job"),
    );
}

#[test]
fn an_invalid_address_is_refused_without_printing_its_secret() {
    for url in [
        "http://u:sesame@127.0.0.1:1",
        "http://127.0.0.1:1/?password=sesame",
        "palisade://u:sesame@127.0.0.1",
        "etcd://u:sesame@127.0.0.1",
        "etcd://127.0.0.1:x/root?password=sesame",
        "zookeeper://u:sesame@127.0.0.1",
        "zookeeper://127.0.0.1:x/root?password=sesame",
        "redis://:sesame@127.0.0.1:1",
        "redis://:ab?sesame@127.0.0.1:1",
        "redis://:sesame@127.0.0.1:x",
        "redlock://u:sesame@127.0.0.1",
        "postgres://u:sesame@127.0.0.1:x/db",
        "postgres://127.0.0.1:1/db?password=sesame&nonsense=1",
        "postgres://u:sesame@127.0.0.1:1/db",
        "nonsense://u:sesame@127.0.0.1",
        "u:sesame@127.0.0.1",
    ] {
        let output = job(url);
        assert_eq!(status(&output), 125, "{url}");
        keeps_the_secret(&output);
    }
}
