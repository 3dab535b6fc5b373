//! Measures the cost of `palisade gateway`: it sends the same requests alternately to a service and to a gateway in
//! front of it.
//!
//! ```text
//! cargo build --release -p palisade && cargo run --release -p palisade --example gateway_cost [ROUNDS]
//! ```
//!
//! One caller sends one request at a time on loopback. The gateway is a separate process with its marks on the disk
//! of the temporary folder (`TMPDIR`). The output has the median and the 99th percentile in microseconds, and the
//! difference between the medians with and without a gateway.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use hdrhistogram::Histogram;
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use palisade_client::clock::{BootClock, Clock as _};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One kind of request, with its figures.
struct Arm {
    name: &'static str,
    method: &'static str,
    through: bool,
    token: Token,
    taken: Histogram<u64>,
}

#[derive(Clone, Copy)]
enum Token {
    None,
    /// The resource's current token.
    Same,
    /// A higher token every time.
    New,
}

fn arm(name: &'static str, method: &'static str, through: bool, token: Token) -> Result<Arm> {
    let taken = Histogram::new(3)?;
    Ok(Arm {
        name,
        method,
        through,
        token,
        taken,
    })
}

struct Gateway(Child);

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn gateway(upstream: &str, dir: &std::path::Path) -> Result<(Gateway, String)> {
    let here = std::env::current_exe()?;
    let built = here.parent().and_then(|examples| examples.parent());
    let binary = built
        .ok_or("the executable has no parent folder")?
        .join("palisade");
    let mut command = Command::new(&binary);
    command
        .args(["gateway", "--json", "--listen", "127.0.0.1:0"])
        .args(["--admin", "127.0.0.1:0", "--upstream", upstream])
        .args(["--route", "/{id}={id}", "--data"])
        .arg(dir)
        .stdout(Stdio::piped());
    let started = command.spawn();
    let child = started.map_err(|error| {
        format!("{error}; build the program first: cargo build --release -p palisade")
    })?;
    let mut gateway = Gateway(child);
    let mut line = String::new();
    let out = gateway.0.stdout.take().ok_or("no output")?;
    BufReader::new(out).read_line(&mut line)?;
    let line: serde_json::Value = serde_json::from_str(&line)?;
    let url = line["url"].as_str().ok_or("no url")?.to_owned();
    Ok((gateway, url))
}

/// A service on its own thread.
fn upstream() -> Result<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let url = format!("http://{}", listener.local_addr()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let router = Router::new().route("/{id}", get(|| async { "value" }).put(|| async {}));
            axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await
        })
    });
    Ok(url)
}

async fn once(
    client: &Client<HttpConnector, Body>,
    arm: &Arm,
    base: &str,
    round: u64,
) -> Result<u64> {
    let (id, token) = match arm.token {
        Token::None => ("plain", None),
        Token::Same => ("same", Some(1)),
        Token::New => ("new", Some(round + 1)),
    };
    let mut request = Request::builder()
        .method(arm.method)
        .uri(format!("{base}/{id}"));
    if let Some(token) = token {
        request = request.header("x-fencing-token", token);
    }
    let request = request.body(Body::empty())?;
    let before = BootClock.now();
    let response = client.request(request).await?;
    let status = response.status();
    response.into_body().collect().await?;
    let taken = BootClock.now().since(before).as_nanos();
    if status.is_success() {
        Ok(taken)
    } else {
        Err(format!("{}: {status}", arm.name).into())
    }
}

fn main() -> Result<()> {
    let rounds = std::env::args().nth(1).map(|text| text.parse());
    let rounds: u64 = rounds.transpose()?.unwrap_or(5_000);
    let dir = tempfile::tempdir()?;
    let direct = upstream()?;
    let (_gateway, fenced) = gateway(&direct, dir.path())?;
    let mut arms = [
        arm("GET straight", "GET", false, Token::None)?,
        arm("GET without a token", "GET", true, Token::None)?,
        arm("GET with a token", "GET", true, Token::Same)?,
        arm("PUT straight", "PUT", false, Token::None)?,
        arm("PUT, same token", "PUT", true, Token::Same)?,
        arm("PUT, first of a new token", "PUT", true, Token::New)?,
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let warm = rounds / 10 + 1;
        for round in 0..warm + rounds {
            for arm in &mut arms {
                let base = if arm.through { &fenced } else { &direct };
                let taken = once(&client, arm, base, round).await?;
                if round >= warm {
                    arm.taken.record(taken)?;
                }
            }
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{rounds} rounds, one caller; microseconds")?;
    let mut straight = 0.0;
    for arm in &arms {
        let at = |quantile| arm.taken.value_at_quantile(quantile) as f64 / 1_000.0;
        let (name, p50, p99) = (arm.name, at(0.5), at(0.99));
        if !arm.through {
            straight = p50;
        }
        let more = p50 - straight;
        writeln!(
            out,
            "{name:<28} p50 {p50:8.1}   p99 {p99:8.1}   adds {more:8.1}"
        )?;
    }
    Ok(())
}
