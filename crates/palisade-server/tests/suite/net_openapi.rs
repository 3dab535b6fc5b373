//! The OpenAPI document says what is enforced: its bounds are the core's, and the server keeps them.

use crate::net_support::Server;
use palisade_core::{GrantOption, Token, Ttl, limits};
use palisade_proto::json::{LIST_LIMIT, MAX_ADVANCE_MS, POLL_MS};
use serde_json::{Value, json};

const REQUEST_ID: &str = "^([0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$";

/// Every body that is sent, the path that takes it, and one that is right.
fn bodies(key: &str) -> [(&'static str, &'static str, Value); 9] {
    [
        (
            "AcquireBody",
            "/v1/locks/x/acquire",
            json!({"client_id": "a", "lease_duration_ms": 10_000}),
        ),
        ("RenewBody", "/v1/locks/x/renew", json!({"lock_token": key})),
        (
            "SequencerBody",
            "/v1/locks/x/sequencer",
            json!({"lock_token": key}),
        ),
        (
            "ProclaimBody",
            "/v1/locks/x/proclaim",
            json!({"lock_token": key, "value": "here"}),
        ),
        (
            "ReleaseBody",
            "/v1/locks/x/release",
            json!({"lock_token": key}),
        ),
        (
            "BreakBody",
            "/v1/locks/x/break",
            json!({"fencing_token": 1}),
        ),
        // Nobody uses this lock, so a number within the bounds is refused for that.
        ("ResizeBody", "/v1/locks/unused/permits", json!({"of": 2})),
        ("AdvanceBody", "/v1/clock/advance", json!({"ms": 1})),
        (
            "RejectionBody",
            "/v1/locks/x/rejections",
            json!({"fencing_token": 1, "resource": "orders", "highest": 2, "operation": "PUT"}),
        ),
    ]
}

async fn document(server: &Server) -> Value {
    server.get("/openapi.json").await.json()
}

fn bounds(schema: &Value) -> Value {
    let names = [
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "maxItems",
        "pattern",
    ];
    let found = names.iter().filter(|name| !schema[**name].is_null());
    found
        .map(|name| ((*name).to_owned(), schema[*name].clone()))
        .collect()
}

#[tokio::test]
async fn the_documents_bounds_are_the_cores() {
    let server = Server::start().await;
    let document = document(&server).await;
    let name = json!({"minLength": 1, "maxLength": limits::NAME_BYTES, "pattern": "^[ -~]+$"});
    let ttl = json!({"minimum": Ttl::MIN.as_millis(), "maximum": Ttl::MAX.as_millis()});
    let token = json!({"minimum": 1, "maximum": Token::MAX.get()});
    let key = json!({"pattern": "^[0-9a-fA-F]{32}$"});
    let option = |field: &str| GrantOption::all().find(|option| option.field() == field);
    let expected = |field: &str| match field {
        _ if option(field).is_some() => {
            json!({"minimum": 0, "maximum": option(field).map(GrantOption::most)})
        }
        "client_id" => name.clone(),
        "lease_duration_ms" => ttl.clone(),
        "wait_ms" => json!({"minimum": 0, "maximum": limits::MAX_WAIT.as_millis()}),
        "poll_ms" => json!({"minimum": POLL_MS.start(), "maximum": POLL_MS.end()}),
        "lock_token" => key.clone(),
        "fencing_token" | "highest" => token.clone(),
        "resource" => json!({"minLength": 1, "maxLength": 255}),
        "operation" => json!({"maxLength": 255}),
        "request_id" => json!({"pattern": REQUEST_ID}),
        "metadata" | "value" => json!({"maxLength": limits::METADATA_BYTES}),
        "reason" => json!({"maxLength": limits::REASON_BYTES}),
        "ms" => json!({"minimum": 1, "maximum": MAX_ADVANCE_MS}),
        // One of the names of its type.
        "mode" => json!({}),
        // An object, whose fields have bounds.
        "permits" => json!({}),
        "also" => json!({"maxItems": limits::SET_LOCKS - 1}),
        "count" | "of" => json!({"minimum": 1, "maximum": limits::PERMITS}),
        other => panic!("{other} is new: say what bounds it has"),
    };
    let schemas = &document["components"]["schemas"];
    let asked = bodies("").map(|(body, _, _)| body).into_iter();
    assert_eq!(bounds(&schemas["Name"]), name);
    for body in asked.chain(["PermitsBody"]) {
        for (field, schema) in schemas[body]["properties"].as_object().unwrap() {
            assert_eq!(bounds(schema), expected(field), "{body}.{field}");
        }
        assert_eq!(schemas[body]["additionalProperties"], false, "{body}");
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for parameter in item.as_object().unwrap().values().flat_map(|operation| {
            operation["parameters"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        }) {
            let bounds = bounds(&parameter["schema"]);
            let expected = match parameter["name"].as_str().unwrap() {
                "resource_id" if path.ends_with("/permits") => {
                    json!({"minLength": 1, "maxLength": limits::SEMAPHORE_NAME_BYTES, "pattern": "^[ -~]+$"})
                }
                "resource_id" => name.clone(),
                "request_id" => json!({"pattern": REQUEST_ID}),
                "limit" => json!({"minimum": 1, "maximum": LIST_LIMIT.0}),
                "cursor" if path == "/v1/history" => continue,
                "cursor" => json!({"pattern": "^a[0-9a-fA-F]{16}$"}),
                "prefix" if path == "/v1/locks" => {
                    json!({"maxLength": limits::NAME_BYTES, "pattern": "^[ -~]*$"})
                }
                _ => continue,
            };
            assert_eq!(bounds, expected, "{path} {}", parameter["name"]);
        }
    }
    // In answers too, a token has its range, and no member is a constant.
    for (name, schema) in schemas.as_object().unwrap() {
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            assert_eq!(
                (&schema["const"], &schema["enum"]),
                (&Value::Null, &Value::Null),
                "{name}.{field}"
            );
            if ["fencing_token", "next_token", "highest"].contains(&field.as_str()) {
                assert_eq!(bounds(schema), token, "{name}.{field}");
            }
        }
    }
}

/// Values at a bound, and whether they are within.
fn at_the_bounds(schema: &Value) -> Vec<(Value, bool)> {
    let number = |name: &str| schema[name].as_u64();
    let text = |length: u64| json!("a".repeat(usize::try_from(length).unwrap()));
    let mut values = Vec::new();
    if let Some(least) = number("minimum") {
        values.push((json!(least), true));
        values.push((json!(i64::try_from(least).unwrap() - 1), false));
    }
    if let Some(most) = number("maximum") {
        values.extend([(json!(most), true), (json!(most + 1), false)]);
    }
    if let Some(least) = number("minLength") {
        values.extend([(text(least), true), (text(least - 1), false)]);
    }
    if let Some(most) = number("maxLength") {
        values.extend([(text(most), true), (text(most + 1), false)]);
    }
    let hex = "0123456789abcdefABCDEF0123456789";
    match schema["pattern"].as_str() {
        None => {}
        Some("^[ -~]+$") => {
            values.extend([
                (json!(" ~"), true),
                (json!("\u{7f}"), false),
                (json!("a\n"), false),
            ]);
        }
        Some("^[0-9a-fA-F]{32}$") => {
            values.extend([(json!(hex), true), (json!(format!("{hex}\n")), false)]);
            values.extend([
                (json!(hex[1..]), false),
                (json!(hex.replace('0', "g")), false),
            ]);
        }
        Some(REQUEST_ID) => {
            let uuid = "01234567-89ab-cdef-ABCD-EF0123456789";
            values.extend([(json!(hex), true), (json!(uuid), true)]);
            values.extend([(json!(uuid.replace("-A", "A-")), false), (json!(""), false)]);
            values.push((json!(hex[1..]), false));
        }
        Some(other) => panic!("{other} is new: say what it takes"),
    }
    values
}

#[tokio::test]
async fn what_the_document_bounds_the_server_refuses_beyond_and_takes_within() {
    let server = Server::start().await;
    let (key, _) = server.lock("held", "a").await;
    let document = document(&server).await;
    let mut tried = 0;
    for (body, path, right) in bodies(&key) {
        let schema = &document["components"]["schemas"][body];
        for (field, schema) in schema["properties"].as_object().unwrap() {
            for (value, within) in at_the_bounds(schema) {
                let mut sent = right.clone();
                sent[field] = value.clone();
                if field == "poll_ms" {
                    // The schema cannot say that it needs one.
                    sent["request_id"] = json!("0".repeat(32));
                }
                let answer = server.post(path, &sent.to_string()).await;
                let refused = (answer.status, answer.body.contains(r#""code":"invalid""#));
                assert_eq!(
                    refused == (400, true),
                    !within,
                    "{body}.{field} {value}: {}",
                    answer.body
                );
                assert_eq!(
                    refused.0 == 400,
                    !within,
                    "{body}.{field} {value}: {}",
                    answer.body
                );
                tried += 1;
            }
        }
        let missing = schema["required"].as_array().unwrap();
        for field in missing {
            let mut sent = right.clone();
            sent.as_object_mut()
                .unwrap()
                .remove(field.as_str().unwrap());
            assert_eq!(
                server.post(path, &sent.to_string()).await.status,
                400,
                "{body}.{field}"
            );
        }
    }
    assert!(tried > 50, "control: {tried} values were tried");
}

/// The names of the schemas that a part of the document refers to.
fn referred(part: &Value, names: &mut Vec<String>) {
    match part {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                names.push(name.rsplit('/').next().unwrap_or_default().to_owned());
            }
            fields.values().for_each(|part| referred(part, names));
        }
        Value::Array(parts) => parts.iter().for_each(|part| referred(part, names)),
        _ => {}
    }
}

/// The fields of a schema, also of those that it is made of.
fn fields(schema: &Value) -> Vec<&str> {
    let own = schema["properties"].as_object().into_iter().flatten();
    let mut names: Vec<&str> = own.map(|(name, _)| &**name).collect();
    for made_of in ["allOf", "oneOf", "anyOf"] {
        let parts = schema[made_of].as_array().into_iter().flatten();
        names.extend(parts.flat_map(fields));
    }
    names
}

/// The fields of answers that a page does not name, as code or in an example.
fn unnamed(document: &Value, page: &str) -> Vec<String> {
    let mut reached = Vec::new();
    for methods in document["paths"].as_object().unwrap().values() {
        for operation in methods.as_object().unwrap().values() {
            referred(&operation["responses"], &mut reached);
        }
    }
    let mut at = 0;
    while let Some(name) = reached.get(at).cloned() {
        let mut next = Vec::new();
        referred(&document["components"]["schemas"][&name], &mut next);
        next.retain(|name| !reached.contains(name));
        reached.extend(next);
        at += 1;
    }
    assert!(reached.len() > 20, "{reached:?}");
    let named = |field: &str| {
        page.contains(&format!("`{field}`")) || page.contains(&format!("\"{field}\""))
    };
    let all = reached.iter().flat_map(|schema| {
        let fields = fields(&document["components"]["schemas"][schema]);
        fields.into_iter().map(move |field| (schema, field))
    });
    let mut missing: Vec<String> = all
        .filter(|(_, field)| !named(field))
        .map(|(schema, field)| format!("{schema}.{field}"))
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

#[tokio::test]
async fn the_protocol_names_every_field_of_every_answer() {
    let server = Server::start().await;
    let document = document(&server).await;
    let page = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/reference/protocol.md"
    );
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(unnamed(&document, &page), [""; 0]);
    // Control: the page as it was before it named this one.
    let before = page.replace("`extensions`", "");
    assert_eq!(unnamed(&document, &before), ["LockReply.extensions"]);
}
