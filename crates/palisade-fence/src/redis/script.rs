//! The text of the script, and its call by hash, in one round trip.

use std::sync::LazyLock;

use palisade_core::fence::{Mode, Pass, Rule, Sequence};
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, ServerErrorKind, Value, cmd};

use crate::error::{Error, Result};

const FENCE: &str = include_str!("fence.lua");

/// The fence's script without a script of the user.
pub(super) static PLAIN: LazyLock<ScriptText> = LazyLock::new(|| ScriptText::new(FENCE.to_owned()));

/// The script that re-arms a fence.
pub(super) static REARM: LazyLock<ScriptText> =
    LazyLock::new(|| ScriptText::new(include_str!("rearm.lua").to_owned()));

/// A script of the user, guarded by the fence: it runs after the check, in the same step.
///
/// It is written like any script for `EVAL`, with its own `KEYS` and `ARGV`. Keep the value: after the first
/// call the server knows the script by its hash.
#[derive(Clone, Debug)]
pub struct Script(pub(super) ScriptText);

impl Script {
    /// Takes a script of the user.
    ///
    /// # Errors
    /// [`Error::Argument`] for a script with a `#!` line, which cannot be part of another script. The server
    /// finds a mistake in its Lua code at the first call, and nothing takes effect.
    pub fn new(lua: &str) -> Result<Script> {
        if lua.starts_with("#!") {
            Err(Error::Argument(
                "a guarded script must not begin with #!: it runs inside the fence's script"
                    .to_owned(),
            ))
        } else {
            Ok(Script(ScriptText::new(with(lua))))
        }
    }
}

fn with(lua: &str) -> String {
    format!("local function effect(KEYS, ARGV)\n{lua}\nend\n{FENCE}")
}

/// A script text that the server may already know.
#[derive(Clone, Debug)]
pub(super) struct ScriptText {
    lua: String,
    hash: String,
}

impl ScriptText {
    fn new(lua: String) -> ScriptText {
        let hash = redis::Script::new(&lua).get_hash().to_owned();
        ScriptText { lua, hash }
    }

    /// Runs the script by its hash, or with its text if the server does not know it (any more).
    pub(super) async fn run<C: ConnectionLike>(
        &self,
        connection: &mut C,
        keys: &[&str],
        arguments: &[&[u8]],
    ) -> Result<Value, RedisError> {
        let known = command("EVALSHA", &self.hash, keys, arguments);
        match known.query_async(connection).await {
            Err(error) if is_unknown(&error) => {
                command("EVAL", &self.lua, keys, arguments)
                    .query_async(connection)
                    .await
            }
            answer => answer,
        }
    }
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ServerErrorKind::NoScript.into()
}

fn command(name: &str, script: &str, keys: &[&str], arguments: &[&[u8]]) -> Cmd {
    let mut command = cmd(name);
    command.arg(script).arg(keys.len()).arg(keys);
    for argument in arguments {
        command.arg(*argument);
    }
    command
}

/// A request to the fence. The order of `arguments` is that of `ARGV` in fence.lua.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) rule: Rule,
    /// `None`: a write without a token.
    pub(super) pass: Option<Pass<'a>>,
    pub(super) op: &'static str,
    pub(super) sequence: Option<Sequence>,
    pub(super) effect: Effect<'a>,
}

/// The effect of an admitted operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect<'a> {
    pub(super) kind: &'static str,
    pub(super) keys: &'a [&'a str],
    pub(super) arguments: &'a [&'a [u8]],
}

impl Effect<'_> {
    pub(super) const NONE: Effect<'static> = Effect {
        kind: "none",
        keys: &[],
        arguments: &[],
    };

    /// A checksum of the whole content, each part with its length. It detects a caller's mistake, not an
    /// attack.
    fn digest(&self, text: &ScriptText) -> u64 {
        let mut crc = crc32fast::Hasher::new();
        let mut length = 0;
        let keys = self.keys.iter().map(|key| key.as_bytes());
        let script = [text.hash.as_bytes()];
        for part in script
            .into_iter()
            .chain(keys)
            .chain(self.arguments.iter().copied())
        {
            crc.update(&(part.len() as u64).to_le_bytes());
            crc.update(part);
            length += part.len() as u64;
        }
        u64::from(crc.finalize()) << 32 | length & 0xffff_ffff
    }
}

impl Request<'_> {
    /// Sends the request; `guarded` are keys whose data proves that the resource is not new.
    pub(super) async fn send<C: ConnectionLike>(
        &self,
        connection: &mut C,
        text: &ScriptText,
        mark: &str,
        guarded: &[String],
    ) -> Result<Value, RedisError> {
        let mut keys = vec![mark];
        keys.extend(self.effect.keys);
        keys.extend(guarded.iter().map(String::as_str));
        let number =
            |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
        let bound = number(self.rule.max_jump);
        let token = number(self.pass.map(|pass| pass.token.get()));
        let sequence = number(self.sequence.map(Sequence::get));
        let digest = number(self.sequence.map(|_| self.effect.digest(text)));
        let count = self.effect.keys.len().to_string();
        let authority = self.pass.and_then(|pass| pass.authority);
        let lock = self.pass.and_then(|pass| pass.lock);
        let mut arguments: Vec<&[u8]> = [
            mode(self.rule.mode),
            &bound,
            self.op,
            &token,
            authority.map_or("", |id| id.as_str()),
            lock.map_or("", |name| name.as_str()),
            &sequence,
            &digest,
            self.effect.kind,
        ]
        .map(str::as_bytes)
        .to_vec();
        if self.effect.kind == "script" {
            arguments.push(count.as_bytes());
        }
        arguments.extend(self.effect.arguments);
        text.run(connection, &keys, &arguments).await
    }
}

const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Claim => "claim",
        Mode::Strict => "strict",
        Mode::Textbook => "textbook",
        Mode::DangerUnfenced => "unfenced",
    }
}
