//! `cargo run --release -- serve` in one terminal, any S3 with an empty bucket, and then:
//!
//! ```text
//! S3_URL=http://127.0.0.1:9000 S3_BUCKET=manifests AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… \
//!     cargo run --release -p manifest-primary
//! ```

use manifest_primary::{Failure, Location, Mode, PrimaryConfig, run, serve};

const KEYS: &str = "the credentials for the S3 server";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] => scenario().await,
        [
            "primary",
            authority,
            s3,
            bucket,
            folder,
            mode,
            entries,
            freezes_at,
        ] => {
            let config = PrimaryConfig {
                authority: (*authority).to_owned(),
                location: Location {
                    s3: (*s3).to_owned(),
                    bucket: (*bucket).to_owned(),
                    folder: (*folder).to_owned(),
                    key_id: set("AWS_ACCESS_KEY_ID", KEYS)?,
                    secret: set("AWS_SECRET_ACCESS_KEY", KEYS)?,
                },
                mode: Mode::named(mode).ok_or("the mode must be fenced or unfenced")?,
                entries: entries.split(',').map(str::to_owned).collect(),
                freezes_at: (!freezes_at.is_empty()).then(|| (*freezes_at).to_owned()),
            };
            serve(&config).await
        }
        _ => {
            Err("run this without arguments; they are only for the processes that it starts".into())
        }
    }
}

async fn scenario() -> Result<(), Failure> {
    let authority = std::env::var("PALISADE_AUTHORITY");
    let authority = authority.unwrap_or_else(|_| "http://127.0.0.1:7420".to_owned());
    let s3 = set(
        "S3_URL",
        "an S3 endpoint, for example http://127.0.0.1:9000",
    )?;
    let bucket = set("S3_BUCKET", "an S3 bucket for the test data")?;
    for (mode, title) in [
        (
            Mode::Unfenced,
            "A lock, a check of the lease, and a plain put",
        ),
        (Mode::Fenced, "The same with a fence"),
    ] {
        println!("{title}");
        // A separate folder: another lock server would begin with lower tokens.
        let location = Location {
            s3: s3.clone(),
            bucket: bucket.clone(),
            folder: format!("{}-{}", mode.as_str(), std::process::id()),
            key_id: set("AWS_ACCESS_KEY_ID", KEYS)?,
            secret: set("AWS_SECRET_ACCESS_KEY", KEYS)?,
        };
        let program = std::env::current_exe()?;
        let log = |line| println!("  {line}");
        let outcome = run(&program, &authority, &location, mode, log).await?;
        println!("  In the manifest: {}.", outcome.manifest.join(", "));
        println!("  Acknowledged and lost: {:?}.\n", outcome.lost());
    }
    Ok(())
}

fn set(name: &str, what: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("set {name} to {what}"))
}
