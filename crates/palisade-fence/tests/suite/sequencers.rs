//! `vectors/sequencers.json`: sequencers that must be believed, and all the ones that must not.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use palisade_fence::sequencer::{Check, Keys, Sequencer};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Vectors {
    /// The authority's keys, as a fence is given them.
    jwks: Value,
    cases: Vec<Case>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Case {
    name: String,
    sequencer: String,
    /// Where it is presented.
    resource: String,
    /// Whether the request writes.
    writes: bool,
    /// `admit`, or the code of the refusal.
    verdict: String,
    /// With `admit`: the sequencer's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    claims: Option<Value>,
}

/// A key that exists in these vectors only.
fn key(number: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[number; 32]).unwrap()
}

fn encoded(text: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// Signs any header and payload, including those that an authority never signs.
fn signed(key: &Ed25519KeyPair, header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", encoded(header), encoded(payload));
    let signature = key.sign(signed.as_bytes());
    format!("{signed}.{}", encoded(signature))
}

const HEADER: &str = r#"{"alg":"EdDSA","kid":"k1","typ":"palisade-sequencer"}"#;
const ORDERS: &str =
    r#"{"iss":"authority-a","lock":"orders","mode":"exclusive","token":34,"sub":"backup"}"#;

/// 2^252 + 27742317777372353535851937790883648493, the order of the group, in little-endian bytes.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

/// The same signature with the group's order added to its scalar: it solves the same equation.
fn malleated(sequencer: &str) -> String {
    let (signed, signature) = sequencer.rsplit_once('.').unwrap();
    let mut signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut carry = 0;
    for (byte, order) in signature[32..].iter_mut().zip(ORDER) {
        carry += u16::from(*byte) + u16::from(order);
        *byte = (carry & 0xff) as u8;
        carry >>= 8;
    }
    format!("{signed}.{}", encoded(signature))
}

/// The same bytes, written with another last letter.
fn not_canonical(sequencer: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (front, last) = sequencer.split_at(sequencer.len() - 1);
    let at = LETTERS
        .iter()
        .position(|letter| *letter == last.as_bytes()[0]);
    format!("{front}{}", char::from(LETTERS[at.unwrap() + 1]))
}

fn generated() -> Vectors {
    let (one, two, stranger) = (key(1), key(2), key(3));
    let jwk = |kid: &str, key: &Ed25519KeyPair| {
        let x = encoded(key.public_key());
        json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": x})
    };
    let jwks = json!({"issuer": "authority-a", "keys": [jwk("k1", &one), jwk("k2", &two)]});
    let right = signed(&one, HEADER, ORDERS);
    let header = |text: &str| signed(&one, text, ORDERS);
    let payload = |text: &str| signed(&one, HEADER, text);
    let permits =
        payload(r#"{"iss":"authority-a","lock":"gpu","mode":"permits","token":35,"slots":[1,3]}"#);
    let shared = payload(r#"{"iss":"authority-a","lock":"orders","mode":"shared","token":36}"#);
    let (front, signature) = right.rsplit_once('.').unwrap();
    let parts: Vec<&str> = right.split('.').collect();
    let higher = encoded(ORDERS.replace("34", "9007199254740991"));
    let mut cases = Vec::new();
    let mut add =
        |name: &str, sequencer: &str, resource: &str, writes: bool, verdict: &str, claims| {
            cases.push(Case {
                name: name.to_owned(),
                sequencer: sequencer.to_owned(),
                resource: resource.to_owned(),
                writes,
                verdict: verdict.to_owned(),
                claims,
            });
        };
    let claims = |text: &str| serde_json::from_str::<Value>(text).ok();
    add("right", &right, "orders", true, "admit", claims(ORDERS));
    let other = signed(&two, &HEADER.replace("k1", "k2"), ORDERS);
    add(
        "right, by the second key",
        &other,
        "orders",
        true,
        "admit",
        claims(ORDERS),
    );
    let of_slots = json!({"iss": "authority-a", "lock": "gpu", "mode": "permits", "token": 35, "slots": [1, 3]});
    add(
        "right, for a slot",
        &permits,
        "gpu~3",
        true,
        "admit",
        Some(of_slots),
    );
    let of_reader = json!({"iss": "authority-a", "lock": "orders", "mode": "shared", "token": 36});
    add(
        "right, a reader that reads",
        &shared,
        "orders",
        false,
        "admit",
        Some(of_reader),
    );
    let most = ORDERS.replace("34", "9007199254740991");
    add(
        "right, the last token",
        &payload(&most),
        "orders",
        true,
        "admit",
        claims(&most),
    );
    add(
        "a reader that writes",
        &shared,
        "orders",
        true,
        "bad_sequencer",
        None,
    );
    let mut refuse = |name: &str, sequencer: &str| {
        add(name, sequencer, "orders", true, "bad_sequencer", None);
    };
    refuse(
        "forged: another payload under the signature",
        &format!("{}.{higher}.{}", parts[0], parts[2]),
    );
    refuse("forged: one bit of the signature", &{
        let mut bytes = URL_SAFE_NO_PAD.decode(signature).unwrap();
        bytes[0] ^= 1;
        format!("{front}.{}", encoded(bytes))
    });
    refuse(
        "forged: signed by a key that nobody knows",
        &signed(&stranger, HEADER, ORDERS),
    );
    refuse(
        "other key: signed by the second key in the name of the first",
        &signed(&two, HEADER, ORDERS),
    );
    refuse(
        "other key: it names one that nobody knows",
        &signed(&one, &HEADER.replace("k1", "k9"), ORDERS),
    );
    let none = encoded(HEADER.replace("EdDSA", "none"));
    refuse(
        "algorithm none, without a signature",
        &format!("{none}.{}.", parts[1]),
    );
    refuse(
        "algorithm none, with a signature",
        &header(&HEADER.replace("EdDSA", "none")),
    );
    refuse(
        "algorithm HS256",
        &header(&HEADER.replace("EdDSA", "HS256")),
    );
    refuse(
        "algorithm in another case",
        &header(&HEADER.replace("EdDSA", "eddsa")),
    );
    refuse(
        "algorithm left out",
        &header(r#"{"kid":"k1","typ":"palisade-sequencer"}"#),
    );
    refuse(
        "a key in the header",
        &header(&HEADER.replace('{', r#"{"jwk":{},"#)),
    );
    refuse(
        "a critical extension",
        &header(&HEADER.replace('{', r#"{"crit":["b64"],"b64":false,"#)),
    );
    refuse(
        "another type",
        &header(&HEADER.replace("palisade-sequencer", "JWT")),
    );
    refuse(
        "a member twice in the header",
        &header(&HEADER.replace('{', r#"{"alg":"EdDSA","#)),
    );
    refuse(
        "an array for a header",
        &header(r#"["EdDSA","k1","palisade-sequencer"]"#),
    );
    refuse(
        "a member twice in the payload",
        &payload(&ORDERS.replace('{', r#"{"token":99,"#)),
    );
    refuse(
        "an unknown member in the payload",
        &payload(&ORDERS.replace('{', r#"{"exp":1,"#)),
    );
    refuse(
        "something behind the payload",
        &payload(&format!("{ORDERS}{{}}")),
    );
    refuse("token 0", &payload(&ORDERS.replace("34", "0")));
    refuse(
        "token 2^53",
        &payload(&ORDERS.replace("34", "9007199254740992")),
    );
    refuse(
        "a token that is text",
        &payload(&ORDERS.replace("34", "\"34\"")),
    );
    refuse(
        "a token with a fraction",
        &payload(&ORDERS.replace("34", "34.0")),
    );
    refuse(
        "no lock",
        &payload(r#"{"iss":"authority-a","mode":"exclusive","token":34}"#),
    );
    refuse(
        "a mode that is unknown",
        &payload(&ORDERS.replace("exclusive", "intent")),
    );
    refuse(
        "slots of an exclusive lock",
        &payload(&ORDERS.replace('{', r#"{"slots":[1],"#)),
    );
    for (name, slots) in [
        ("slots that fall", "[3,1]"),
        ("a slot twice", "[1,1]"),
        ("slot 0", "[0,1]"),
    ] {
        let of_slots = ORDERS.replace("exclusive", "permits");
        let of_slots = of_slots.replace('{', &format!(r#"{{"slots":{slots},"#));
        refuse(name, &payload(&of_slots));
    }
    refuse(
        "permits without slots",
        &payload(&ORDERS.replace("exclusive", "permits")),
    );
    refuse("truncated: no signature", front);
    refuse("truncated: an empty signature", &format!("{front}."));
    refuse(
        "truncated: half of the signature",
        &right[..right.len() - 43],
    );
    refuse("truncated: one letter", &right[..right.len() - 1]);
    refuse("empty", "");
    refuse("a fourth part", &format!("{right}.AA"));
    refuse("padding", &format!("{right}=="));
    refuse("bits after the last byte", &not_canonical(&right));
    refuse("a space behind it", &format!("{right} "));
    refuse(
        "the letters of plain base64",
        &payload(&ORDERS.replace("backup", "???>>>")).replace(['-', '_'], "/"),
    );
    refuse("a scalar that is not reduced", &malleated(&right));
    refuse(
        "longer than 4096 bytes",
        &payload(&ORDERS.replace("backup", &"x".repeat(4096))),
    );
    let iss = payload(&ORDERS.replace("authority-a", "authority-b"));
    add(
        "other authority",
        &iss,
        "orders",
        true,
        "wrong_authority",
        None,
    );
    add("other lock", &right, "payments", true, "wrong_lock", None);
    add(
        "other lock: a prefix of the name",
        &right,
        "order",
        true,
        "wrong_lock",
        None,
    );
    add(
        "other lock: a slot of a lock that is no semaphore",
        &right,
        "orders~1",
        true,
        "wrong_lock",
        None,
    );
    add("other slot", &permits, "gpu~2", true, "wrong_lock", None);
    add(
        "other slot: the semaphore itself",
        &permits,
        "gpu",
        true,
        "wrong_lock",
        None,
    );
    add(
        "other slot: with a zero in front",
        &permits,
        "gpu~01",
        true,
        "wrong_lock",
        None,
    );
    Vectors { jwks, cases }
}

fn stored() -> Vectors {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/sequencers.json");
    if std::env::var_os("PALISADE_BLESS").is_some() {
        let text = serde_json::to_string_pretty(&generated()).unwrap();
        std::fs::write(file, text + "\n").unwrap();
    }
    serde_json::from_slice(&std::fs::read(file).unwrap_or_default()).unwrap_or_else(|error| {
        panic!("vectors/sequencers.json: {error}; write it with PALISADE_BLESS=1")
    })
}

#[test]
fn the_vectors_are_what_is_generated() {
    assert!(
        stored() == generated(),
        "vectors/sequencers.json is out of date: run with PALISADE_BLESS=1"
    );
}

fn claims(sequencer: &Sequencer) -> Value {
    let mut claims = json!({
        "iss": sequencer.authority().as_str(), "lock": sequencer.lock().as_str(),
        "mode": format!("{:?}", sequencer.mode()).to_lowercase(), "token": sequencer.token().get(),
    });
    if !sequencer.slots().is_empty() {
        claims["slots"] = sequencer.slots().into();
    }
    if let Some(principal) = sequencer.principal() {
        claims["sub"] = principal.into();
    }
    claims
}

#[test]
fn the_verifier_decides_every_vector() {
    let vectors = stored();
    let keys = Keys::parse(vectors.jwks.to_string().as_bytes()).unwrap();
    let check = Check::with(keys);
    let mut admitted = 0;
    for case in &vectors.cases {
        let decided = check.check(&case.sequencer, &case.resource, case.writes);
        let verdict = match &decided {
            Ok(_) => "admit",
            Err(bad) => bad.code().name(),
        };
        assert_eq!(verdict, case.verdict, "{}: {decided:?}", case.name);
        assert_eq!(
            decided.ok().as_ref().map(claims),
            case.claims,
            "{}",
            case.name
        );
        admitted += usize::from(case.verdict == "admit");
    }
    assert!(admitted >= 5 && vectors.cases.len() >= admitted + 40);
}

#[test]
fn a_set_of_keys_that_cannot_be_used_is_refused_with_the_reason() {
    let x = encoded([1; 32]);
    let one = format!(r#"{{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "{x}"}}"#);
    for (set, why) in [
        ("[]".to_owned(), "not a set of keys"),
        (format!(r#"{{"keys": [{one}]}}"#), "missing field `issuer`"),
        (
            r#"{"issuer": "a", "keys": []}"#.to_owned(),
            "no key for Ed25519",
        ),
        (
            r#"{"issuer": "a", "keys": [{"kty": "RSA", "kid": "k"}]}"#.to_owned(),
            "no key for Ed25519",
        ),
        (
            format!(r#"{{"issuer": "a", "keys": [{one}, {one}]}}"#),
            "two keys are called \"k\"",
        ),
        (
            format!(
                r#"{{"issuer": "a", "keys": [{}]}}"#,
                one.replace(&x, "AAAA")
            ),
            "is not 32 bytes",
        ),
        (format!(r#"{{"issuer": "", "keys": [{one}]}}"#), "issuer: "),
    ] {
        let said = Keys::parse(set.as_bytes()).unwrap_err().to_string();
        assert!(said.contains(why), "{set}: {said}");
    }
}

#[test]
fn keys_in_a_file_are_read_again_when_it_changes_and_a_bad_file_changes_nothing() {
    let vectors = stored();
    let right = &vectors.cases[0].sequencer;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let mut other = vectors.jwks.clone();
    other["keys"].as_array_mut().unwrap().remove(0);
    std::fs::write(&file, other.to_string()).unwrap();
    let check = Check::with_file(&file).unwrap();
    let said = check.check(right, "orders", true).unwrap_err().to_string();
    assert!(said.contains("names the key \"k1\""), "{said}");
    std::fs::write(&file, vectors.jwks.to_string()).unwrap();
    assert!(
        check.check(right, "orders", true).is_ok(),
        "a new key is known at once"
    );
    std::fs::write(&file, "{").unwrap();
    assert!(
        check.check(right, "orders", true).is_ok(),
        "the old ones stay"
    );
    std::fs::remove_file(&file).unwrap();
    assert!(
        check.check(right, "orders", true).is_ok(),
        "the old ones stay"
    );
    assert!(Check::with_file(&file).is_err());
}
