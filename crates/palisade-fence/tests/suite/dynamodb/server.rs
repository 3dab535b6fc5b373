//! A client of the DynamoDB that `moto` serves, and a record of its requests.

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, ConfigBag, Credentials, Intercept, Region, RuntimeComponents,
};
use aws_sdk_dynamodb::error::BoxError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use palisade_testbed::Moto;

/// Every request that was sent: the operation and its body.
#[derive(Clone, Default)]
pub(crate) struct Sent(Arc<Inside>);

#[derive(Default)]
struct Inside {
    all: Mutex<Vec<(String, serde_json::Value)>>,
    once: Mutex<Option<(&'static str, Hook)>>,
}

type Hook = Box<dyn FnOnce() + Send>;

impl std::fmt::Debug for Sent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sent")
    }
}

impl Sent {
    /// Runs this before the next request of that operation is sent.
    pub(crate) fn before_the_next(
        &self,
        operation: &'static str,
        hook: impl FnOnce() + Send + 'static,
    ) {
        *self.0.once.lock().unwrap() = Some((operation, Box::new(hook)));
    }

    fn note(&self, operation: String, body: serde_json::Value) {
        let due = self
            .0
            .once
            .lock()
            .unwrap()
            .take_if(|once| once.0 == operation);
        if let Some((_, hook)) = due {
            hook();
        }
        self.0.all.lock().unwrap().push((operation, body));
    }

    pub(crate) fn all(&self, operation: &str) -> Vec<serde_json::Value> {
        let sent = self.0.all.lock().unwrap();
        let of = sent.iter().filter(|(name, _)| name == operation);
        of.map(|(_, body)| body.clone()).collect()
    }
}

#[derive(Debug)]
struct Recorder(Sent);

impl Intercept for Recorder {
    fn name(&self) -> &'static str {
        "Recorder"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let request = context.request();
        let target = request.headers().get("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        let body = serde_json::from_slice(request.body().bytes().unwrap_or_default())?;
        self.0.note(operation, body);
        Ok(())
    }
}

pub(crate) fn client(url: &str, sent: Sent) -> Client {
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(url)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .interceptor(Recorder(sent));
    Client::from_conf(config.build())
}

/// Creates a separate table with the partition key `id` and, on request, the sort key `at`.
pub(crate) async fn table(name: &str, sort: bool) -> Client {
    table_at(&Moto::shared().url(), name, sort).await
}

/// Creates the table at this server.
pub(crate) async fn table_at(url: &str, name: &str, sort: bool) -> Client {
    let client = client(url, Sent::default());
    let mut request = client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest);
    let keys = [("id", KeyType::Hash), ("at", KeyType::Range)];
    for (attribute, kind) in keys.into_iter().take(if sort { 2 } else { 1 }) {
        let key = KeySchemaElement::builder()
            .attribute_name(attribute)
            .key_type(kind);
        let definition = AttributeDefinition::builder()
            .attribute_name(attribute)
            .attribute_type(ScalarAttributeType::S);
        request = request
            .key_schema(key.build().unwrap())
            .attribute_definitions(definition.build().unwrap());
    }
    request.send().await.unwrap();
    client
}
