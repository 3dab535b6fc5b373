//! A fence that is not one step: GET the mark, compare, SET the mark, SET the data. It must fail.

use palisade_core::Token;
use palisade_fence::{
    Admitted, Edit, Error, Fence, FenceState, Op, Pass, Reject, Result, Rule, Sequence, Verdict,
    Write,
};
use redis::aio::ConnectionManager;
use redis::cmd;

use crate::two_steps::between_check_and_effect;

pub(crate) struct Naive {
    connection: ConnectionManager,
    name: String,
}

impl Naive {
    pub(crate) fn new(connection: ConnectionManager, name: &str) -> Naive {
        Naive {
            connection,
            name: name.to_owned(),
        }
    }

    async fn call(&self, words: &[&[u8]]) -> Result<Option<Vec<u8>>> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        let said: redis::Value = command.query_async(&mut self.connection.clone()).await?;
        Ok(redis::from_redis_value(said).unwrap_or_default())
    }

    fn key(&self, key: &str) -> Vec<u8> {
        format!("{}:{key}", self.name).into_bytes()
    }

    async fn check(&self, pass: Pass<'_>, op: Op) -> Result<Admitted<()>> {
        let mark = self.key("mark");
        let held = self.call(&[b"GET", &mark]).await?;
        let held = held.map(|bytes| String::from_utf8(bytes).unwrap().parse().unwrap());
        let state = held.map_or_else(FenceState::default, |number| {
            FenceState::floor(Token::new(number).unwrap())
        });
        let rule = Rule::CLAIM;
        match rule.decide(&state, Pass::new(pass.token), op) {
            Verdict::Admit(_) => {
                let token = pass.token.to_string();
                self.call(&[b"SET", &mark, token.as_bytes()]).await?;
                Ok(Admitted::new((), Some(pass.token)))
            }
            Verdict::Reject(reject) => Err(Error::Rejected(reject)),
            Verdict::Repeat => unreachable!("it keeps no numbers"),
        }
    }
}

impl Fence for Naive {
    async fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.check(pass, Op::Claim).await
    }

    async fn read(&self, pass: Pass<'_>, key: &str) -> Result<Admitted<Option<Vec<u8>>>> {
        self.check(pass, Op::Read).await?;
        let value = self.observe(key).await?;
        Ok(Admitted::new(value, Some(pass.token)))
    }

    async fn write(&self, pass: Pass<'_>, write: Write<'_>) -> Result<Admitted<()>> {
        let op = Op::Write(None::<Sequence>);
        let admitted = self.check(pass, op).await?;
        between_check_and_effect().await;
        let key = self.key(write.key);
        let done = match write.change {
            Edit::Put(bytes) => self.call(&[b"SET", &key, bytes]).await?,
            Edit::Append(bytes) => self.call(&[b"APPEND", &key, bytes]).await?,
            Edit::Delete => {
                if self.observe(write.key).await?.is_none() {
                    return Err(Error::Rejected(Reject::Missing));
                }
                self.call(&[b"DEL", &key]).await?
            }
        };
        drop(done);
        Ok(admitted)
    }

    async fn write_tokenless(&self, _: &str, _: Edit<'_>) -> Result<Admitted<()>> {
        let held = self.call(&[b"GET", &self.key("mark")]).await?;
        let number = String::from_utf8(held.unwrap()).unwrap().parse().unwrap();
        let highest = Token::new(number).unwrap();
        Err(Error::Rejected(Reject::Tokenless { highest }))
    }

    async fn observe(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let mut get = cmd("GET");
        get.arg(self.key(key));
        Ok(get.query_async(&mut self.connection.clone()).await?)
    }
}
