use palisade_core::Token;
use palisade_core::fence::{Pass, Rule, Sequence};

use super::*;
use crate::error::Result;
use crate::name::ResourceId;

fn table(limits: StoreLimits) -> ResourceTable {
    ResourceTable::new(Rule::CLAIM, limits)
}

fn request(token: u64, operation: Operation) -> Request {
    let by = Some(Pass::new(Token::new(token).unwrap()).into());
    Request {
        resource: ResourceId::new("r").unwrap(),
        by,
        operation,
    }
}

fn write(token: u64, path: &str, alter: Alter, sequence: Option<u64>) -> Request {
    let path = ObjectPath::new(path).unwrap();
    request(
        token,
        Operation::write(path, alter, sequence.and_then(Sequence::new)),
    )
}

fn refused(table: &mut ResourceTable, request: Request) -> String {
    run(table, request).unwrap_err().to_string()
}

fn run(table: &mut ResourceTable, request: Request) -> Result<String> {
    Ok(match table.plan(request)? {
        Plan::Admit(record) => {
            table.apply(record);
            "admit".to_owned()
        }
        Plan::Repeat => "repeat".to_owned(),
        Plan::Reject(reject) => reject.code().name().to_owned(),
    })
}

fn text(table: &ResourceTable, path: &str) -> Option<String> {
    let object = table.object(
        &ResourceId::new("r").unwrap(),
        &ObjectPath::new(path).unwrap(),
    )?;
    Some(String::from_utf8(object.to_vec()).unwrap())
}

fn put(bytes: &str) -> Alter {
    Alter::Put(bytes.into())
}

fn append(bytes: &str) -> Alter {
    Alter::Append(bytes.into())
}

#[test]
fn put_append_and_delete() {
    let mut t = table(StoreLimits::DEFAULT);
    assert_eq!(
        run(&mut t, write(1, "/f", append("a"), None)).unwrap(),
        "admit"
    );
    assert_eq!(
        run(&mut t, write(1, "/f", append("b"), None)).unwrap(),
        "admit"
    );
    assert_eq!(text(&t, "/f").as_deref(), Some("ab"));
    assert_eq!(
        run(&mut t, write(1, "/f", put("c"), None)).unwrap(),
        "admit"
    );
    assert_eq!(text(&t, "/f").as_deref(), Some("c"));
    assert_eq!(
        run(&mut t, write(1, "/f", Alter::Delete, None)).unwrap(),
        "admit"
    );
    assert_eq!(text(&t, "/f"), None);
}

#[test]
fn deleting_a_missing_object_is_rejected_and_raises_nothing() {
    let mut t = table(StoreLimits::DEFAULT);
    assert_eq!(
        run(&mut t, write(7, "/f", Alter::Delete, Some(1))).unwrap(),
        "missing"
    );
    assert_eq!(t.resources(), 0);
}

#[test]
fn the_fence_outlives_the_last_object() {
    let mut t = table(StoreLimits::DEFAULT);
    let _ = run(&mut t, write(5, "/f", put("x"), None));
    let _ = run(&mut t, write(5, "/f", Alter::Delete, None));
    assert_eq!(
        run(&mut t, write(4, "/f", put("zombie"), None)).unwrap(),
        "stale"
    );
}

#[test]
fn a_number_is_not_reused_for_another_write() {
    let mut t = table(StoreLimits::DEFAULT);
    assert_eq!(
        run(&mut t, write(1, "/f", append("a"), Some(1))).unwrap(),
        "admit"
    );
    assert_eq!(
        run(&mut t, write(1, "/f", append("a"), Some(1))).unwrap(),
        "repeat"
    );
    assert_eq!(
        run(&mut t, write(1, "/f", append("b"), Some(1))).unwrap(),
        "sequence_reused"
    );
    assert_eq!(
        run(&mut t, write(1, "/g", append("a"), Some(1))).unwrap(),
        "sequence_reused"
    );
    assert_eq!(
        run(&mut t, write(1, "/f", put("a"), Some(1))).unwrap(),
        "sequence_reused"
    );
    assert_eq!(text(&t, "/f").as_deref(), Some("a"));
    // A claim or an unnumbered write in between keeps the digest of the last number.
    let _ = run(&mut t, request(1, Operation::Claim));
    let _ = run(&mut t, write(1, "/h", put("h"), None));
    assert_eq!(
        run(&mut t, write(1, "/f", append("a"), Some(1))).unwrap(),
        "repeat"
    );
}

#[test]
fn limits_are_named_and_change_nothing() {
    let mut t = table(StoreLimits {
        object_bytes: 4,
        total_bytes: 600,
    });
    let too_large = "the object would have 5 bytes; at most 4 are allowed (object_bytes)";
    assert_eq!(
        refused(&mut t, write(1, "/f", put("12345"), None)),
        too_large
    );
    assert_eq!((t.resources(), t.bytes()), (0, 0));
    assert_eq!(
        run(&mut t, write(1, "/f", put("1234"), None)).unwrap(),
        "admit"
    );
    assert_eq!(
        refused(&mut t, write(1, "/f", append("5"), None)),
        too_large
    );
    assert_eq!(
        run(&mut t, write(1, "/g", put("1234"), None)).unwrap(),
        "admit"
    );
    let full = "the store is full: 600 bytes are allowed in all (total_bytes)";
    assert_eq!(refused(&mut t, write(9, "/h", put("1"), None)), full);
    assert_eq!(
        t.highest(&ResourceId::new("r").unwrap()).map(Token::get),
        Some(1)
    );
    assert_eq!(
        run(&mut t, write(1, "/g", Alter::Delete, None)).unwrap(),
        "admit"
    );
    assert_eq!(
        run(&mut t, write(1, "/h", put("1"), None)).unwrap(),
        "admit"
    );
}

#[test]
fn its_records_reproduce_it() {
    let mut t = table(StoreLimits::DEFAULT);
    let _ = run(&mut t, write(3, "/f", append("a"), Some(1)));
    let _ = run(&mut t, write(3, "/g", put("b"), None));
    let _ = run(&mut t, request(4, Operation::Claim));
    let mut again = table(StoreLimits::DEFAULT);
    t.records().for_each(|record| again.apply(record));
    assert_eq!((&t.resources, t.bytes()), (&again.resources, again.bytes()));
}

#[test]
fn lists_by_prefix_in_name_order() {
    let mut t = table(StoreLimits::DEFAULT);
    for name in ["b", "a:1", "a:3", "a:2"] {
        let by = Some(Pass::new(Token::FIRST).into());
        let resource = ResourceId::new(name).unwrap();
        let _ = run(
            &mut t,
            Request {
                resource,
                by,
                operation: Operation::Claim,
            },
        );
    }
    let names = |prefix, after| {
        t.list(prefix, after)
            .map(|(name, _)| name.as_str().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("a:", None), ["a:1", "a:2", "a:3"]);
    assert_eq!(names("a:", Some("a:2")), ["a:3"]);
    assert_eq!(names("", None).len(), 4);
    assert_eq!(names("c", Some("a")), [""; 0]);
}

/// Digest and number belong to the highest token; a newer token clears both.
#[test]
fn a_newer_token_clears_the_digest() {
    let mut t = table(StoreLimits::DEFAULT);
    let digest = |t: &ResourceTable| t.records().find_map(|record| record.fence?.digest);
    for (request, kept) in [
        (write(1, "/f", put("a"), Some(7)), true),
        (write(1, "/f", put("b"), None), true),
        (request(2, Operation::Claim), false),
    ] {
        assert_eq!(run(&mut t, request).unwrap(), "admit");
        assert_eq!(digest(&t).is_some(), kept);
    }
}

/// Names that are one text when they are put together. Each resource has its mark and its objects.
#[test]
fn a_name_leads_to_no_other_mark() {
    let mut t = table(StoreLimits::DEFAULT);
    let places = [
        ("a", "/b/c"),
        ("a/b", "/c"),
        ("A", "/b/c"),
        ("a/", "/b/c"),
        ("..", "/a/b/c"),
        ("a%2Fb", "/c"),
    ];
    for (token, (name, path)) in (1..).zip(places) {
        let mut put = write(token, path, put(name), None);
        put.resource = ResourceId::new(name).unwrap();
        assert_eq!(run(&mut t, put).unwrap(), "admit");
    }
    for (token, (name, path)) in (1..).zip(places) {
        let resource = ResourceId::new(name).unwrap();
        assert_eq!(t.highest(&resource), Some(Token::new(token).unwrap()));
        let object = t.object(&resource, &ObjectPath::new(path).unwrap());
        assert_eq!(*object.unwrap(), name.as_bytes());
    }
}
