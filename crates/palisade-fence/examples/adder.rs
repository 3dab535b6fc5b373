//! A holder in Rust for tests with holders in other languages (`clients/python/tests/test_mixed.py`): it reads and writes
//! one number, in two steps, under a fence or without one.
//!
//! ```text
//!   adder postgres|mysql|redis|files URL RESOURCE fenced|unfenced      then lines: "read TOKEN", "write TOKEN NUMBER"
//!   answers: the number, "written", or "rejected CODE"
//! ```
//!
//! `mysql` is MariaDB, too. For `files` the URL is a folder, which has a folder for each resource.

use std::io::{self, BufRead as _, Write as _};

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, TxOpts};
use palisade_core::Token;
use palisade_fence::files::Folder;
use palisade_fence::{Edit, Write, mysql, postgres, redis as fence, rejection};
use tokio_postgres::NoTls;

type AnyError = Box<dyn std::error::Error>;
type Answer = Result<String, AnyError>;

/// The program's arguments.
struct Adder {
    url: String,
    resource: String,
    fenced: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), AnyError> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let [store, url, resource, arm] = given.as_slice() else {
        return Err("usage: adder postgres|mysql|redis|files URL RESOURCE fenced|unfenced".into());
    };
    let adder = Adder {
        url: url.clone(),
        resource: resource.clone(),
        fenced: arm == "fenced",
    };
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ').skip(1);
        let token = Token::new(words.next().ok_or("a token is missing")?.parse()?)?;
        let number = words.next().map(str::parse).transpose()?;
        let answer = match store.as_str() {
            "postgres" => adder.postgres(token, number).await,
            "mysql" | "mariadb" => adder.mysql(token, number).await,
            "files" => adder.files(token, number),
            _ => adder.redis(token, number).await,
        };
        println!("{}", answer.or_else(rejected)?);
        io::stdout().flush()?;
    }
    Ok(())
}

/// The answer to a stale holder.
fn rejected(error: AnyError) -> Answer {
    match rejection(&*error) {
        Some(reject) => Ok(format!("rejected {}", reject.code())),
        None => Err(error),
    }
}

impl Adder {
    /// One transaction: the claim first, then the read or the write.
    async fn postgres(&self, token: Token, number: Option<i64>) -> Answer {
        let (mut client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
        let connection = tokio::spawn(connection);
        let mut tx = client.transaction().await?;
        if self.fenced {
            postgres::claim(&mut tx, &self.resource, token).await?;
        }
        let name = &self.resource;
        let answer = match number {
            None => {
                let row = tx
                    .query_one("SELECT total FROM totals WHERE name = $1", &[name])
                    .await?;
                row.get::<_, i64>(0).to_string()
            }
            Some(number) => {
                tx.execute(
                    "UPDATE totals SET total = $2 WHERE name = $1",
                    &[name, &number],
                )
                .await?;
                "written".to_owned()
            }
        };
        tx.commit().await?;
        connection.abort();
        Ok(answer)
    }

    async fn mysql(&self, token: Token, number: Option<i64>) -> Answer {
        let mut connection = Conn::new(Opts::from_url(&self.url)?).await?;
        let mut tx = connection.start_transaction(TxOpts::default()).await?;
        if self.fenced {
            mysql::claim(&mut tx, &self.resource, token).await?;
        }
        let name = &self.resource;
        let answer = match number {
            None => {
                let sql = "SELECT total FROM totals WHERE name = ?";
                let total: Option<i64> = tx.exec_first(sql, (name,)).await?;
                total.ok_or("the number is missing")?.to_string()
            }
            Some(number) => {
                let sql = "UPDATE totals SET total = ? WHERE name = ?";
                tx.exec_drop(sql, (number, name)).await?;
                "written".to_owned()
            }
        };
        tx.commit().await?;
        connection.disconnect().await?;
        Ok(answer)
    }

    /// A read claims first.
    fn files(&self, token: Token, number: Option<i64>) -> Answer {
        let path = std::path::Path::new(&self.url).join(&self.resource);
        if !self.fenced {
            let file = path.join("total");
            return Ok(match number {
                None => std::fs::read_to_string(file)?,
                Some(number) => {
                    let new = path.join(format!("new-{}", std::process::id()));
                    std::fs::write(&new, number.to_string())?;
                    std::fs::rename(new, file)?;
                    "written".to_owned()
                }
            });
        }
        let folder = Folder::open(path)?;
        let Some(number) = number else {
            folder.claim(token)?;
            let read = folder.read(token, "/total")?.value;
            return Ok(String::from_utf8(read.unwrap_or_else(|| b"0".to_vec()))?);
        };
        let number = number.to_string();
        folder.write(token, Write::new("/total", Edit::Put(number.as_bytes())))?;
        Ok("written".to_owned())
    }

    /// A read claims, too.
    async fn redis(&self, token: Token, number: Option<i64>) -> Answer {
        let client = redis::Client::open(self.url.as_str())?;
        let mut con = client.get_multiplexed_async_connection().await?;
        let resource = fence::Resource::new(&self.resource)?;
        let key = resource.key("total");
        match (number, self.fenced) {
            (None, false) => Ok(redis::cmd("GET").arg(&key).query_async(&mut con).await?),
            (Some(number), false) => {
                let mut set = redis::cmd("SET");
                set.arg(&key).arg(number).exec_async(&mut con).await?;
                Ok("written".to_owned())
            }
            (None, true) => {
                let read = resource.get(&mut con, token, &key).await?.value;
                Ok(String::from_utf8(read.unwrap_or_else(|| b"0".to_vec()))?)
            }
            (Some(number), true) => {
                let number = number.to_string();
                let writing = resource.write(token);
                writing.set(&mut con, &key, number.as_bytes()).await?;
                Ok("written".to_owned())
            }
        }
    }
}
