//! The arguments of the client commands.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use palisade_client::{BearerToken, Fault, TlsFiles};
use palisade_core::{LockName, Permits, Token, Ttl, limits};
use rustix::process::Signal;

use super::grant_options::GrantOptionArgs;
use super::{help, value};

/// Which authority to use.
#[derive(Args, Clone, Debug)]
pub(crate) struct AuthorityArgs {
    /// The authority that grants the locks: a lock server (palisade://host, http://host:port, https://host:port,
    /// unix:///path), a cluster of them
    /// (http://a:7420,http://b:7420,http://c:7420) or another system (etcd://host, zookeeper://host,
    /// postgres://user@host/database). Put a URL with a password into the environment variable, because other users
    /// can see command lines.
    #[arg(
        long,
        value_name = "URL",
        env = "PALISADE_AUTHORITY",
        hide_env_values = true,
        default_value = "http://127.0.0.1:7420",
        value_hint = ValueHint::Url
    )]
    pub(crate) authority: String,
    #[command(flatten)]
    certificates: Certificates,
}

/// The certificates for an authority with https://.
#[derive(Args, Clone, Debug)]
pub(super) struct Certificates {
    /// The CA of the server, in PEM [default: those that this machine trusts].
    #[arg(long, value_name = "FILE", env = "PALISADE_CA_FILE", value_hint = ValueHint::FilePath)]
    ca_file: Option<PathBuf>,
    /// Your client certificate, in PEM.
    #[arg(long, value_name = "FILE", env = "PALISADE_CLIENT_CERT", requires = "client_key", value_hint = ValueHint::FilePath)]
    client_cert: Option<PathBuf>,
    /// The key of --client-cert, in PEM.
    #[arg(long, value_name = "FILE", env = "PALISADE_CLIENT_KEY", requires = "client_cert", value_hint = ValueHint::FilePath)]
    client_key: Option<PathBuf>,
    /// Read your bearer token from this file, instead of from PALISADE_TOKEN. It is read again for each new connection.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    token_file: Option<PathBuf>,
}

impl AuthorityArgs {
    /// The caller's bearer token.
    pub(crate) fn token(&self) -> Result<Option<BearerToken>, Fault> {
        self.certificates.token()
    }

    /// The environment in which a command that starts in another folder uses the same authority.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let given = &self.certificates;
        let files = [
            ("PALISADE_CA_FILE", &given.ca_file),
            ("PALISADE_CLIENT_CERT", &given.client_cert),
            ("PALISADE_CLIENT_KEY", &given.client_key),
        ];
        let files = files
            .into_iter()
            .filter_map(|(name, file)| Some((name.to_owned(), absolute(file.as_ref()?))));
        // The certificates that the machine trusts may be elsewhere.
        let inherited = ["PALISADE_TOKEN", "SSL_CERT_FILE", "SSL_CERT_DIR"];
        let inherited = inherited
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)));
        let authority = ("PALISADE_AUTHORITY".to_owned(), self.authority.clone());
        std::iter::once(authority)
            .chain(files)
            .chain(inherited)
            .collect()
    }

    /// The flags of such a command.
    pub(crate) fn flags(&self) -> Vec<String> {
        let file = self.certificates.token_file.as_ref();
        file.map_or_else(Vec::new, |file| {
            vec!["--token-file".to_owned(), absolute(file)]
        })
    }

    /// The file of the caller's bearer token, if one was named.
    pub(crate) fn token_file(&self) -> Option<&Path> {
        self.certificates.token_file.as_deref()
    }

    /// The certificates for https://.
    pub(crate) fn tls(&self) -> TlsFiles {
        self.certificates.tls()
    }
}

impl Certificates {
    /// The caller's bearer token.
    pub(super) fn token(&self) -> Result<Option<BearerToken>, Fault> {
        super::secret::token(self.token_file.as_deref())
    }

    /// The certificates for https://.
    pub(super) fn tls(&self) -> TlsFiles {
        let given = self.clone();
        TlsFiles {
            ca: given.ca_file,
            own: given.client_cert.zip(given.client_key),
        }
    }
}

fn absolute(file: &Path) -> String {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    file.to_string_lossy().into_owned()
}

/// Which lock to acquire, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct LockArgs {
    /// The lock: 1 – 255 bytes of printable ASCII.
    #[arg(value_name = "LOCK", value_parser = value::lock)]
    pub(crate) lock: LockName,
    /// More locks, up to 64 in all: all or none, in one step, under one fencing token. Nothing is held while the request
    /// waits.
    #[arg(value_name = "LOCK", value_parser = value::lock, conflicts_with_all = ["shared", "permits", "grant_options"])]
    pub(crate) also: Vec<LockName>,
    /// How long the lease lasts without renewal: 100ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = value::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,
    /// How long to wait in the lock's queue: 0 – 24h. `run` also retries for this long while the authority
    /// cannot be reached [default: 30s, and of `elect` 24h].
    #[arg(short, long, value_name = "DURATION", value_parser = value::wait, allow_hyphen_values = true)]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(short, long, conflicts_with = "wait")]
    no_wait: bool,
    /// Hold the lock together with other readers: only writers are kept out. The job must not write what the
    /// lock protects.
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Hold permits of a semaphore: this many, all or none, of as many as it has. 2/5 is two of five; there are at most
    /// 64. While it is in use, everybody asks with the same second number.
    #[arg(long, value_name = "COUNT/OF", conflicts_with = "shared", value_parser = value::permits, allow_hyphen_values = true)]
    pub(crate) permits: Option<Permits>,
    #[command(flatten)]
    pub(crate) options: GrantOptionArgs,
    /// The client id. A request with the id of the current holder takes the lock over, with a higher token.
    /// Without this option every request gets an id of its own.
    #[arg(long, value_name = "ID", value_parser = value::client_id)]
    pub(crate) client_id: Option<String>,
    /// Text shown with the holder, at most 256 bytes; '' for none; of `run` by default USER@HOST PROGRAM.
    #[arg(long, value_name = "TEXT", value_parser = value::metadata)]
    pub(crate) metadata: Option<String>,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

impl LockArgs {
    pub(crate) fn wait(&self) -> Duration {
        if self.no_wait {
            return Duration::ZERO;
        }
        self.wait.unwrap_or(Duration::from_secs(30))
    }
}

/// `--on-deadline`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDeadline {
    /// SIGTERM a --grace before the deadline, SIGKILL at it
    Kill,
    /// Stop it a --grace before the deadline. It goes on if the authority then acknowledges the same token, and is
    /// killed otherwise. A frozen command keeps its database locks and file locks, and others wait for them
    Freeze,
}

/// `palisade run`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::RUN_AFTER)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock_args: LockArgs,
    /// How long before the deadline the job gets SIGTERM: at most half of the ttl [default: 2s, or a fifth of
    /// the ttl if that is shorter].
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,
    /// The fate of a command whose lock is not renewed in time.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnDeadline::Kill)]
    pub(crate) on_deadline: OnDeadline,
    /// Run this with `sh -c` if the lock was lost, after the job is dead.
    #[arg(long, value_name = "CMD", value_hint = ValueHint::CommandString)]
    pub(crate) on_lost: Option<OsString>,
    /// End the command after this time: SIGTERM, and SIGKILL after the grace.
    #[arg(long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// How long the command has to end after a SIGTERM that somebody sends to palisade; then it gets SIGKILL [default:
    /// the --grace that is given, or else 10s].
    #[arg(short, long, value_name = "DURATION", value_parser = value::duration, allow_hyphen_values = true)]
    pub(crate) kill_after: Option<Duration>,
    /// Send the command this signal, once, when another request waits for the lock: TERM, INT, HUP, QUIT, USR1, USR2 or
    /// WINCH.
    #[arg(long, value_name = "SIGNAL", value_parser = value::signal)]
    pub(crate) yield_on_wait: Option<Signal>,
    /// Do not listen at the lock server: a loss and a request that waits are learned at the next renewal, after a third of
    /// the ttl.
    #[arg(long)]
    pub(crate) no_notices: bool,
    /// The exit status when the lock was not acquired in time: 0 – 255.
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = super::NOT_ACQUIRED)]
    pub(crate) conflict_exit_code: u8,
    /// Pass the token as the authority signs it, too, as PALISADE_SEQUENCER: for fences that accept no bare number.
    #[arg(long)]
    pub(crate) sequencer: bool,
    /// Print nothing while waiting, when renewals fail, when the command leaves processes behind or has to be killed, or
    /// when the lock was not acquired in time.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments, after `--`.
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `palisade elect`: `palisade run` with a value and without an end of the wait.
#[derive(Args, Clone, Debug)]
pub(crate) struct ElectArgs {
    /// The value that observers read, such as this leader's address: at most 256 bytes.
    #[arg(long, value_name = "TEXT", conflicts_with = "metadata", value_parser = value::metadata)]
    value: String,
    #[command(flatten)]
    run: RunArgs,
}

impl ElectArgs {
    /// The run that campaigns.
    pub(crate) fn campaign(mut self) -> RunArgs {
        let lock_args = &mut self.run.lock_args;
        lock_args.metadata = Some(self.value);
        lock_args.wait.get_or_insert(limits::MAX_WAIT.to_duration());
        self.run
    }
}

/// `palisade observe`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::OBSERVE_AFTER)]
pub(crate) struct ObserveArgs {
    /// The election: the name of its lock.
    #[arg(value_name = "NAME", value_parser = value::lock)]
    pub(crate) name: LockName,
    /// Print the present leader only. The exit status is 1 if nobody leads.
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade proclaim`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::PROCLAIM_AFTER)]
pub(crate) struct ProclaimArgs {
    /// The value that observers read from now on: at most 256 bytes. An empty text removes the old value.
    #[arg(long, value_name = "TEXT", value_parser = value::metadata)]
    pub(crate) value: String,
    #[command(flatten)]
    pub(crate) grant: GrantArgs,
}

/// `palisade acquire`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::ACQUIRE_AFTER)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) lock_args: LockArgs,
    /// Print `export PALISADE_LOCK=…` and so on, for `eval` in a shell.
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
}

/// A grant that another process holds.
#[derive(Args, Clone, Debug)]
pub(crate) struct GrantArgs {
    /// The lock.
    #[arg(value_name = "LOCK", env = "PALISADE_LOCK", value_parser = value::lock)]
    pub(crate) lock: LockName,
    /// The grant's number: its fencing token, or its grant id if it is shared. It makes a late repeat harmless to later
    /// grants.
    #[arg(long, value_name = "N", env = "PALISADE_FENCING_TOKEN", value_parser = value::token)]
    pub(crate) token: Option<Token>,
    /// Read the secret from this file, or from standard input for `-`, instead of from
    /// PALISADE_LOCK_TOKEN.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) lock_token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade renew`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::RENEW_AFTER)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) grant: GrantArgs,
    /// A new time to live for the lease [default: unchanged].
    #[arg(long, value_name = "DURATION", value_parser = value::ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
}

/// `palisade sequencer`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::SEQUENCER_AFTER)]
pub(crate) struct SignArgs {
    #[command(flatten)]
    pub(crate) grant: GrantArgs,
}

/// `palisade release`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::RELEASE_AFTER)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) grant: GrantArgs,
}

/// `palisade ls`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::LS_AFTER)]
pub(crate) struct LsArgs {
    /// Only locks whose names start with this.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade show`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::SHOW_AFTER)]
pub(crate) struct ShowArgs {
    /// For scripts: the exit status is 1 if nobody holds the lock.
    #[arg(long)]
    pub(crate) exit_code: bool,
    /// The lock.
    #[arg(value_name = "LOCK", value_parser = value::lock)]
    pub(crate) lock: LockName,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade watch`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::WATCH_AFTER)]
pub(crate) struct WatchArgs {
    /// Only locks whose names start with this.
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// The revision of the last event already seen: later ones that the server still has come at once, the others are
    /// counted as missed. 0: from the oldest that it has.
    #[arg(long, value_name = "REVISION")]
    pub(crate) after: Option<u64>,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade break`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::BREAK_AFTER)]
pub(crate) struct BreakArgs {
    /// The lock.
    #[arg(value_name = "LOCK", value_parser = value::lock)]
    pub(crate) lock: LockName,
    /// The fencing token it is held with (of a semaphore, one holder's), or the grant id of a reader, as `palisade show`
    /// prints it.
    #[arg(long, value_name = "N", value_parser = value::token)]
    pub(crate) token: Token,
    /// Why; everyone who watches the lock sees it. At most 256 bytes.
    #[arg(long, value_name = "TEXT", value_parser = value::reason)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade open`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::OPEN_AFTER)]
pub(crate) struct OpenArgs {
    /// The lock.
    #[arg(value_name = "LOCK", value_parser = value::lock)]
    pub(crate) lock: LockName,
    /// Why; it is in the server's audit file. At most 256 bytes.
    #[arg(long, value_name = "TEXT", value_parser = value::reason)]
    pub(crate) reason: String,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade permits`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::PERMITS_AFTER)]
pub(crate) struct PermitsArgs {
    /// The lock: a semaphore in use.
    #[arg(value_name = "LOCK", value_parser = value::lock)]
    pub(crate) lock: LockName,
    /// How many permits it has from now on: 1 – 64.
    #[arg(value_name = "COUNT", value_parser = value::permits_of_all)]
    pub(crate) permits: u32,
    #[command(flatten)]
    pub(crate) connection: AuthorityArgs,
}

/// `palisade completions`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

/// `palisade man`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// Write a page for each command into this directory [default: print the overview].
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}
