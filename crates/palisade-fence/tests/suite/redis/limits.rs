//! Bad input, lost and corrupt marks, servers that cannot keep fences, and a cluster.

use palisade_core::{AuthorityId, Code, Token};
use palisade_fence::redis::{Objects, Operator, Resource, probe};
use palisade_fence::{
    Admin as _, Admitted, Edit, Error, Fence as _, Pass, Rearm, Reject, Result, Rule, Write,
};
use palisade_testbed::Redis;
use redis::aio::ConnectionManager;
use redis::{AsyncCommands as _, cmd};

use super::subject::{connect, show};

fn t(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn lower(to: u64, from: u64) -> Rearm<'static> {
    Rearm {
        lower_from: Some(t(from)),
        ..floor(to)
    }
}

fn floor(number: u64) -> Rearm<'static> {
    Rearm {
        floor: t(number),
        authority: None,
        lower_from: None,
    }
}

async fn rearm(con: &mut ConnectionManager, resource: &str, with: Rearm<'_>) -> Result<()> {
    Operator::new(con).rearm(resource, &with).await
}

async fn keys(con: &mut ConnectionManager) -> usize {
    cmd("DBSIZE").query_async(con).await.unwrap()
}

#[tokio::test]
async fn bad_input_is_reported_and_nothing_is_sent() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let message = |fault: Error| fault.to_string();
    assert!(message(Resource::new("").unwrap_err()).contains("1 ..= 255 bytes"));
    assert!(message(Resource::new("a{b").unwrap_err()).contains("brace"));
    let resource = Resource::new("r").unwrap();
    let write = resource.write(t(1));
    let foreign = write.set(con, "{other}:x", b"x").await.unwrap_err();
    assert!(message(foreign).contains("not one of resource r"));
    let own = write.del(con, "palisade:fence:{r}").await.unwrap_err();
    assert!(message(own).contains("belongs to a fence"));
    let many = vec![("f", &b"v"[..]); 2_000];
    let many = write.hset(con, "{r}:h", &many).await.unwrap_err();
    assert!(message(many).contains("0 ..= 4000 are allowed"));
    let most = vec![("f", &b"v"[..]); 1_999];
    assert_eq!(keys(con).await, 0);
    write.hset(con, "{r}:h", &most).await.unwrap();
    let objects = Objects::new(con.clone(), "o", Rule::CLAIM).unwrap();
    let path = objects.read(Pass::new(t(1)), "no/slash").await.unwrap_err();
    assert!(message(path).contains("must start with '/'"));
}

#[tokio::test]
async fn data_without_its_mark_is_refused_until_it_is_rearmed() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap().guarding(&["{r}:x"]).unwrap();
    let put = resource.write(t(41)).set(con, "{r}:x", b"kept").await;
    put.unwrap();
    let () = con.del("palisade:fence:{r}").await.unwrap();
    let lost = |answer: Result<Admitted<()>>| matches!(answer, Err(Error::FenceLost(_)));
    assert!(lost(resource.claim(con, t(38)).await));
    assert!(lost(resource.write(t(38)).set(con, "{r}:x", b"late").await));
    assert!(lost(resource.write(t(38)).del(con, "{r}:x").await));
    let tokenless = resource.write_tokenless().set(con, "{r}:x", b"late").await;
    assert!(matches!(tokenless, Err(Error::Argument(_))));
    assert_eq!(show(con, "r").await.unwrap(), None, "no mark was created");
    rearm(con, "r", floor(42)).await.unwrap();
    let late = resource.write(t(41)).set(con, "{r}:x", b"late").await;
    assert_eq!(
        late.unwrap_err().rejected(),
        Some(&Reject::Stale {
            presented: t(41),
            highest: t(42)
        })
    );
    resource.claim(con, t(42)).await.unwrap();
    let left: String = con.get("{r}:x").await.unwrap();
    assert_eq!(left, "kept");
}

#[tokio::test]
async fn objects_without_their_mark_are_refused_from_the_claim_on() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let objects = Objects::new(con.clone(), "o", Rule::CLAIM).unwrap();
    let put = Write::new("/a", Edit::Put(b"x"));
    objects.write(Pass::new(t(2)), put).await.unwrap();
    let () = con.del("palisade:fence:{o}").await.unwrap();
    let claim = objects.claim(Pass::new(t(3))).await;
    assert!(matches!(claim, Err(Error::FenceLost(_))), "{claim:?}");
}

#[tokio::test]
async fn a_mark_no_fence_wrote_is_a_fault() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let mark = "palisade:fence:{r}";
    let resource = Resource::new("r").unwrap();
    for holds in [
        "",
        "7",
        "0\n\n\n\n\n",
        "-1\n\n\n\n\n",
        "1e3\n\n\n\n\n",
        " 7\n\n\n\n\n",
        "0x10\n\n\n\n\n",
        "9007199254740992\n\n\n\n\n",
        "99999999999999999999\n\n\n\n\n",
        "5\nmaybe\n\n\n\n",
        "5\n9007199254740992\n\n\n\n",
        "5\nyes\n\n\n",
    ] {
        let () = con.set(mark, holds).await.unwrap();
        let answer = resource.write(t(9)).set(con, "{r}:x", b"x").await;
        assert!(
            matches!(answer, Err(Error::Damaged(_))),
            "{holds:?}: {answer:?}"
        );
        let after: String = con.get(mark).await.unwrap();
        assert_eq!(after, holds);
        assert!(!con.exists::<_, bool>("{r}:x").await.unwrap());
    }
    let () = con.del(mark).await.unwrap();
    let () = con.hset(mark, "a", "hash").await.unwrap();
    let answer = resource.write(t(9)).set(con, "{r}:x", b"x").await;
    assert!(matches!(answer, Err(Error::Failed { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_raised_mark_does_not_expire() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    resource.claim(con, t(1)).await.unwrap();
    let () = con.expire("palisade:fence:{r}", 1_000).await.unwrap();
    resource.claim(con, t(2)).await.unwrap();
    let ttl: i64 = con.ttl("palisade:fence:{r}").await.unwrap();
    assert_eq!(ttl, -1);
}

#[tokio::test]
async fn a_server_that_evicts_marks_is_refused() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    for (policy, good) in [
        ("noeviction", true),
        ("volatile-lru", true),
        ("volatile-ttl", true),
        ("allkeys-lru", false),
        ("allkeys-lfu", false),
        ("allkeys-random", false),
    ] {
        let () = cmd("CONFIG")
            .arg(&["SET", "maxmemory-policy", policy])
            .query_async(con)
            .await
            .unwrap();
        match (probe(con).await, good) {
            (Ok(()), true) => {}
            (Err(Error::Unsuitable(why)), false) => {
                let named = format!("maxmemory-policy is {policy}:");
                assert!(why.starts_with(&named), "{why}");
            }
            (other, _) => panic!("{policy}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_replica_is_refused() {
    let primary = Redis::start(&[]);
    let of = format!("127.0.0.1 {}", primary.port());
    let replica = Redis::start(&["--replicaof", &of]);
    let con = &mut connect(&replica.url()).await;
    assert!(matches!(probe(con).await, Err(Error::Unsuitable(_))));
}

/// On a full server the mark is the first write, so nothing is left half done.
#[tokio::test]
async fn a_full_server_changes_nothing() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    resource.claim(con, t(1)).await.unwrap();
    let set = |bytes: &'static str| {
        let mut set = cmd("CONFIG");
        set.arg(&["SET", "maxmemory", bytes]);
        set
    };
    let () = set("1").query_async(con).await.unwrap();
    for token in [1, 2] {
        let full = resource.write(t(token)).set(con, "{r}:x", b"x").await;
        assert!(full.unwrap_err().report().contains("OOM"));
    }
    let () = set("0").query_async(con).await.unwrap();
    assert_eq!(show(con, "r").await.unwrap().unwrap().highest(), Some(t(1)));
    assert!(!con.exists::<_, bool>("{r}:x").await.unwrap());
}

/// After a restart or a flush of its scripts, a server does not know the hash.
#[tokio::test]
async fn a_script_the_server_forgot_is_sent_again() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("r").unwrap();
    for token in 1..=3 {
        let () = cmd("SCRIPT").arg("FLUSH").query_async(con).await.unwrap();
        resource.claim(con, t(token)).await.unwrap();
        resource.claim(con, t(token)).await.unwrap();
    }
}

#[tokio::test]
async fn an_operator_looks_and_rearms() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    for name in ["b:2", "a:1", "b:1", "b:3", "b[*]"] {
        let resource = Resource::new(name).unwrap();
        resource.claim(con, t(7)).await.unwrap();
    }
    let listed = Operator::new(con).list("b:", None, 2).await.unwrap();
    let names: Vec<&str> = listed.iter().map(|each| each.resource.as_str()).collect();
    assert_eq!(names, ["b:1", "b:2"]);
    let listed = Operator::new(con).list("b:", Some("b:2"), 2).await.unwrap();
    assert_eq!(listed[0].resource, "b:3");
    assert_eq!(listed[0].state.highest(), Some(t(7)));
    assert_eq!(
        Operator::new(con)
            .list("b[*]", None, 9)
            .await
            .unwrap()
            .len(),
        1
    );

    let lowered = rearm(con, "a:1", floor(6)).await.unwrap_err();
    assert!(matches!(lowered, Error::FloorTooLow(low) if low.highest == t(7)));
    let wrong = rearm(con, "a:1", lower(6, 8)).await;
    assert!(matches!(wrong, Err(Error::FloorTooLow(_))));
    let ours = AuthorityId::new("ours").unwrap();
    let with = Rearm {
        authority: Some(&ours),
        ..lower(6, 7)
    };
    rearm(con, "a:1", with).await.unwrap();
    let state = show(con, "a:1").await.unwrap().unwrap();
    assert_eq!((state.highest(), state.authority), (Some(t(6)), Some(ours)));
    rearm(con, "new", floor(9)).await.unwrap();
    let late = Resource::new("new")
        .unwrap()
        .claim(con, t(8))
        .await
        .unwrap_err();
    assert_eq!(
        late.rejected(),
        Some(&Reject::Stale {
            presented: t(8),
            highest: t(9)
        })
    );
}

/// A node with all slots: it refuses a script whose keys are in several slots, and reports the slot of a key.
#[tokio::test]
async fn in_a_cluster_all_keys_of_a_resource_are_in_one_slot() {
    let server = Redis::start(&["--cluster-enabled", "yes"]);
    let con = &mut connect(&server.url()).await;
    let () = cmd("CLUSTER")
        .arg("ADDSLOTSRANGE")
        .arg(&[0, 16_383])
        .query_async(con)
        .await
        .unwrap();
    let served = async |con: &mut ConnectionManager| {
        let info: String = cmd("CLUSTER").arg("INFO").query_async(con).await.unwrap();
        info.contains("cluster_state:ok")
    };
    while !served(con).await {
        tokio::task::yield_now().await;
    }
    for name in [
        "orders",
        "r",
        "a b",
        "storage:customer-orders-bucket",
        "*",
        "x\"y",
    ] {
        let resource = Resource::new(name).unwrap();
        let key = resource.key("x{y}");
        resource.claim(con, t(1)).await.unwrap();
        resource.write(t(1)).set(con, &key, b"x").await.unwrap();
    }
    let slot = async |con: &mut ConnectionManager, key: &str| -> u16 {
        let mut keyslot = cmd("CLUSTER");
        keyslot.arg("KEYSLOT").arg(key);
        keyslot.query_async(con).await.unwrap()
    };
    // Every accepted key is in the server's slot, and a refused key is not, except one of another resource there.
    let resource = Resource::new("r").unwrap();
    let ours = slot(con, "{r}").await;
    let mut other = 0;
    while slot(con, &other.to_string()).await != ours {
        other += 1;
    }
    let same_slot = format!("{{{other}}}:x");
    for key in [
        "r", "{r}", "x{r}y", "{r", "r}", "{}{r}", "{{r}}", "a{r}{b}", "{b}{r}", "ä{r}", &same_slot,
    ] {
        let taken = resource.write(t(1)).set(con, key, b"x").await;
        assert_eq!(
            taken.is_ok(),
            slot(con, key).await == ours && key != same_slot,
            "{key}: {taken:?}"
        );
    }
}

#[tokio::test]
async fn rejections_are_counted() {
    let server = Redis::start(&[]);
    let con = &mut connect(&server.url()).await;
    let resource = Resource::new("counted").unwrap();
    resource.claim(con, t(2)).await.unwrap();
    let before = palisade_fence::audit::counts().of(Code::Tokenless).unwrap();
    let forgot = resource.write_tokenless().set(con, "{counted}:x", b"x");
    assert!(forgot.await.unwrap_err().rejected().is_some());
    assert!(palisade_fence::audit::counts().of(Code::Tokenless).unwrap() > before);
}
