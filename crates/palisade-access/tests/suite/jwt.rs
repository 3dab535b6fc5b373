//! JWTs: the ones that are accepted, and the errors for the others.

use std::fs;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use palisade_access::{Access, Bearer, Credential, Unknown, file};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const RULES: &str = r#"[auth]
[[auth.issuers]]
issuer = "https://cluster"
audience = "palisade"
keys = "jwks.json"
[[auth.issuers]]
issuer = "joe"
audience = "palisade"
keys = "rsa.json"
[[auth.principals]]
name = "billing"
issuer = "https://cluster"
subjects = ["system:serviceaccount:prod:billing"]
"#;

/// RFC 7515, A.2: a key, and the token that it signed.
const RSA_N: &str = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
const RSA_TOKEN: &str = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";

/// An issuer with two keys, `ed` and `ec`.
struct Issuer {
    ed: Ed25519KeyPair,
    ec: EcdsaKeyPair,
    random: SystemRandom,
}

impl Issuer {
    fn new() -> Issuer {
        let random = SystemRandom::new();
        let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let (kind, ec) = (&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(kind, ec).unwrap();
        Issuer {
            ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
            ec: EcdsaKeyPair::from_pkcs8(kind, pkcs8.as_ref(), ec).unwrap(),
            random,
        }
    }

    fn keys(&self) -> Value {
        let point = &self.ec.public_key().as_ref()[1..];
        let (x, y) = point.split_at(32);
        json!({"keys": [
            {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": BASE64.encode(self.ed.public_key())},
            {"kty": "EC", "crv": "P-256", "kid": "ec", "alg": "ES256", "use": "sig",
                "x": BASE64.encode(x), "y": BASE64.encode(y)},
            // Of other kinds and uses: left out.
            {"kty": "oct", "kid": "secret", "k": "AAAA"},
            {"kty": "OKP", "crv": "Ed25519", "kid": "sealing", "use": "enc", "x": ""},
        ]})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let encode = |value: &Value| BASE64.encode(value.to_string());
        let signed = format!("{}.{}", encode(header), encode(claims));
        let signature = match header["kid"].as_str() {
            Some("ec") => self
                .ec
                .sign(&self.random, signed.as_bytes())
                .unwrap()
                .as_ref()
                .to_vec(),
            _ => self.ed.sign(signed.as_bytes()).as_ref().to_vec(),
        };
        format!("{signed}.{}", BASE64.encode(signature))
    }
}

const NOW: u64 = 1_800_000_000;

fn claims() -> Value {
    json!({
        "iss": "https://cluster", "aud": ["other", "palisade"], "exp": NOW + 60, "nbf": NOW - 60,
        "sub": "system:serviceaccount:prod:billing", "kubernetes.io": {"namespace": "prod"},
    })
}

fn ed() -> Value {
    json!({"alg": "EdDSA", "kid": "ed", "typ": "JWT"})
}

/// An object with other members; `null` removes one.
fn with(mut object: Value, members: Value) -> Value {
    for (name, value) in members.as_object().unwrap() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(name)),
            value => object[name] = value.clone(),
        }
    }
    object
}

fn server(issuer: &Issuer) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let rsa = json!({"keys": [{"kty": "RSA", "n": RSA_N, "e": "AQAB"}]});
    fs::write(dir.path().join("rsa.json"), rsa.to_string()).unwrap();
    fs::write(dir.path().join("jwks.json"), issuer.keys().to_string()).unwrap();
    let path = dir.path().join("access.toml");
    fs::write(&path, RULES).unwrap();
    (dir, path)
}

fn credential(access: &Access, text: &str) -> Result<Credential, Unknown> {
    Ok(Credential {
        token: Some(access.bearer(text)?),
        ..Credential::default()
    })
}

/// The name of the caller with this token at an instant, or the error.
fn who_at(access: &Access, text: &str, now: u64) -> String {
    let known = credential(access, text).and_then(|shown| access.identify(&shown, now));
    match known {
        Ok(principal) => principal.name().to_owned(),
        Err(unknown) => unknown.to_string(),
    }
}

#[test]
fn a_jwt_is_believed_if_everything_is_right_and_told_what_is_not() {
    let issuer = Issuer::new();
    let (_dir, path) = server(&issuer);
    let access = file::read(&path).unwrap();
    let right = issuer.sign(&ed(), &claims());
    let ec = json!({"alg": "ES256", "kid": "ec"});
    for believed in [
        right.clone(),
        issuer.sign(&ec, &claims()),
        issuer.sign(&ed(), &with(claims(), json!({"aud": "palisade"}))),
        issuer.sign(&ed(), &with(claims(), json!({"nbf": null}))),
        issuer.sign(&ed(), &with(claims(), json!({"exp": NOW as f64 + 60.5}))),
        issuer.sign(&ed(), &with(claims(), json!({"exp": NOW - 29}))),
        issuer.sign(&ed(), &with(claims(), json!({"nbf": NOW + 30}))),
    ] {
        assert_eq!(who_at(&access, &believed, NOW), "billing", "{believed}");
    }

    let of = |claim: Value| issuer.sign(&ed(), &with(claims(), claim));
    let head = |header: Value| issuer.sign(&with(ed(), header), &claims());
    let (signed, signature) = right.rsplit_once('.').unwrap();
    let (header, _) = right.split_once('.').unwrap();
    let other = of(json!({"sub": "system:serviceaccount:prod:admin"}));
    let moved = format!("{header}.{}.{signature}", other.split('.').nth(1).unwrap());
    let hmac = BASE64.encode(json!({"alg": "HS256", "kid": "ed"}).to_string());
    let hmac = right.replacen(header, &hmac, 1);
    for (token, expected) in [
        (
            of(json!({"iss": "https://elsewhere"})),
            "of the issuer \"https://elsewhere\"",
        ),
        (
            of(json!({"aud": "other"})),
            "is for the audience \"other\", and this server is palisade",
        ),
        (of(json!({"aud": null})), "is for the audience \"\""),
        (of(json!({"exp": null})), "does not say when it expires"),
        (of(json!({"exp": "4000000000"})), "malformed"),
        (of(json!({"exp": -1})), "exp or nbf is no date"),
        (of(json!({"nbf": "soon"})), "malformed"),
        (
            of(json!({"exp": NOW - 30})),
            "expired at 2027-01-15T07:59:30Z, and by this server's clock it is 2027-01-15T08:00:00Z: send a new one",
        ),
        (
            of(json!({"nbf": NOW + 31})),
            "is not valid before 2027-01-15T08:00:31Z",
        ),
        (of(json!({"sub": null})), "names no subject"),
        (
            of(json!({"sub": "system:serviceaccount:prod:admin"})),
            "no principal has the subject \"system:serviceaccount:prod:admin\"",
        ),
        (
            head(json!({"alg": "ES256"})),
            "its algorithm is \"ES256\", and its key is for EdDSA",
        ),
        (head(json!({"alg": "none"})), "its algorithm is \"none\""),
        (
            format!(
                "{}.",
                head(json!({"alg": "none"})).rsplit_once('.').unwrap().0
            ),
            "its algorithm is \"none\"",
        ),
        (hmac, "its algorithm is \"HS256\""),
        (
            head(json!({"kid": "old"})),
            "the key \"old\", which the server's key set \"jwks.json\" does not have",
        ),
        (head(json!({"kid": "secret"})), "the key \"secret\""),
        (head(json!({"kid": null})), "names no key (kid)"),
        (head(json!({"crit": ["exp"]})), "critical header members"),
        (
            head(json!({"crit": null, "b64": false, "alg": null})),
            "malformed",
        ),
        (moved, "signature is wrong"),
        (
            format!("{signed}.{}", BASE64.encode([7; 64])),
            "signature is wrong",
        ),
        (Issuer::new().sign(&ed(), &claims()), "signature is wrong"),
        (right[..right.len() - 1].to_owned(), "malformed"),
        (signed.to_owned(), "does not have three parts"),
        (format!("{right}.x"), "does not have three parts"),
        (format!("{right}="), "is not base64url"),
        ("a.b.c".to_owned(), "malformed"),
        (
            format!("{right}{}", "A".repeat(8_192)),
            "and at most 8192 are taken",
        ),
        ("pal_x".to_owned(), "not a token"),
    ] {
        let said = who_at(&access, &token, NOW);
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(!said.contains(signature), "{said}");
    }
    // Without issuers nothing is a JWT.
    let said = who_at(&Access::parse("[auth]\n").unwrap(), &right, NOW);
    assert!(said.contains("not a token"), "{said}");
}

#[test]
fn rsa_is_checked_by_the_example_of_its_standard() {
    let (_dir, path) = server(&Issuer::new());
    let access = file::read(&path).unwrap();
    // Its signature is right, which is looked at before the audience.
    let said = who_at(&access, RSA_TOKEN, NOW);
    assert!(said.contains("is for the audience \"\""), "{said}");
    let changed = RSA_TOKEN.replace("Rw", "RA");
    let said = who_at(&access, &changed, NOW);
    assert!(said.contains("signature is wrong"), "{said}");
}

#[test]
fn what_was_verified_is_refused_when_it_expires_or_its_key_its_audience_or_its_subject_is_withdrawn()
 {
    let issuer = Issuer::new();
    let (dir, path) = server(&issuer);
    let access = file::read(&path).unwrap();
    let shown = credential(&access, &issuer.sign(&ed(), &claims())).unwrap();
    let says = |access: &Access, now| match access.identify(&shown, now) {
        Ok(principal) => principal.name().to_owned(),
        Err(unknown) => unknown.to_string(),
    };
    assert!(matches!(shown.token, Some(Bearer::Jwt(_))));
    assert_eq!(says(&access, NOW + 89), "billing");
    assert!(says(&access, NOW + 90).contains("expired at"));
    // The clock goes back: it is valid again.
    assert_eq!(says(&access, NOW), "billing");

    for (old, new, expected) in [
        (
            "audience = \"palisade\"",
            "audience = \"p\"",
            "no longer in force",
        ),
        ("prod:billing", "prod:b", "no principal has the subject"),
    ] {
        fs::write(&path, RULES.replace(old, new)).unwrap();
        let said = says(&file::read(&path).unwrap(), NOW);
        assert!(said.contains(expected), "{said}");
    }
    fs::write(&path, RULES).unwrap();
    let mut keys = issuer.keys();
    keys["keys"].as_array_mut().unwrap().remove(0);
    fs::write(dir.path().join("jwks.json"), keys.to_string()).unwrap();
    let said = says(&file::read(&path).unwrap(), NOW);
    assert!(said.contains("no longer in force"), "{said}");
}

#[test]
fn a_key_set_is_read_again_and_one_with_a_mistake_is_named() {
    let (old, new) = (Issuer::new(), Issuer::new());
    let (dir, path) = server(&old);
    let access = file::read(&path).unwrap();
    assert!(file::with_new_keys(&path, &access).unwrap().is_none());
    let stamps = file::key_stamps(&path, &access);
    let jwks = dir.path().join("jwks.json");
    for (text, expected) in [
        ("", "not a JWK set"),
        ("{}", "missing field `keys`"),
        (r#"{"keys": []}"#, "it has no key for"),
        (
            r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "AA"}]}"#,
            "x of the key \"k\" needs 32 bytes",
        ),
        (
            r#"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "k", "x": "AA"}]}"#,
            "y of the key \"k\" is not base64url",
        ),
        (
            r#"{"keys": [{"kty": "RSA", "kid": "k", "n": "AA", "e": "AQAB"}]}"#,
            "2048 to 8192 bits",
        ),
    ] {
        fs::write(&jwks, text).unwrap();
        let said = file::with_new_keys(&path, &access).unwrap_err().to_string();
        assert!(
            said.contains("jwks.json") && said.contains(expected),
            "{said}"
        );
    }
    let twice = new.keys()["keys"][0].clone();
    fs::write(&jwks, json!({"keys": [twice, twice]}).to_string()).unwrap();
    let said = file::read(&path).unwrap_err().to_string();
    assert!(said.contains("two keys are called \"ed\""), "{said}");
    fs::remove_file(&jwks).unwrap();
    let said = file::read(&path).unwrap_err().to_string();
    assert!(said.contains("jwks.json"), "{said}");

    fs::write(&jwks, new.keys().to_string()).unwrap();
    assert_ne!(file::key_stamps(&path, &access), stamps);
    let access = file::with_new_keys(&path, &access).unwrap().unwrap();
    assert_eq!(who_at(&access, &new.sign(&ed(), &claims()), NOW), "billing");
    let said = who_at(&access, &old.sign(&ed(), &claims()), NOW);
    assert!(said.contains("signature is wrong"), "{said}");
}
