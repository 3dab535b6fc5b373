//! Help texts, also used for the man pages.

/// The first thing that a reader sees.
pub(super) const FIRST: &str = "No lock service can stop two processes from both believing they hold a lock. \
The lease saves work; the fence keeps data safe.

Palisade grants locks as leases that expire. Every grant carries a fencing token, a number that only \
grows, and the resource behind the lock refuses numbers below the highest it has seen. Start a server \
with `palisade serve`, put `palisade run LOCK --` before a command, and give the token to the fence at \
the resource.";

pub(super) const OVERVIEW: &str = "\
Examples:
  palisade serve                                   a lock server on 127.0.0.1:7420
  palisade run nightly -- ./backup.sh              one at a time, on all machines
  palisade run -n nightly -- ./backup.sh           … or not at all if it is already running
  eval \"$(palisade acquire orders --ttl 30s --export)\"
  palisade ls; palisade show orders; palisade watch

Exit status:
  0          it worked
  2          the command line is wrong (125 for `run`)
  123        the lock was lost, or the named grant does not hold it
  124        the lock was not acquired in time
  125        palisade failed: no server, no answer, a defect
  126, 127   `run` could not execute, or not find, the command

Environment:
  PALISADE_AUTHORITY    the lock server, or the nodes of a cluster with commas between them, unless
                        --authority is given
  PALISADE_LOCK_TOKEN   the secret that renews and releases; there is no flag for it
  PALISADE_LOG          what to log, for example debug or palisade=trace
  NO_COLOR              no colours";

pub(super) const RUN: &str = "\
Holds LOCK while a command runs.

The command runs directly, without a shell, in its own process group. The lease is renewed in the \
background. If renewal fails, the whole group gets SIGTERM one grace period before the local deadline and \
SIGKILL at the deadline, so that no process of it is alive when another client can be granted the lock. The \
deadline is counted from before the last acknowledged renewal was sent, on a clock that counts suspend. If \
the server says that the lease is gone, SIGTERM is sent at once, and SIGKILL after the grace.

With --on-deadline freeze, a command whose lease is not renewed in time gets SIGSTOP instead, one grace period before the \
deadline. It goes on if the authority later acknowledges the same token. It is killed if the authority answers anything \
else, if a thread is not seen stopped by the deadline, or if anybody else continues one of its processes. WARNING: a frozen \
command keeps its database locks, file locks and connections for as long as the authority does not answer; --timeout bounds that.

When the command has ended, what it left behind is ended too (SIGTERM, and SIGKILL after the grace), with a line that \
names it; only then is the lock released. If palisade itself is killed with SIGKILL, the command dies with it, and a second \
process releases the lock once nothing of the job is alive. If it cannot be certain of that, or with --lock-delay, the \
lease ends by itself. Only the fence at the resource can reject a write that is already in flight: pass it \
$PALISADE_FENCING_TOKEN.

A process that leaves the group (a daemon) is found and ended too, unless palisade itself was \
killed with SIGKILL. A set-user-id command keeps running if both palisade and its watchdog are killed.";

pub(super) const RUN_AFTER: &str = "\
The command's environment:
  PALISADE_LOCK           the lock
  PALISADE_FENCING_TOKEN  the number for the resource
  PALISADE_LOCKS          with several locks: their names, one on each line
  PALISADE_SLOTS          with --permits: the slots, such as 1,4; the fence of each is LOCK~SLOT
  PALISADE_SEQUENCER      with --sequencer: the number as the authority signs it; with several locks one
                          on each line, in the order of PALISADE_LOCKS
  PALISADE_AUTHORITY      the lock server's URL, without a password
  PALISADE_AUTHORITY_ID   which authority that is; fences are bound to it
  PALISADE_DEADLINE_MS    the local deadline when the command started, in milliseconds on
                          CLOCK_BOOTTIME; it moves on with every renewal
  Of the other PALISADE_… variables only PALISADE_LOG is passed on: the others may be secrets.
The --on-lost hook gets the same, and PALISADE_LOST_REASON: a code such as expired or not_held.

Signals:
  TERM, INT, HUP, QUIT, USR1, USR2, WINCH, TSTP and CONT are passed on to the group. Signals that
  were ignored at the start stay ignored. After TERM, INT, HUP and QUIT the group is continued, so
  that a stopped job ends. A command that goes on after TERM gets KILL after --kill-after.
  --yield-on-wait SIGNAL sends the command that signal once, when another request waits for the lock.
  While --on-deadline has frozen the command, TERM, INT, HUP and QUIT to palisade kill it at once, TSTP
  and CONT do nothing, and ctrl-C on its terminal reaches it when it goes on.

Terminal:
  If standard input is the terminal, the group runs in its foreground, so that ctrl-C, ctrl-Z and
  interactive programs work. Otherwise, as in `… | palisade run x -- less`, it gets the foreground
  when it reads /dev/tty. In the background (`palisade run x -- less &`) palisade stops together
  with it, until `fg`. While palisade is stopped, nothing renews the lease: it expires, and the job
  is killed.

Exit status:
  the command's, or 128 + n if signal n ended it
  122   the command was ended because its --timeout had passed
  123   the lock was lost; every process of the job is dead
  124   the lock was not acquired in time; -E CODE chooses another status
  125   palisade failed (or the command line is wrong)
  126   the command was found but cannot be executed
  127   the command was not found

Examples:
  palisade run nightly -- ./backup.sh --full
  palisade run -w 5m deploy -- sh -c 'make && make deploy'
  palisade run primary --ttl 10s --grace 3s --on-lost 'logger lost $PALISADE_LOCK' -- ./serve";

pub(super) const ACQUIRE: &str = "\
Acquires LOCK and leaves it to you: nothing renews it automatically.

No lock service can stop two processes from both believing they hold a lock. The lease saves work; the \
fence keeps data safe. Prefer `palisade run`, which renews the lease and ends the job before another client \
can hold the lock.";

pub(super) const ACQUIRE_AFTER: &str = "\
Exit status: 0 acquired, 124 not acquired in time, 125 palisade failed, 2 wrong command line

Examples:
  eval \"$(palisade acquire orders --ttl 30s --export)\"   # PALISADE_LOCK, _LOCK_TOKEN, _FENCING_TOKEN …
  palisade renew && ./work && palisade release
  palisade acquire orders -n --json";

pub(super) const RENEW_AFTER: &str = "\
The secret comes from PALISADE_LOCK_TOKEN or --lock-token-file, never from the command line.

Exit status: 0 renewed, 123 the lock was lost, 125 palisade failed, 2 wrong command line

Examples:
  palisade renew                            # lock and secret from `acquire --export`
  palisade renew orders --lock-token-file secret
  pass show orders | palisade renew orders --lock-token-file -";

pub(super) const SEQUENCER: &str = "\
Prints the fencing token of a grant as the authority signs it: a sequencer, for a store or gateway that runs with \
--require-signed and believes no bare number. It renews the lease, as every proof of holding it does.

Send it only to the resource: anyone who has it can present it there until a higher token comes.";

pub(super) const SEQUENCER_AFTER: &str = "\
The secret comes from PALISADE_LOCK_TOKEN or --lock-token-file, never from the command line.

Exit status: 0 signed, 123 the lock was lost, 125 palisade failed, 2 wrong command line

Examples:
  curl -H \"X-Fencing-Sequencer: $(palisade sequencer)\" …   # lock and secret from `acquire --export`
  palisade run orders --sequencer -- sh -c 'curl -H \"X-Fencing-Sequencer: $PALISADE_SEQUENCER\" …'";

pub(super) const ELECT: &str = "\
Campaigns in the election NAME and runs CMD while it leads.

It is `palisade run` on the lock of that name, with a value that observers read: `palisade observe NAME` prints it, and \
prints the next leader's when the leader changes. Give the address at which this leader can be reached. A value is news, \
not proof: what CMD writes goes through a fence with PALISADE_FENCING_TOKEN, as under `run`.

The value dies with the lease. To change it while leading, use a client library, or `palisade acquire` and \
`palisade proclaim`.

Example:
  palisade elect db-primary --value 10.0.0.7:5432 -- ./serve-as-primary";

pub(super) const OBSERVE: &str = "\
Prints who leads the election NAME, and what it says about itself: first the present leader, then each change.

Leaders that were soon followed by another may be left out; the order is never wrong, and the last one is always printed. \
A connection that breaks is opened again.";

pub(super) const OBSERVE_AFTER: &str = "\
Exit status: 0 printed (with --once), 1 nobody leads (with --once), 125 palisade failed, 2 wrong command line

Examples:
  palisade observe db-primary
  palisade observe db-primary --once --json | jq -r .value";

pub(super) const PROCLAIM_AFTER: &str = "\
The token stays the same, and observers are told. The secret comes from PALISADE_LOCK_TOKEN or --lock-token-file, never \
from the command line.

Exit status: 0 proclaimed, 123 the lock was lost, 125 palisade failed, 2 wrong command line

Example:
  eval \"$(palisade acquire db-primary --metadata starting --export)\"
  palisade proclaim --value 10.0.0.7:5432";

pub(super) const RELEASE_AFTER: &str = "\
The secret comes from PALISADE_LOCK_TOKEN or --lock-token-file, never from the command line. Releasing again is no error.

Exit status: 0 released, 123 the lock was already lost, 125 palisade failed, 2 wrong command line

Examples:
  palisade release
  palisade release orders --lock-token-file secret";

pub(super) const BREAK: &str = "\
Takes LOCK from its holder.

The holder may still believe that it holds the lock; its fence rejects it once the next holder has \
claimed. Without a fence, make sure yourself that it has stopped. --token is the fencing token that \
`palisade show LOCK` prints: it proves that you looked, and it protects later grants.";

pub(super) const BREAK_AFTER: &str = "\
Exit status: 0 revoked, 123 not held with this token (look again), 125 palisade failed

Example:
  palisade break nightly --token 34 --reason 'host db3 is being replaced'";

pub(super) const OPEN: &str = "\
Opens a lock that nobody holds and that is closed: by the lock-delay of a grant that ended, or by its at-least-for.

The next request is granted it at once. The former holder may still be at work, so look at that first.";

pub(super) const OPEN_AFTER: &str = "\
Exit status: 0 opened, 123 not closed, 125 palisade failed

Example:
  palisade open nightly --reason 'the job failed after a second, run it again'";

pub(super) const PERMITS: &str = "\
Changes how many permits a semaphore has, while it is in use.

More permits are granted at once. When the number falls, holders keep their slots, and it takes effect as slots \
come free; a waiting request for more than there are is refused. Change the number in your programs, too: a \
request with the old one is refused, and the error names both.";

pub(super) const PERMITS_AFTER: &str = "\
Exit status: 0 changed, 123 not in use, 125 palisade failed (such as: the lock is no semaphore)

Example:
  palisade permits gpu 3";

pub(super) const LS_AFTER: &str = "\
Examples:
  palisade ls
  palisade ls orders/ --json | jq -r .resource_id";

pub(super) const SHOW_AFTER: &str = "\
Exit status: 0 shown, 1 nobody holds it (with --exit-code), 125 palisade failed, 2 wrong command line

Examples:
  palisade show nightly
  palisade show nightly --exit-code >/dev/null && echo it runs";

pub(super) const HISTORY_AFTER: &str = "\
Each grant is a block. It says who held the lock and since when, how long the request waited, when the lease was last \
renewed, how and why it ended, and which writes a resource refused because a newer holder had claimed. Grants that are \
still held come first, then the latest to end. If the history missed changes, a warning names them.

Examples:
  palisade history orders --since 24h
  palisade history --refused --since 24h
  palisade history orders --token 7
  palisade history --client web-1 --since 2026-11-28T02:00:00Z --until 2026-11-28T03:00:00Z --json";

pub(super) const DOCTOR: &str = "\
Looks at the servers of --authority and at this client, and says of each finding how it is and what to type next: addresses \
and names, who this client is there, certificates and their ends, clocks, disks, descriptors, keys, versions, the cluster; \
with --grant the time to a grant, and with --fence the fences of a database.

With DIR it looks at a data directory or a backup instead: whether it is whole, and what is in it. It changes nothing, and a \
server may run on it.

Everything is asked at once, and nothing is waited for longer than some seconds: an address that hangs hides no other.";

pub(super) const DOCTOR_AFTER: &str = "\
A finding is ok, a note (nothing has to be done), a warning (it will become a problem), a problem, or unknown (it could not \
be looked at). With --json each is one line.

Exit status: 0 nothing to do, 1 at least one warning or problem, 125 none as far as it could look; 2 wrong command line

Examples:
  palisade doctor
  palisade doctor --authority https://a:7420,https://b:7420,https://c:7420 --grant
  palisade doctor --fence postgres://app@db/orders
  palisade doctor /var/lib/palisade
  palisade doctor /backups/today --json | jq -r 'select(.state == \"problem\")'";

pub(super) const WATCH_AFTER: &str = "\
Events are news, not proof: a holder relies on its own deadline, not on an event.

Example:
  palisade watch orders/ --json";

pub(super) const AUTH_CERT_AFTER: &str = "\
A certificate made here serves a server and a client. This command makes no list of revoked certificates: to \
revoke one, make a new CA in a new directory and a new certificate for everybody who stays, put them in place, and \
send SIGHUP to the servers.

Examples:
  palisade auth cert 10.0.0.1 locks.home       # for a server: its addresses and names
  palisade auth cert spiffe://home/backup      # for a client";

pub(super) const CONFIG_CHECK_AFTER: &str = "\
One section for each command that serves; a key is the long name of a flag of that command:

  [serve]
  listen = \"127.0.0.1:7420\"
  data = \"/var/lib/palisade\"
  min-ttl = \"1s\"
  allow-host = [\"locks.example.org\"]

The environment is left out. Relative paths begin where the command is started.

Examples:
  palisade config check --config /etc/palisade/palisade.toml
  palisade serve --config /etc/palisade/palisade.toml";

pub(super) const CONFIG_SHOW_AFTER: &str = "\
A flag wins over an environment variable (PALISADE_MIN_TTL for --min-ttl), and that over the file. The output is a
settings file again; a setting behind # has no value.

Examples:
  palisade config show
  palisade config show --origin gateway --config palisade.toml
  PALISADE_MIN_TTL=1s palisade config show --origin serve -- --listen 127.0.0.1:7000";

pub(super) const AUTH_CHECK_AFTER: &str = "\
A server reads the file at SIGHUP, and keeps its old rules if the file has a mistake. Rules only grant:

  [auth]
  [[auth.principals]]
  name = \"backup\"
  certificates = [\"spiffe://home/backup\"]     # names in client certificates; also uids, subjects of JWTs
  [[auth.rules]]
  principal = \"backup\"                        # or \"anonymous\"
  prefix = \"backup/\"
  verbs = [\"hold\", \"observe\"]               # also share, break, admin

Examples:
  palisade auth check --access access.toml
  palisade auth can backup hold backup/db
  palisade auth token new backup > backup.token";

pub(super) const SERVE_AFTER: &str = "\
Examples:
  palisade serve
  palisade serve --listen 0.0.0.0:7420 --data /var/lib/palisade \\
    --tls-cert palisade-ca/10.0.0.1.pem --tls-key palisade-ca/10.0.0.1.key --tls-client-ca palisade-ca/ca.pem
  palisade serve --listen 127.0.0.1:7420 --listen unix:/run/palisade.sock
  palisade serve --clock manual --listen 127.0.0.1:0     # for your tests: time moves only on request

Three nodes that lose nothing when one dies: give each the same --cluster, at every start:
  palisade serve --data D --listen 10.0.0.1:7420 --cluster-key-file KEY \\
    --tls-cert C --tls-key K --tls-client-ca CA \\
    --cluster 10.0.0.1:7421,10.0.0.2:7421,10.0.0.3:7421
The nodes also show these certificates to each other: each needs its own, for the host of its peer address.
A node that joins later:
  palisade serve --data D --listen 10.0.0.4:7420 --cluster-key-file KEY --join https://10.0.0.1:7420 \\
    --tls-cert C --tls-key K --tls-client-ca CA";

pub(super) const CLUSTER_CHECK_AFTER: &str = "\
A node counts as alive if it answered the leader within the last 2 s; a connection alone says nothing. \
The exit status is 0 if the others stay a majority when the node is stopped, and also when it is removed; \
otherwise it is 1. With --json: may_stop and may_remove, one by one.

Before each step of an upgrade:
  palisade cluster check NODE && ssh NODE systemctl restart palisade";

pub(super) const CLUSTER_REPLACE_AFTER: &str = "\
A node that lost its disk never comes back under its old id, because it may have acknowledged what is lost. \
Keep its directory while no other node is known to be intact. Start a new one with --join and another --data, then:
  palisade cluster replace OLD NEW

Both ids are in `palisade cluster status` and in the new node's first message.";

pub(super) const CLUSTER_RECOVER: &str = "\
Turns a node's directory into a single server's, when a majority of its cluster is lost for good.

If a majority can be brought back, bring it back: then nothing is lost. A recovery keeps everything in this node's \
log, even entries that it does not know to be committed, because the lost nodes may have acknowledged them. Locks \
that were granted, renewed or released after its last entry are lost. So run it on the node whose log is furthest.

To find that node, run --look on each node that is left. Never choose one that says it was told that it lost \
entries. If the histories of the others agree, choose the highest term, and within it the highest entry. If they \
differ, entries were lost: choose the node with the most committed entries. Keep a copy of every directory.

The authority's id stays, its counter leaps, so that no token repeats, and the incarnation is new: the new cluster \
refuses the old nodes. It cannot stop a majority of them from serving among themselves, so make sure that none of \
them runs again with its old directory.

Back to three nodes:
  palisade cluster recover --data D --look
  palisade cluster recover --data D              asks on a terminal; elsewhere it needs --yes
  palisade serve --data D --cluster …            the flags that it had; the other nodes each with another --data";

pub(super) const BACKUP_AFTER: &str = "\
On a node of a cluster it copies what the node knows to be committed, so the backup of a lagging follower is as old \
as the follower. `palisade restore` turns it into a single server's directory, and `palisade serve --cluster` \
makes that the first node of a new cluster.

Examples:
  palisade backup /backups/today --data /var/lib/palisade
  palisade restore /backups/today --data /var/lib/palisade-new";

pub(super) const RESTORE: &str = "\
Creates a new authority directory from a backup.

The old server may have issued tokens after the backup. So the counter leaps by 2^44, and farther with each \
millisecond of the wall clock: no token of the old server or of an earlier restore repeats. \
Make sure that the old server, or every node of the old cluster, never runs again.

The backup of a node of a cluster becomes a single server's directory, too. Start it with --cluster beside nodes with \
empty directories, and it is a cluster again.

With --in-place the directory itself becomes a new incarnation and keeps its contents. Use it when a server \
refuses its directory because the files were touched (chown, chmod) or an older copy was put back.";

pub(super) const STORE_AFTER: &str = "\
A separate process that never talks to a lock server: it knows tokens only from its callers, and \
rejects the late ones.

Examples:
  palisade store
  curl http://127.0.0.1:7421/openapi.json";

pub(super) const GATEWAY: &str = "\
Puts a fence in front of an HTTP API.

Requests with methods other than GET, HEAD and OPTIONS must carry the fencing token of their \
holder's grant in X-Fencing-Token (and may carry X-Fencing-Lock, X-Fencing-Authority, X-Fencing-Sequence). \
A late request gets 412 and never reaches the API. A GET with a token claims before it reads.

When a claim is answered, no older write is in flight at the API. If the gateway did not see the end of a write \
(a time-out, a lost connection, an answer that may come from a proxy, a crash of the gateway), this holds only \
if the API ends the write within --settle.

Every name has one spelling: a route's placeholder accepts only the canonical form of its type. Reads with \
bodies, method overrides and ambiguous paths are refused.";

pub(super) const GATEWAY_AFTER: &str = "\
Examples:
  palisade gateway --upstream http://127.0.0.1:8080
  palisade gateway --upstream http://127.0.0.1:8080 --route '/accounts/{id:uint}=account:{id}' --route /reports=reports
  curl -X PUT -H 'X-Fencing-Token: 34' -d 100 http://127.0.0.1:7422/accounts/7
  curl -X POST -H 'X-Fencing-Token: 35' -H 'X-Fencing-Operation: claim' http://127.0.0.1:7422/accounts/7
  curl http://127.0.0.1:7423/v1/fences";

pub(super) const FENCE_K8S_AFTER: &str = "\
This command connects to nothing: apply the output with kubectl, and again after each change. It needs Kubernetes 1.30 or \
newer.

A holder must send its token with each request, and claim each object before it reads it: docs/use/kubernetes.md.
Creations are not fenced. Requests to /scale, /eviction and /binding are refused for all but the exempt: change the object \
itself.

Examples:
  palisade fence k8s deployments.apps configmaps -n shop --service-account shop:deployer | kubectl apply -f -
  palisade fence k8s widgets.shop.example --service-account ops:operator --exempt system:serviceaccount:argocd:argocd";

pub(super) const TFSTATE: &str = "\
Keeps the states of Terraform and OpenTofu as their \"http\" backend, and refuses late uploads.

A LOCK acquires the lock tf/NAME at the authority and claims the state with its fencing token; plans share the lock. \
The lock is held until it is unlocked, as Terraform expects, and waits in the lock's queue if the address says how long \
(?wait=10m). An upload names its lock ID and is written under that lock's token, even if the lease has ended since: it \
gets 412 if anybody has locked the state in between, and the newer state stands.

A caller's password is a token of the authority, which decides what it may do: hold for apply, share for plan, observe to \
read, break for a force-unlock. Its user name is ignored. A caller without a password asks as this server does \
(--token-file).

What Terraform changes in a cloud cannot be fenced: only its state is.";

pub(super) const TFSTATE_AFTER: &str = "\
Examples:
  palisade tfstate --data /var/lib/tfstate
  export TF_HTTP_ADDRESS=http://127.0.0.1:7424/v1/tf/prod TF_HTTP_UNLOCK_ADDRESS=http://127.0.0.1:7424/v1/tf/prod
  export TF_HTTP_LOCK_ADDRESS='http://127.0.0.1:7424/v1/tf/prod?wait=10m'
  curl 'http://127.0.0.1:7424/v1/tf/prod?versions'
  curl 'http://127.0.0.1:7424/v1/tf/prod?version=3' > old.tfstate";

pub(super) const DEMO_AFTER: &str = "\
A holder is stopped past the end of its lease, another client takes over, the first one wakes up and writes. \
Three acts: without a fence (data corrupted), with the textbook fence (an acknowledged update lost), with \
the claim fence (nothing lost). The processes are real; the picture shows what happened.

Examples:
  palisade demo
  palisade demo --act claim --out pictures";

pub(super) const BENCH_AFTER: &str = "\
Examples:
  palisade bench                                   64 connections, one operation each at a time
  palisade bench --clients 16 --in-flight 64
  palisade bench --mode contended --clients 8 --json
  palisade bench --mode sets --hold 5ms            what a set of eight locks waits, and costs others";
