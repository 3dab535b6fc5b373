//! The requests of clients.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::field;
use crate::options::with_options;

with_options! {
    /// Asks for a lock.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(deny_unknown_fields)]
    pub struct AcquireBody {
        /// The client that asks. A second acquire with the same id, under another lease, takes the lock over: a restarted
        /// process gets its own lock back. 1 – 255 bytes of printable ASCII.
        #[serde(deserialize_with = "field::client_id::required")]
        #[schema(
            example = "worker-7f3a",
            min_length = 1,
            max_length = 255,
            pattern = "^[ -~]+$"
        )]
        pub client_id: String,
        /// How long the lease lasts without renewal, in milliseconds. Required unless `lock_token` names
        /// a lease.
        #[serde(
            default,
            deserialize_with = "field::lease_duration_ms::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(minimum = 100, maximum = 86_400_000, example = 10_000)]
        pub lease_duration_ms: Option<u64>,
        /// How long to wait in the lock's queue, in milliseconds; 0 or left out: try once.
        #[serde(
            default,
            deserialize_with = "field::wait_ms::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(minimum = 0, maximum = 86_400_000, example = 0)]
        pub wait_ms: Option<u64>,
        /// The longest that the caller goes without an answer while it waits, in milliseconds. Then the answer is `waiting`, and
        /// the request keeps its place for 2 s, in which it is asked again with the same `request_id`, which it needs.
        #[serde(
            default,
            deserialize_with = "field::poll_ms::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(minimum = 1_000, maximum = 60_000, example = 10_000)]
        pub poll_ms: Option<u64>,
        /// Puts the grant under this lease, which the client already has, instead of under a new one.
        #[serde(
            default,
            deserialize_with = "field::lock_token::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(pattern = "^[0-9a-fA-F]{32}$")]
        pub lock_token: Option<String>,
        /// Makes a retry recognisable: the same id gets the first answer. 32 hexadecimal digits or a
        /// UUID, new for each new wish.
        #[serde(
            default,
            deserialize_with = "field::request_id::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(pattern = "^([0-9a-fA-F]{32}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})$")]
        pub request_id: Option<String>,
        /// Shown with the holder; at most 256 bytes of UTF-8.
        #[serde(
            default,
            deserialize_with = "field::metadata::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(max_length = 256)]
        pub metadata: Option<String>,
        /// The mode of the grant; exclusive if left out.
        #[serde(
            default,
            deserialize_with = "field::mode::optional",
            skip_serializing_if = "Option::is_none"
        )]
        pub mode: Option<LockMode>,
        /// Asks for slots of a semaphore. `mode` is then left out, or `permits`.
        #[serde(
            default,
            deserialize_with = "field::permits::optional",
            skip_serializing_if = "Option::is_none"
        )]
        pub permits: Option<PermitsBody>,
        /// More locks to acquire together with this one: all or none, in one step, under one lease and one fencing token.
        /// Nothing is held while the request waits. Only exclusive grants, without options. Each is renewed and released by
        /// its own name.
        #[serde(
            default,
            deserialize_with = "field::also::optional",
            skip_serializing_if = "Option::is_none"
        )]
        #[schema(max_items = 63, value_type = Option<Vec<Name>>, example = json!(["account:8"]))]
        pub also: Option<Vec<String>>,
    }
}

/// The name of a lock: 1 – 255 bytes of printable ASCII.
#[derive(ToSchema)]
#[schema(min_length = 1, max_length = 255, pattern = "^[ -~]+$")]
pub struct Name(pub String);

/// Permits of a semaphore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PermitsBody {
    /// How many, all or none: at most `of`.
    #[serde(deserialize_with = "field::count::required")]
    #[schema(minimum = 1, maximum = 64, example = 1)]
    pub count: u64,
    /// How many the semaphore has. While it is in use, everybody asks with the same number.
    #[serde(deserialize_with = "field::of::required")]
    #[schema(minimum = 1, maximum = 64, example = 5)]
    pub of: u64,
}

/// Opens a lock that is closed after its last grant: an operator's call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenBody {
    /// Why; the audit file has it. At most 256 bytes of UTF-8.
    #[serde(
        default,
        deserialize_with = "field::reason::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(max_length = 256)]
    pub reason: Option<String>,
}

/// Gives a semaphore another number of permits: an operator's call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeBody {
    /// How many it has from now on.
    #[serde(deserialize_with = "field::of::required")]
    #[schema(minimum = 1, maximum = 64, example = 3)]
    pub of: u64,
}

/// The mode of a grant: the other requests that it excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LockMode {
    /// Excludes everybody: a writer.
    Exclusive,
    /// Excludes writers: a reader among others.
    Shared,
    /// Excludes writers, and others in this mode: a reader that may become the writer.
    Update,
    /// Excludes everybody, and replaces the grant in mode `update` that the lease of `lock_token` has. It goes ahead of the
    /// queue and waits only for the other readers; if it is not granted, the lease keeps its grant.
    Upgrade,
    /// Excludes requests that find no free slot: permits of a semaphore.
    Permits,
}

/// A leader's new value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProclaimBody {
    /// The lease's secret key, from the acquire.
    #[serde(deserialize_with = "field::lock_token::required")]
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    pub lock_token: String,
    /// The grant's token. With it a late repeat can never touch a later grant.
    #[serde(
        default,
        deserialize_with = "field::fencing_token::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: Option<u64>,
    /// Takes the place of the holder's `metadata`; at most 256 bytes of UTF-8. Empty: nothing.
    #[serde(deserialize_with = "field::value::required")]
    #[schema(max_length = 256, example = "10.0.0.7:5432")]
    pub value: String,
}

/// Extends the lease that a grant is under.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// The lease's secret key, from the acquire.
    #[serde(deserialize_with = "field::lock_token::required")]
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    pub lock_token: String,
    /// The grant's number: its `fencing_token`, or its `grant_id` if it is shared. With it, a late repeat can never
    /// touch a later grant.
    #[serde(
        default,
        deserialize_with = "field::fencing_token::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: Option<u64>,
    /// A new time to live in milliseconds; left out, the lease keeps its own.
    #[serde(
        default,
        deserialize_with = "field::lease_duration_ms::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 100, maximum = 86_400_000)]
    pub lease_duration_ms: Option<u64>,
}

/// Gives a lock up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseBody {
    /// The lease's secret key, from the acquire.
    #[serde(deserialize_with = "field::lock_token::required")]
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    pub lock_token: String,
    /// The grant's number: its `fencing_token`, or its `grant_id` if it is shared. With it, a late repeat can never
    /// touch a later grant.
    #[serde(
        default,
        deserialize_with = "field::fencing_token::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: Option<u64>,
}

/// Asks for the signed form of a grant's fencing token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SequencerBody {
    /// The lease's secret key, from the acquire.
    #[serde(deserialize_with = "field::lock_token::required")]
    #[schema(pattern = "^[0-9a-fA-F]{32}$")]
    pub lock_token: String,
    /// The grant's number: its `fencing_token`, or its `grant_id` if it is shared.
    #[serde(
        default,
        deserialize_with = "field::fencing_token::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: Option<u64>,
}

/// Takes a lock away from its holder: an operator's call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakBody {
    /// The grant's number, its token or its `grant_id` if it is shared: proof that the operator looked.
    #[serde(deserialize_with = "field::fencing_token::required")]
    #[schema(minimum = 1, maximum = 9_007_199_254_740_991_i64)]
    pub fencing_token: u64,
    /// Why; watchers see it. At most 256 bytes of UTF-8.
    #[serde(
        default,
        deserialize_with = "field::reason::optional",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(max_length = 256)]
    pub reason: Option<String>,
}

/// Moves a manual clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdvanceBody {
    /// How far, in milliseconds; at most 365 days in one step.
    #[serde(deserialize_with = "field::ms::required")]
    #[schema(minimum = 1, maximum = 31_536_000_000_i64)]
    pub ms: u64,
}

/// A body, or parameters, with nothing in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

#[cfg(test)]
mod tests {
    use super::super::{MAX_FENCING_TOKEN, Object};
    use super::*;

    fn complaint<T: serde::de::DeserializeOwned + std::fmt::Debug>(body: &str) -> String {
        serde_json::from_str::<T>(body).unwrap_err().to_string()
    }

    #[test]
    fn the_body_of_the_contract_is_read() {
        let body = r#"{"client_id": "a", "lease_duration_ms": 10000, "wait_ms": 0}"#;
        let read: AcquireBody = serde_json::from_str(body).unwrap();
        assert_eq!(read.client_id, "a");
        assert_eq!(
            (read.lease_duration_ms, read.wait_ms),
            (Some(10_000), Some(0))
        );
    }

    #[test]
    fn null_is_the_same_as_left_out() {
        let body = r#"{"client_id": "a", "lock_token": null, "wait_ms": null, "metadata": null}"#;
        let read: AcquireBody = serde_json::from_str(body).unwrap();
        assert_eq!(
            read,
            AcquireBody {
                client_id: "a".into(),
                ..AcquireBody::default()
            }
        );
    }

    #[test]
    fn a_wrong_integer_is_named_with_its_range() {
        for wrong in [
            "\"10\"",
            "-1",
            "-1.0",
            "1.5",
            "9007199254740992.0",
            "1e30",
            "1000000000000000000000000000000",
            "true",
            "[]",
        ] {
            let body = format!(r#"{{"client_id": "a", "lease_duration_ms": {wrong}}}"#);
            let message = complaint::<AcquireBody>(&body);
            let start = "lease_duration_ms must be an integer in 100 ..= 86400000, not ";
            assert!(message.starts_with(start), "{wrong}: {message}");
        }
    }

    #[test]
    fn a_whole_number_is_an_integer_however_it_is_written() {
        for (text, number) in [
            ("10", 10),
            ("10.0", 10),
            ("1e1", 10),
            ("-0.0", 0),
            ("9007199254740991.0", MAX_FENCING_TOKEN),
        ] {
            let read: AdvanceBody = serde_json::from_str(&format!(r#"{{"ms": {text}}}"#)).unwrap();
            assert_eq!(read.ms, number, "{text}");
        }
    }

    #[test]
    fn an_array_is_no_body() {
        let array = r#"["00000000000000000000000000000000", null, null]"#;
        let message = complaint::<Object<RenewBody>>(array);
        assert!(message.contains("expected a JSON object"), "{message}");
        let control: RenewBody = serde_json::from_str(array).unwrap();
        assert_eq!(
            control.lock_token,
            "00".repeat(16),
            "by itself serde takes it"
        );
        let doubled = complaint::<Object<AdvanceBody>>(r#"{"ms": 1, "m\u0073": 2}"#);
        assert!(doubled.contains("duplicate field `ms`"), "{doubled}");
    }

    #[test]
    fn unknown_missing_and_doubled_fields_are_named() {
        let unknown = complaint::<AcquireBody>(r#"{"client_id": "a", "ttl": 5}"#);
        assert!(unknown.contains("unknown field `ttl`"), "{unknown}");
        let missing = complaint::<RenewBody>("{}");
        assert!(missing.contains("missing field `lock_token`"), "{missing}");
        let null = complaint::<RenewBody>(r#"{"lock_token": null}"#);
        assert!(
            null.starts_with("lock_token must be a string of 32"),
            "{null}"
        );
        let doubled = complaint::<AdvanceBody>(r#"{"ms": 1, "ms": 2}"#);
        assert!(doubled.contains("duplicate field `ms`"), "{doubled}");
    }

    #[test]
    fn a_request_that_was_written_is_read_the_same() {
        let body = RenewBody {
            lock_token: "00".repeat(16),
            fencing_token: Some(7),
            lease_duration_ms: None,
        };
        let text = serde_json::to_string(&body).unwrap();
        assert_eq!(
            text,
            format!(
                r#"{{"lock_token":"{}","fencing_token":7}}"#,
                "00".repeat(16)
            )
        );
        assert_eq!(serde_json::from_str::<RenewBody>(&text).unwrap(), body);
    }
}
