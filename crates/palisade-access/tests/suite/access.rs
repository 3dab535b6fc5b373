//! Decisions, identities, and files with a mistake.

use std::fs;

use palisade_access::{
    Access, Bearer, BearerToken, Bound, Credential, Principal, Unknown, Verb, file,
};

const FILE: &str = r#"
# A comment that stays.
[auth]

[[auth.principals]]
name = "backup"
certificates = ["spiffe://home/backup", "backup.home"]

[[auth.principals]]
name = "operator"

[[auth.rules]]
principal = "backup"
prefix = "backup/"
verbs = ["hold", "observe"]

[[auth.rules]]
principal = "backup"
prefix = "shared/"
verbs = ["share"]

[[auth.rules]]
principal = "operator"
prefix = ""
verbs = ["observe", "break", "admin"]
"#;

fn access(text: &str) -> Access {
    Access::parse(text).unwrap()
}

fn principal(access: &Access, name: &str) -> Principal {
    access.principal(name).unwrap()
}

/// Every verb with every kind of lock, for every principal.
#[test]
fn rules_only_grant_and_what_none_grants_is_denied() {
    let access = access(FILE);
    let granted: &[(&str, Verb, &str)] = &[
        ("backup", Verb::Hold, "backup/db"),
        ("backup", Verb::Share, "backup/db"),
        ("backup", Verb::Observe, "backup/db"),
        ("backup", Verb::Share, "shared/x"),
        ("operator", Verb::Observe, "backup/db"),
        ("operator", Verb::Observe, "shared/x"),
        ("operator", Verb::Observe, "backup"),
        ("operator", Verb::Break, "backup/db"),
        ("operator", Verb::Break, "shared/x"),
        ("operator", Verb::Break, "backup"),
        ("operator", Verb::Admin, "backup/db"),
        ("operator", Verb::Admin, "shared/x"),
        ("operator", Verb::Admin, "backup"),
    ];
    for name in ["backup", "operator"] {
        for verb in Verb::ALL {
            for lock in ["backup/db", "shared/x", "backup"] {
                let decided = access.decide(&principal(&access, name), verb, lock);
                assert_eq!(
                    decided.is_ok(),
                    granted.contains(&(name, verb, lock)),
                    "{name} {verb} {lock}"
                );
            }
        }
    }
}

#[test]
fn a_denial_names_principal_verb_and_prefix() {
    let access = access(FILE);
    let backup = principal(&access, "backup");
    let said = access
        .decide(&backup, Verb::Hold, "orders")
        .unwrap_err()
        .to_string();
    assert_eq!(
        said,
        "backup may not hold the lock orders: no rule grants it (it may hold what begins with backup/)"
    );
    let said = access
        .decide(&backup, Verb::Break, "backup/db")
        .unwrap_err()
        .to_string();
    assert_eq!(
        said,
        "backup may not break the lock backup/db: no rule grants it"
    );
}

#[test]
fn a_question_about_a_prefix_needs_a_rule_for_all_of_it() {
    let access = access(FILE);
    let backup = principal(&access, "backup");
    for (prefix, granted) in [
        ("backup/", true),
        ("backup/d", true),
        ("backup", false),
        ("", false),
    ] {
        assert_eq!(
            access.decide_all(&backup, Verb::Observe, prefix).is_ok(),
            granted,
            "{prefix:?}"
        );
    }
    assert!(access.decide_any(&backup, Verb::Observe).is_ok());
    assert!(access.decide_any(&backup, Verb::Admin).is_err());
}

#[test]
fn the_granted_part_of_a_prefix_is_what_the_rules_and_the_prefix_have_in_common() {
    let rule = |prefix: &str| {
        format!("[[auth.rules]]\nprincipal = \"p\"\nprefix = {prefix:?}\nverbs = [\"observe\"]\n")
    };
    let rules = ["b/", "a/x/", "a/", "a/", "c/1"].map(rule).concat();
    let access = access(&format!(
        "[auth]\n[[auth.principals]]\nname = \"p\"\n{rules}"
    ));
    let p = principal(&access, "p");
    for (prefix, granted) in [
        ("", &["a/", "b/", "c/1"][..]),
        ("a", &["a/"]),
        ("a/x", &["a/x"]),
        ("a/x/y", &["a/x/y"]),
        ("c/", &["c/1"]),
    ] {
        assert_eq!(
            access.decide_some(&p, Verb::Observe, prefix).unwrap(),
            granted,
            "{prefix:?}"
        );
    }
    let denied = |verb, prefix| {
        access
            .decide_some(&p, verb, prefix)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        denied(Verb::Observe, "d"),
        "p may not observe any of the locks that begin with d: no rule grants it \
         (it may observe what begins with b/, a/x/, a/, a/, c/1)"
    );
    assert_eq!(
        denied(Verb::Break, ""),
        "p may not break any of the locks: no rule grants it"
    );
}

#[test]
fn a_caller_is_known_by_a_token_or_by_a_name_in_a_certificate() {
    let (text, token) = BearerToken::make([7; 36]);
    let stored = token.secret().stored();
    assert!(
        !text.contains(&stored) && !stored.contains(&text),
        "the secret is not stored"
    );
    let tokens = format!(
        "{FILE}\n[[auth.tokens]]\nid = \"{}\"\nprincipal = \"operator\"\nsha256 = \"{stored}\"\n",
        token.id()
    );
    let access = access(&tokens);
    let shows = |token: Option<&str>, names: &[&str]| {
        let shown = Credential {
            token: token.map(|text| Bearer::Token(BearerToken::parse(text).unwrap())),
            names: names.iter().map(|name| Box::from(*name)).collect(),
            uid: None,
        };
        access.identify(&shown, 0)
    };
    let known = |who: Result<Principal, Unknown>| who.unwrap().name().to_owned();
    assert_eq!(known(shows(Some(&text), &[])), "operator");
    assert_eq!(known(shows(None, &["other", "backup.home"])), "backup");
    assert_eq!(
        known(shows(Some(&text), &["backup.home"])),
        "operator",
        "the token counts first"
    );
    // The right id with another secret, and an id that nobody has.
    let last = if text.ends_with('0') { "1" } else { "0" };
    let forged = format!("{}{last}", &text[..text.len() - 1]);
    for wrong in [&forged, &text.replace(token.id(), "deadbeef")] {
        let unknown = shows(Some(wrong), &["backup.home"]).unwrap_err();
        assert!(
            matches!(unknown, Unknown::Token(_)),
            "a wrong token is not helped by a certificate"
        );
        assert!(!unknown.to_string().contains(&wrong[13..]), "{unknown}");
    }
    assert_eq!(shows(None, &[]).unwrap_err(), Unknown::Nothing);
    assert_eq!(
        shows(None, &["x"]).unwrap_err(),
        Unknown::Certificate("x".into())
    );
}

#[test]
fn a_uid_is_an_identity_and_a_token_counts_before_it() {
    let (text, token) = BearerToken::make([7; 36]);
    let access = access(&format!(
        "{}\n[[auth.tokens]]\nid = \"{}\"\nprincipal = \"operator\"\nsha256 = \"{}\"\n",
        FILE.replace(
            "certificates = [",
            "uids = [0, 998]\ncertificates = [\"uid:7\", "
        ),
        token.id(),
        token.secret().stored()
    ));
    let shows = |token: Option<&str>, names: &[&str], uid| {
        let shown = Credential {
            token: token.map(|text| Bearer::Token(BearerToken::parse(text).unwrap())),
            names: names.iter().map(|name| Box::from(*name)).collect(),
            uid,
        };
        access.identify(&shown, 0)
    };
    for uid in [0, 998] {
        assert_eq!(shows(None, &[], Some(uid)).unwrap().name(), "backup");
    }
    // The name of a certificate is not taken for a uid, nor a uid for a name.
    assert_eq!(shows(None, &[], Some(7)).unwrap_err(), Unknown::Uid(7));
    assert_eq!(
        shows(None, &["uid:998"], None).unwrap_err(),
        Unknown::Certificate("uid:998".into())
    );
    assert_eq!(
        shows(Some(&text), &[], Some(998)).unwrap().name(),
        "operator"
    );
    let wrong = text.replace(token.id(), "deadbeef");
    assert!(
        matches!(shows(Some(&wrong), &[], Some(998)), Err(Unknown::Token(_))),
        "a wrong token is not helped by a uid"
    );
    assert_eq!(
        Unknown::Uid(1000).to_string(),
        "no principal has the uid 1000, and no token was sent"
    );
}

#[test]
fn nobody_is_anonymous_unless_a_rule_says_so() {
    let nothing = Credential::default();
    assert!(access(FILE).identify(&nothing, 0).is_err());
    let open = format!(
        "{FILE}\n[[auth.rules]]\nprincipal = \"anonymous\"\nprefix = \"public/\"\nverbs = [\"observe\"]\n"
    );
    let access = access(&open);
    let anonymous = access.identify(&nothing, 0).unwrap();
    assert!(access.decide(&anonymous, Verb::Observe, "public/x").is_ok());
    assert!(
        access
            .decide(&anonymous, Verb::Observe, "backup/x")
            .is_err()
    );
}

#[test]
fn a_file_with_a_mistake_is_refused_and_the_mistake_is_named() {
    for (text, expected) in [
        ("", "[auth] is missing"),
        ("[auth", "expected"),
        (
            "[auth]\n[elsewhere]\n",
            "the file: unknown key \"elsewhere\"; the keys are auth",
        ),
        (
            "[auth]\n[[auth.rule]]\n",
            "unknown key \"rule\"; is \"rules\" meant?",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\ncertificate = [\"b\"]\n",
            "is \"certificates\" meant?",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a b\"\n",
            "is no name",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\n[[auth.principals]]\nname = \"a\"\n",
            "twice",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"anonymous\"\n",
            "reserved",
        ),
        (
            "[auth]\n[[auth.rules]]\nprincipal = \"a\"\nprefix = \"\"\nverbs = [\"hold\"]\n",
            "there is no principal \"a\"",
        ),
        (
            "[auth]\n[[auth.rules]]\nprincipal = \"anonymos\"\nprefix = \"\"\nverbs = [\"hold\"]\n",
            "is anonymous meant?",
        ),
        (
            "[auth]\n[[auth.rules]]\nprincipal = \"anonymous\"\nprefix = \"\"\nverbs = [\"own\"]\n",
            "the verbs are hold, share",
        ),
        (
            "[auth]\n[[auth.rules]]\nprincipal = \"anonymous\"\nprefix = \"\"\nverbs = []\n",
            "grants nothing",
        ),
        (
            "[auth]\n[[auth.rules]]\nprincipal = \"anonymous\"\nprefix = \"ö\"\nverbs = [\"hold\"]\n",
            "printable ASCII",
        ),
        (
            "[auth]\n[[auth.rules]]\nprincipal = \"anonymous\"\nverbs = [\"hold\"]\n",
            "prefix",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\ncertificates = [\"c\"]\n[[auth.principals]]\nname = \"b\"\ncertificates = [\"c\"]\n",
            "that of a and of b",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nuids = [1]\n[[auth.principals]]\nname = \"b\"\nuids = [1]\n",
            "the uid 1 is that of a and of b",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nuids = [-1]\n",
            "-1 is no uid; one is in 0 ..= 4294967294",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nuids = [4294967295]\n",
            "no uid",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nuids = [65534]\n",
            "nobody in particular",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nuid = [1]\n",
            "is \"uids\" meant?",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\n[[auth.tokens]]\nid = \"1\"\nprincipal = \"a\"\nsha256 = \"12\"\n",
            "64 hexadecimal digits",
        ),
        (
            "[auth]\n[[auth.audit]]\nprefixes = [\"a\"]\n",
            "[[auth.audit]]: unknown key \"prefixes\"; is \"prefix\" meant?",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"p\"\nkey = \"f\"\n",
            "[[auth.issuers]]: unknown key \"key\"; is \"keys\" meant?",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"\"\nkeys = \"f\"\n",
            "must not be empty",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\nkeys = \"f\"\n",
            "audience",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"p\"\nkeys = \"f\"\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"q\"\nkeys = \"f\"\n",
            "it is there twice",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nsubject = [\"s\"]\n",
            "is \"subjects\" meant?",
        ),
        (
            "[auth]\n[[auth.principals]]\nname = \"a\"\nsubjects = [\"s\"]\n",
            "there are no [[auth.issuers]]",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"p\"\nkeys = \"f\"\n[[auth.principals]]\nname = \"a\"\nsubjects = [\"s\"]\nissuer = \"j\"\n",
            "no [[auth.issuers]] with the issuer \"j\"; there is i",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"p\"\nkeys = \"f\"\n[[auth.issuers]]\nissuer = \"j\"\naudience = \"p\"\nkeys = \"f\"\n[[auth.principals]]\nname = \"a\"\nsubjects = [\"s\"]\n",
            "Give the key issuer: one of i, j",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"p\"\nkeys = \"f\"\n[[auth.principals]]\nname = \"a\"\nissuer = \"i\"\n",
            "there are no subjects",
        ),
        (
            "[auth]\n[[auth.issuers]]\nissuer = \"i\"\naudience = \"p\"\nkeys = \"f\"\n[[auth.principals]]\nname = \"a\"\nsubjects = [\"s\"]\n[[auth.principals]]\nname = \"b\"\nsubjects = [\"s\"]\n",
            "the subject \"s\" of \"i\" is that of a and of b",
        ),
        ("[auth]\n[[auth.audit]]\n", "prefix"),
        (
            "[auth]\n[[auth.audit]]\nprefix = \"ö\"\n",
            "printable ASCII",
        ),
        (
            "[auth]\n[[auth.audit]]\nprefix = \"a/\"\n[[auth.audit]]\nprefix = \"a/\"\n",
            "[[auth.audit]] for the prefix \"a/\": it is there twice",
        ),
    ] {
        let said = Access::parse(text).unwrap_err().to_string();
        assert!(said.contains(expected), "{text:?}: {said}");
    }
}

#[test]
fn tokens_are_added_and_revoked_and_the_rest_of_the_file_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.toml");
    fs::write(&path, FILE).unwrap();
    let (text, token) = BearerToken::make([9; 36]);
    let shown = Credential {
        token: Some(Bearer::Token(BearerToken::parse(&text).unwrap())),
        ..Credential::default()
    };
    assert!(
        file::add_token(&path, &token, "nobody", None)
            .unwrap_err()
            .to_string()
            .contains("nobody")
    );
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        FILE,
        "refused, and unchanged"
    );
    file::add_token(&path, &token, "backup", None).unwrap();
    assert_eq!(
        file::read(&path)
            .unwrap()
            .identify(&shown, 0)
            .unwrap()
            .name(),
        "backup"
    );
    assert!(fs::read_to_string(&path).unwrap().starts_with(FILE));
    assert!(!fs::read_to_string(&path).unwrap().contains(&text[13..]));
    file::revoke_token(&path, token.id()).unwrap();
    assert!(matches!(
        file::read(&path).unwrap().identify(&shown, 0),
        Err(Unknown::Token(_))
    ));
    assert!(
        file::revoke_token(&path, token.id()).is_err(),
        "already revoked"
    );
    // An id that was revoked is never valid again.
    assert!(file::add_token(&path, &token, "backup", None).is_err());
}

#[test]
fn a_token_is_refused_unless_its_form_is_exact_and_is_never_printed() {
    let (text, token) = BearerToken::make([1; 36]);
    assert!(!format!("{token:?} {:?}", token.secret()).contains(&text[13..]));
    for wrong in [
        "",
        "pal_",
        "pal_x",
        &text[1..],
        &text[..text.len() - 1],
        &text.to_uppercase(),
        &format!("{text}0"),
    ] {
        assert!(BearerToken::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn quotas_apply_to_a_prefix_a_principal_and_an_address() {
    let access = access(&format!(
        "{FILE}\n[[auth.quotas]]\nprefix = \"backup/\"\nlocks = 7\n\
         [[auth.quotas]]\nprincipal = \"backup\"\nwaiters = 2\nbytes = 4096\n\
         [[auth.quotas]]\nprincipal = \"*\"\nwaiters = 1\n\
         [[auth.quotas]]\naddress = \"2001:db8::1\"\nsessions = 9\n\
         [[auth.quotas]]\naddress = \"*\"\nrequests_per_second = 3\n"
    ));
    let applying = |name: &str, address: &str, within: Option<&str>| -> Vec<String> {
        let principal = principal(&access, name);
        let address = Some(address.parse().unwrap());
        let quotas = access.quotas(&principal, address, within);
        quotas
            .map(|(subject, bounds)| {
                let bounds = Bound::ALL.into_iter().filter_map(|bound| {
                    bounds
                        .get(bound)
                        .map(|most| format!("{}={most}", bound.name()))
                });
                format!("{subject}: {}", bounds.collect::<Vec<_>>().join(" "))
            })
            .collect()
    };
    assert_eq!(
        applying("backup", "2001:db8::2", Some("backup/db")),
        [
            "the prefix \"backup/\": locks=7",
            "the principal backup: waiters=2 bytes=4096",
            "the address 2001:db8::: sessions=9",
        ]
    );
    assert_eq!(
        applying("operator", "::ffff:10.0.0.1", Some("back")),
        [
            "the principal operator: waiters=1",
            "the address 10.0.0.1: requests_per_second=3",
        ]
    );
    assert_eq!(applying("operator", "10.0.0.1", None).len(), 2);
    let prefixes: Vec<&str> = access.prefixes_with_locks().collect();
    assert_eq!(prefixes, ["backup/"]);
    assert!(access.has_quotas() && !self::access(FILE).has_quotas());
}

#[test]
fn a_quota_with_a_mistake_is_refused_and_the_mistake_is_named() {
    for (quota, says) in [
        ("locks = 1", "exactly one of prefix, principal and address"),
        (
            "prefix = \"a\"\nprincipal = \"backup\"\nlocks = 1",
            "exactly one of",
        ),
        ("prefix = \"a\"", "it bounds nothing"),
        (
            "prefix = \"a\"\nlocks = 0",
            "locks must be an integer in 1 ..= 1000000000",
        ),
        ("prefix = \"a\"\nlocks = -1", "locks must be an integer in"),
        (
            "principal = \"*\"\nbytes = 9",
            "bytes must be an integer in 1024 ..=",
        ),
        (
            "prefix = \"a\"\nsessions = 1",
            "a session belongs to no prefix",
        ),
        ("prefix = \"ü\"\nlocks = 1", "printable ASCII"),
        ("principal = \"bakup\"\nlocks = 1", "is backup meant?"),
        ("address = \"10.0.0\"\nlocks = 1", "this is no IP address"),
        ("address = \"*\"\nlock = 1", "is \"locks\" meant?"),
        (
            "prefix = \"a\"\nlocks = 1\n[[auth.quotas]]\nprefix = \"a\"\nlocks = 2",
            "it is there twice",
        ),
        (
            "address = \"::1\"\nlocks = 1\n[[auth.quotas]]\naddress = \"::2\"\nlocks = 2",
            "it is there twice",
        ),
    ] {
        let text = format!("{FILE}\n[[auth.quotas]]\n{quota}\n");
        let error = Access::parse(&text).unwrap_err().to_string();
        assert!(error.contains(says), "{quota}: {error}");
    }
}

#[test]
fn an_access_file_that_everybody_may_write_is_named_with_its_mode() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.toml");
    fs::write(&path, FILE).unwrap();
    let access = file::read(&path).unwrap();
    let set = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let exposed = |path| file::open_to_everybody(path, &access);
    set(&path, 0o660);
    assert_eq!(exposed(&path), [""; 0]);
    set(&path, 0o666);
    let said = exposed(&path);
    let [one] = &said[..] else { panic!("{said:?}") };
    assert!(
        one.contains("access.toml has mode 0666") && one.contains("chmod o-w"),
        "{one}"
    );
    // Also through a link, and for the folder; others cannot replace a file in a sticky one.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(exposed(&link), said);
    set(&path, 0o600);
    set(dir.path(), 0o777);
    assert!(exposed(&path)[0].contains("has mode 0777"));
    set(dir.path(), 0o1777);
    assert_eq!(exposed(&path), [""; 0]);
}

#[test]
fn a_token_ends_at_its_time_and_one_without_a_time_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.toml");
    std::fs::write(&path, FILE).unwrap();
    let end = jiff::Timestamp::from_second(2_000_000_000).unwrap();
    let [(_, short), (_, long)] = [1, 2].map(|seed| BearerToken::make([seed; 36]));
    file::add_token(&path, &short, "backup", Some(end)).unwrap();
    file::add_token(&path, &long, "backup", None).unwrap();
    let access = file::read(&path).unwrap();
    let shown = |token: &BearerToken| Credential {
        token: Some(Bearer::Token(token.clone())),
        ..Credential::default()
    };
    for (token, now, counts) in [
        (&short, 1_999_999_999, true),
        (&short, 2_000_000_000, false),
        (&long, 2_000_000_000, true),
    ] {
        let found = access.identify(&shown(token), now);
        assert_eq!(found.is_ok(), counts, "{found:?}");
        assert_eq!(access.ends(&shown(token)), token.id() == short.id());
    }
    let ends: Vec<_> = access.tokens().map(|(_, _, ends)| ends).collect();
    assert!(
        ends.contains(&Some(2_000_000_000)) && ends.contains(&None),
        "{ends:?}"
    );
    let wrong = std::fs::read_to_string(&path)
        .unwrap()
        .replace("2033-05-18T03:33:20Z", "soon");
    std::fs::write(&path, wrong).unwrap();
    let said = file::read(&path).unwrap_err().to_string();
    assert!(said.contains("expires must be a date"), "{said}");
}

/// The control is one writer after the other; without a lock, two at once write one text each and one of them is lost.
#[test]
fn tokens_that_are_made_and_revoked_at_once_are_all_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("access.toml");
    fs::write(&path, FILE).unwrap();
    let token = |n: u8| BearerToken::make([n; 36]).1;
    for n in 1..=8 {
        file::add_token(&path, &token(n), "backup", None).unwrap();
    }
    std::thread::scope(|scope| {
        for n in 1..=8 {
            let path = &path;
            scope.spawn(move || file::revoke_token(path, token(n).id()).unwrap());
            scope.spawn(move || file::add_token(path, &token(n + 100), "backup", None).unwrap());
        }
    });
    let access = file::read(&path).unwrap();
    let mut valid: Vec<String> = access.tokens().map(|(id, ..)| id.to_owned()).collect();
    for n in 1..=8 {
        assert!(
            !valid.contains(&token(n).id().to_owned()),
            "{n} was revoked"
        );
        let made = valid.iter().position(|id| *id == token(n + 100).id());
        valid.remove(made.expect("a token that was made"));
    }
}
