//! One fenced resource, on the user's own connection.

use palisade_core::fence::{Pass, Rule, Sequence};
use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, Value};

use super::answer;
use super::script::{Effect, PLAIN, Request, Script};
use super::slot::tag;
use crate::admitted::Admitted;
use crate::audit;
use crate::error::{Error, Result};
use crate::name::ResourceId;

/// The prefix of all marks. No other key may have it.
pub(super) const MARKS: &str = "palisade:fence:";

/// Several keys under one fence.
///
/// Its name is the hash tag of its keys: the mark of `orders` is the string `palisade:fence:{orders}`, and the
/// data is in `orders`, `{orders}:total` and the like. In a cluster all of them are in one slot, which a
/// script requires; any other key is refused before anything is sent, also one of another resource in the same slot.
#[derive(Clone, Debug)]
pub struct Resource {
    name: ResourceId,
    pub(super) mark: String,
    guarded: Vec<String>,
    rule: Rule,
}

impl Resource {
    /// The largest number of arguments to one command; Lua's stack has no room for more.
    pub const MAX_ARGUMENTS: usize = 4_000;

    /// Creates a resource under the claim fence.
    ///
    /// # Errors
    /// [`Error::Name`] for a name that is not valid, [`Error::Argument`] for one that contains a brace.
    pub fn new(name: &str) -> Result<Resource> {
        let name = ResourceId::new(name)?;
        if name.as_str().contains(['{', '}']) {
            let text = format!(
                "resource_id {name} contains a brace; the name is the keys' hash tag: write the tag alone"
            );
            return Err(Error::Argument(text));
        }
        Ok(Resource {
            mark: format!("{MARKS}{{{name}}}"),
            guarded: Vec::new(),
            rule: Rule::CLAIM,
            name,
        })
    }

    /// Adds keys that are checked if there is no mark: if one of them has data, the fence state was lost, and
    /// nothing is admitted (rule F7). An operation always checks its own keys; a claim has none of its own.
    ///
    /// # Errors
    /// [`Error::Argument`] for a key that is not this resource's.
    pub fn guarding(mut self, keys: &[&str]) -> Result<Resource> {
        self.check_keys(keys)?;
        self.guarded
            .extend(keys.iter().map(|key| (*key).to_owned()));
        Ok(self)
    }

    /// Returns the same resource with another rule. Use one rule for the whole life of a resource.
    #[must_use]
    pub fn under(self, rule: Rule) -> Resource {
        Resource { rule, ..self }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Returns a key of this resource: `{name}:rest`.
    #[must_use]
    pub fn key(&self, rest: &str) -> String {
        format!("{{{}}}:{rest}", self.name)
    }

    /// Raises the fence, before the first read (rule F2): one round trip. From then on no older token is
    /// admitted. It is as durable as the server's settings make it; see the module.
    ///
    /// # Errors
    /// [`Error::Rejected`] for a stale token; [`Error::FenceLost`] if the fence state is gone; errors of the server.
    pub async fn claim<'p, C: ConnectionLike>(
        &self,
        connection: &mut C,
        pass: impl Into<Pass<'p>>,
    ) -> Result<Admitted<()>> {
        let request = self.request("claim", Some(pass.into()), None, Effect::NONE);
        Ok(self.send(connection, request, None).await?.map(|_| ()))
    }

    /// Reads a string in order to write (rule F3).
    ///
    /// # Errors
    /// As [`Resource::claim`]; a key of another type is [`Error::Command`].
    pub async fn get<'p, C: ConnectionLike>(
        &self,
        connection: &mut C,
        pass: impl Into<Pass<'p>>,
        key: &str,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let (keys, arguments) = ([key], [&b"GET"[..]]);
        let effect = command("command", &keys, &arguments);
        self.reads(connection, pass.into(), effect, None).await
    }

    /// Reads a field of a hash in order to write (rule F3).
    ///
    /// # Errors
    /// As [`Resource::get`].
    pub async fn hget<'p, C: ConnectionLike>(
        &self,
        connection: &mut C,
        pass: impl Into<Pass<'p>>,
        key: &str,
        field: &str,
    ) -> Result<Admitted<Option<Vec<u8>>>> {
        let (keys, arguments) = ([key], [&b"HGET"[..], field.as_bytes()]);
        let effect = command("command", &keys, &arguments);
        self.reads(connection, pass.into(), effect, None).await
    }

    /// Reads with a script of the user, in order to write (rule F3).
    ///
    /// # Errors
    /// As [`Resource::claim`]; [`Error::Script`] if the script fails.
    pub async fn read<'p, C: ConnectionLike, T: FromRedisValue>(
        &self,
        connection: &mut C,
        pass: impl Into<Pass<'p>>,
        script: &Script,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<Admitted<T>> {
        let effect = command("script", keys, arguments);
        self.reads(connection, pass.into(), effect, Some(script))
            .await
    }

    /// Begins a write under a token; a higher token is claimed in the same step.
    pub fn write<'a>(&'a self, pass: impl Into<Pass<'a>>) -> Writing<'a> {
        Writing {
            resource: self,
            pass: Some(pass.into()),
            sequence: None,
        }
    }

    /// Begins a write by code without a token. It is rejected once the resource is fenced (rule F9), and
    /// [`Error::Argument`] before. Such code calls this voluntarily; Redis does not enforce it: see the
    /// module.
    #[must_use]
    pub const fn write_tokenless(&self) -> Writing<'_> {
        Writing {
            resource: self,
            pass: None,
            sequence: None,
        }
    }

    async fn reads<C: ConnectionLike, T: FromRedisValue>(
        &self,
        connection: &mut C,
        pass: Pass<'_>,
        effect: Effect<'_>,
        script: Option<&Script>,
    ) -> Result<Admitted<T>> {
        let request = self.request("read", Some(pass), None, effect);
        value(self.send(connection, request, script).await?)
    }

    const fn request<'a>(
        &self,
        op: &'static str,
        pass: Option<Pass<'a>>,
        sequence: Option<Sequence>,
        effect: Effect<'a>,
    ) -> Request<'a> {
        Request {
            rule: self.rule,
            pass,
            op,
            sequence,
            effect,
        }
    }

    async fn send<C: ConnectionLike>(
        &self,
        connection: &mut C,
        request: Request<'_>,
        script: Option<&Script>,
    ) -> Result<Admitted<Value>> {
        self.check_keys(request.effect.keys)?;
        let (given, max) = (request.effect.arguments.len(), Resource::MAX_ARGUMENTS);
        if given > max {
            let text = format!("{given} arguments in one command; 0 ..= {max} are allowed");
            return Err(Error::Argument(text));
        }
        let text = script.map_or(&*PLAIN, |script| &script.0);
        let presented = request.pass.map(|pass| pass.token);
        let reply = request
            .send(connection, text, &self.mark, &self.guarded)
            .await?;
        let answer = answer::read(self.name(), presented, request.effect.kind, reply);
        if let Err(Error::Rejected(reject)) = &answer {
            let pass = request.pass.map(|pass| pass.doing(request.op));
            audit::rejected(self.name(), pass, reject);
        }
        answer
    }

    fn check_keys(&self, keys: &[&str]) -> Result<()> {
        for key in keys {
            let problem = if key.starts_with(MARKS) {
                format!("key {key:?} belongs to a fence: keys that begin with {MARKS} are not data")
            } else if *key != self.name() && tag(key) != Some(self.name()) {
                let name = self.name();
                format!("key {key:?} is not one of resource {name}: call it {{{name}}}:…")
            } else {
                continue;
            };
            return Err(Error::Argument(problem));
        }
        Ok(())
    }
}

/// One write in preparation.
#[derive(Clone, Copy, Debug)]
pub struct Writing<'a> {
    resource: &'a Resource,
    pass: Option<Pass<'a>>,
    sequence: Option<Sequence>,
}

impl Writing<'_> {
    /// Gives the write its number among those of this grant, which makes it safe to repeat (rule F5).
    #[must_use]
    pub const fn numbered(self, sequence: Sequence) -> Self {
        Writing {
            sequence: Some(sequence),
            ..self
        }
    }

    /// `SET`: sets the key to these bytes, without expiry.
    ///
    /// # Errors
    /// As [`Resource::get`].
    pub async fn set<C: ConnectionLike>(
        self,
        connection: &mut C,
        key: &str,
        bytes: &[u8],
    ) -> Result<Admitted<()>> {
        self.command(connection, "command", key, &[b"SET", bytes])
            .await
    }

    /// `HSET`: sets these fields of the hash to these bytes.
    ///
    /// # Errors
    /// As [`Resource::get`]; [`Error::Argument`] beyond [`Resource::MAX_ARGUMENTS`].
    pub async fn hset<C: ConnectionLike>(
        self,
        connection: &mut C,
        key: &str,
        fields: &[(&str, &[u8])],
    ) -> Result<Admitted<()>> {
        let mut arguments = vec![&b"HSET"[..]];
        for (field, bytes) in fields {
            arguments.extend([field.as_bytes(), bytes]);
        }
        self.command(connection, "command", key, &arguments).await
    }

    /// `HDEL`: deletes the field. A missing field is
    /// [`Reject::Missing`](palisade_core::fence::Reject::Missing) (rule F8).
    ///
    /// # Errors
    /// As [`Resource::get`].
    pub async fn hdel<C: ConnectionLike>(
        self,
        connection: &mut C,
        key: &str,
        field: &str,
    ) -> Result<Admitted<()>> {
        let arguments = [b"HDEL", field.as_bytes()];
        self.command(connection, "deleting", key, &arguments).await
    }

    /// `DEL`: deletes the key. A missing key is [`Reject::Missing`](palisade_core::fence::Reject::Missing)
    /// (rule F8).
    ///
    /// # Errors
    /// As [`Resource::get`].
    pub async fn del<C: ConnectionLike>(
        self,
        connection: &mut C,
        key: &str,
    ) -> Result<Admitted<()>> {
        self.command(connection, "deleting", key, &[b"DEL"]).await
    }

    /// `APPEND`: appends these bytes to the key's content.
    ///
    /// # Errors
    /// As [`Resource::get`].
    pub async fn append<C: ConnectionLike>(
        self,
        connection: &mut C,
        key: &str,
        bytes: &[u8],
    ) -> Result<Admitted<()>> {
        self.command(connection, "command", key, &[b"APPEND", bytes])
            .await
    }

    /// Runs a script of the user and returns its result.
    ///
    /// The fence is raised **before** the script runs, in the same step at the server. The result of a
    /// numbered run, up to 64 KiB, is recorded: its repeat runs nothing and gets that result, or nil if it
    /// was longer.
    ///
    /// # Errors
    /// As [`Resource::claim`]; [`Error::Script`] if the script fails.
    pub async fn run<C: ConnectionLike, T: FromRedisValue>(
        self,
        connection: &mut C,
        script: &Script,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<Admitted<T>> {
        let effect = command("script", keys, arguments);
        value(self.send(connection, effect, Some(script)).await?)
    }

    async fn command<C: ConnectionLike>(
        self,
        connection: &mut C,
        kind: &'static str,
        key: &str,
        arguments: &[&[u8]],
    ) -> Result<Admitted<()>> {
        let keys = [key];
        let effect = command(kind, &keys, arguments);
        Ok(self.send(connection, effect, None).await?.map(|_| ()))
    }

    async fn send<C: ConnectionLike>(
        self,
        connection: &mut C,
        effect: Effect<'_>,
        script: Option<&Script>,
    ) -> Result<Admitted<Value>> {
        let op = self.pass.map_or("tokenless", |_| "write");
        let request = self.resource.request(op, self.pass, self.sequence, effect);
        self.resource.send(connection, request, script).await
    }
}

const fn command<'a>(
    kind: &'static str,
    keys: &'a [&'a str],
    arguments: &'a [&'a [u8]],
) -> Effect<'a> {
    Effect {
        kind,
        keys,
        arguments,
    }
}

fn value<T: FromRedisValue>(admitted: Admitted<Value>) -> Result<Admitted<T>> {
    let Admitted {
        value,
        highest,
        repeat,
    } = admitted;
    let value = T::from_redis_value(value).map_err(RedisError::from)?;
    Ok(Admitted {
        value,
        highest,
        repeat,
    })
}
