//! The description of a lock. Terraform sends it, and prints it when somebody else has the lock.

use palisade_core::{ClientId, Holder};
use palisade_fence::http::Problem;
use serde_json::{Map, Value, json};

use crate::cli::shell_word;

/// The description of a lock, as Terraform wrote it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Info {
    pub(super) id: String,
    fields: Map<String, Value>,
}

impl Info {
    /// Reads the body of a `LOCK` or an `UNLOCK`.
    pub(super) fn parse(body: &[u8]) -> Result<Info, Problem> {
        if body.len() > BYTES {
            let message = format!(
                "the description of a lock has {} bytes; {BYTES} are allowed",
                body.len()
            );
            return Err(Problem::invalid(message));
        }
        let wrong = || {
            Problem::invalid(
                "the body must be a JSON object with the lock's ID, as Terraform sends it",
            )
        };
        let fields: Map<String, Value> = serde_json::from_slice(body).map_err(|_| wrong())?;
        let id = fields.get("ID").and_then(Value::as_str).unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_graphic();
        if !(1..=128).contains(&id.len()) || !id.bytes().all(plain) {
            return Err(wrong());
        }
        Ok(Info {
            id: id.to_owned(),
            fields,
        })
    }

    /// As it is stored.
    pub(super) fn to_value(&self) -> Value {
        Value::Object(self.fields.clone())
    }

    /// A plan only reads the state, and plans run beside each other.
    pub(super) fn is_plan(&self) -> bool {
        self.text("Operation") == "OperationTypePlan"
    }

    /// The caller in Terraform's words, `user@host`.
    pub(super) fn who(&self) -> &str {
        match self.text("Who") {
            "" => "terraform",
            who => who,
        }
    }

    /// The client at the authority. Each lock ID is a client of its own: two runs of one user must never take over each
    /// other's lock, as two requests of one client do.
    pub(super) fn client(&self) -> String {
        let both = format!("{} {}", self.who(), self.id);
        match ClientId::new(&both) {
            Ok(_) => both,
            Err(_) => self.id.clone(),
        }
    }

    /// The metadata that listings show with the lock.
    pub(super) fn metadata(&self) -> String {
        let operation = self.text("Operation");
        let operation = operation.strip_prefix("OperationType").unwrap_or(operation);
        let plain: String = operation
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .take(32)
            .collect();
        format!("terraform {}", plain.to_ascii_lowercase())
    }

    fn text(&self, name: &str) -> &str {
        self.fields
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// The description of a lock that was not acquired through this server.
pub(super) fn of_another(lock: &str, holder: &Holder) -> Value {
    json!({
        "ID": format!("fencing token {}", holder.token),
        "Operation": "held outside of Terraform",
        "Info": format!("see `palisade show {}`", shell_word(lock)),
        "Who": holder.client.as_str(),
        "Version": "", "Created": "", "Path": lock,
    })
}

/// The description of a lock that nobody has, and that cannot be had.
pub(super) fn of_nobody(lock: &str, why: &str) -> Value {
    json!({ "ID": "none", "Operation": "", "Info": why, "Who": "", "Version": "", "Created": "", "Path": lock })
}

/// The longest description.
const BYTES: usize = 16 << 10;
