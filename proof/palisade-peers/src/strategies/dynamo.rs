//! A counter in a DynamoDB item, through the interface's plain JSON. moto accepts any signature.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::counter::Written;
use crate::lane::Error;

pub(super) struct Item {
    port: u16,
    table: String,
}

impl Item {
    pub(super) async fn create(port: u16, table: &str) -> Result<(), Error> {
        let item = Item::connect(port, table);
        let schema = json!({
            "TableName": table,
            "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
            "BillingMode": "PAY_PER_REQUEST",
        });
        item.call("CreateTable", &schema).await?;
        let put = json!({"TableName": table, "Item": values(0, 0)});
        item.call("PutItem", &put).await?;
        Ok(())
    }

    pub(super) fn connect(port: u16, table: &str) -> Item {
        Item {
            port,
            table: table.to_owned(),
        }
    }

    /// The version and the total.
    pub(super) async fn read(&self) -> Result<(u64, u64), Error> {
        let get = json!({
            "TableName": self.table,
            "Key": {"id": {"S": "counter"}},
            "ConsistentRead": true,
        });
        let (_, answer) = self.call("GetItem", &get).await?;
        let number = |name: &str| -> Result<u64, Error> {
            let text = answer["Item"][name]["N"].as_str().ok_or("no such item")?;
            Ok(text.parse()?)
        };
        Ok((number("version")?, number("total")?))
    }

    /// Writes if the version has not changed since the read.
    pub(super) async fn write(&self, version: u64, total: u64) -> Result<Written, Error> {
        let put = json!({
            "TableName": self.table,
            "Item": values(version + 1, total),
            "ConditionExpression": "version = :read",
            "ExpressionAttributeValues": {":read": {"N": version.to_string()}},
        });
        let (status, answer) = self.call("PutItem", &put).await?;
        match status {
            200 => Ok(Written::Acknowledged),
            400 if answer.to_string().contains("ConditionalCheckFailed") => Ok(Written::Rejected),
            other => Err(format!("{other}: {answer}").into()),
        }
    }

    async fn call(&self, operation: &str, body: &Value) -> Result<(u16, Value), Error> {
        let body = body.to_string();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\
             Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: DynamoDB_20120810.{operation}\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/dynamodb/aws4_request, \
             SignedHeaders=host, Signature=0\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }
}

fn values(version: u64, total: u64) -> Value {
    json!({
        "id": {"S": "counter"},
        "version": {"N": version.to_string()},
        "total": {"N": total.to_string()},
    })
}
