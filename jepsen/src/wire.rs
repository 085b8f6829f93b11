//! One API call = one operation: a client without retries, against one node.
//!
//! Every outcome falls into the three classes of a history. Certain is only what the protocol's table says (a typed
//! refusal before proposing) and a connect that failed; all else is unknown.

use std::time::{Duration, Instant};

use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_protocol::v2::{self, AckMessageEntry, AckMessageRequest, ReceiveMessageRequest, SendMessageRequest};
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::body;
use crate::history::record::{Cause, Delivery};

/// A call must be answered within this time.
pub const CALL_LIMIT: Duration = Duration::from_secs(3);
/// A receive waits this long for a message.
pub const POLL: Duration = Duration::from_millis(1_000);
/// An empty poll may end that much before its time.
const POLL_SLACK: Duration = Duration::from_millis(100);
const CONNECT_LIMIT: Duration = Duration::from_millis(500);
const OK: i32 = 20_000;
const MESSAGE_NOT_FOUND: i32 = 40_401;

/// Why a call is not OK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Miss {
    /// Certainly nothing happened.
    Fail(Cause),
    /// Unknown.
    Unknown(Cause),
}

impl Miss {
    fn connect(problem: impl ToString) -> Self {
        Self::Fail(Cause { code: "connect".into(), msg: problem.to_string() })
    }

    /// Connect errors happen before the call begins, so whatever breaks here is unknown.
    fn broken(status: &Status) -> Self {
        let code = format!("grpc-{}", i32::from(status.code()));
        Self::Unknown(Cause { code, msg: status.message().to_owned() })
    }

    fn late() -> Self {
        let msg = format!("no answer within {} ms", CALL_LIMIT.as_millis());
        Self::Unknown(Cause { code: "deadline".into(), msg })
    }

    /// The protocol's table of certainty: 50002, 501xx, 505xx, and 4xxxx but 40800.
    fn refused(status: Option<&v2::Status>) -> Self {
        let (code, msg) = status.map_or((0, String::new()), |status| (status.code, status.message.clone()));
        let cause = Cause { code: code.to_string(), msg };
        match code {
            40_800 => Self::Unknown(cause),
            40_000..=49_999 | 50_002 | 50_100..=50_199 | 50_500..=50_599 => Self::Fail(cause),
            _ => Self::Unknown(cause),
        }
    }
}

/// What a client works on.
#[derive(Debug, Clone)]
pub struct Target {
    /// Topic.
    pub topic: String,
    /// Broker group that serves it.
    pub broker_group: String,
}

/// A message that came, with what settles it.
#[derive(Debug, Clone)]
pub struct Handed {
    /// For the history.
    pub delivery: Delivery,
    /// Opaque handle of this delivery.
    pub handle: String,
    /// Message id, which an ack repeats.
    pub message_id: String,
}

/// The answer to a receive.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// What came.
    pub messages: Vec<Handed>,
    /// More may have been taken than was seen: a node answers so when the leader went away meanwhile.
    pub cut: bool,
}

/// A connection of one client to one node.
#[derive(Debug, Clone)]
pub struct Session {
    client: MessagingServiceClient<Channel>,
    client_id: AsciiMetadataValue,
    target: Target,
}

impl Session {
    /// Connects. A failure means that nothing was sent.
    pub async fn connect(address: &str, client_id: &str, target: &Target) -> Result<Self, Miss> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(Miss::connect)?;
        let endpoint = endpoint.connect_timeout(CONNECT_LIMIT);
        let channel = tokio::time::timeout(2 * CONNECT_LIMIT, endpoint.connect())
            .await
            .map_err(|_| Miss::connect("no connection in time"))?
            .map_err(|error| Miss::connect(describe(&error)))?;
        let client_id = client_id.parse().map_err(|_| Miss::connect("client id is not ASCII"))?;
        Ok(Self { client: MessagingServiceClient::new(channel), client_id, target: target.clone() })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert(mq_protocol::headers::CLIENT_ID, self.client_id.clone());
        request.set_timeout(CALL_LIMIT);
        request
    }

    fn topic(&self) -> v2::Resource {
        resource(&self.target.topic)
    }

    /// Sends one message and returns its queue offset.
    pub async fn send(&mut self, mid: &str, body: Vec<u8>) -> Result<u64, Miss> {
        let system = v2::SystemProperties {
            message_id: mid.to_owned(),
            message_type: v2::MessageType::Normal.into(),
            body_encoding: v2::Encoding::Identity.into(),
            ..Default::default()
        };
        let message = v2::Message {
            topic: Some(self.topic()),
            system_properties: Some(system),
            body: body.into(),
            ..Default::default()
        };
        let request = self.request(SendMessageRequest { messages: vec![message] });
        let answer = in_time(self.client.send_message(request)).await?;
        check(answer.status.as_ref())?;
        let [entry] = answer.entries.as_slice() else {
            let msg = format!("OK with {} entries for one message", answer.entries.len());
            return Err(Miss::Unknown(Cause { code: "entries".into(), msg }));
        };
        check(entry.status.as_ref())?;
        u64::try_from(entry.offset).map_err(|_| {
            Miss::Unknown(Cause { code: "entries".into(), msg: format!("offset {}", entry.offset) })
        })
    }

    /// Asks for messages; none within the poll is OK.
    pub async fn receive(&mut self, group: &str, batch: u32, invisible: Duration) -> Result<Answer, Miss> {
        let queue = v2::MessageQueue {
            topic: Some(self.topic()),
            id: -1,
            permission: v2::Permission::ReadWrite.into(),
            broker: Some(v2::Broker { name: self.target.broker_group.clone(), id: 0, endpoints: None }),
            accept_message_types: Vec::new(),
        };
        let filter = v2::FilterExpression { r#type: v2::FilterType::Tag.into(), expression: "*".into() };
        let request = self.request(ReceiveMessageRequest {
            group: Some(resource(group)),
            message_queue: Some(queue),
            filter_expression: Some(filter),
            batch_size: i32::try_from(batch).unwrap_or(i32::MAX),
            invisible_duration: Some(duration(invisible)),
            long_polling_timeout: Some(duration(POLL)),
            ..Default::default()
        });
        match tokio::time::timeout(CALL_LIMIT, self.read_stream(request)).await {
            Ok(result) => result,
            Err(_) => Err(Miss::late()),
        }
    }

    async fn read_stream(&mut self, request: Request<ReceiveMessageRequest>) -> Result<Answer, Miss> {
        use v2::receive_message_response::Content;
        let began = Instant::now();
        let answer = self.client.receive_message(request).await.map_err(|status| Miss::broken(&status))?;
        let mut stream = answer.into_inner();
        let (mut messages, mut status, mut whole) = (Vec::new(), None, false);
        while let Some(item) = stream.message().await.map_err(|status| Miss::broken(&status))? {
            match item.content {
                Some(Content::Status(verdict)) => status = Some(verdict),
                Some(Content::Message(message)) => messages.push(handed(message)),
                Some(Content::DeliveryTimestamp(_)) => whole = true,
                None => {}
            }
        }
        match status {
            Some(verdict) if verdict.code == OK || verdict.code == MESSAGE_NOT_FOUND => {
                let early = messages.is_empty() && began.elapsed() + POLL_SLACK < POLL;
                Ok(Answer { messages, cut: early || !whole })
            }
            other => Err(Miss::refused(other.as_ref())),
        }
    }

    /// Settles one delivery.
    pub async fn ack(&mut self, group: &str, message: &Handed) -> Result<(), Miss> {
        let entry = AckMessageEntry {
            message_id: message.message_id.clone(),
            receipt_handle: message.handle.clone(),
            ..Default::default()
        };
        let request = self.request(AckMessageRequest {
            group: Some(resource(group)),
            topic: Some(self.topic()),
            entries: vec![entry],
        });
        let answer = in_time(self.client.ack_message(request)).await?;
        check(answer.status.as_ref())?;
        check(answer.entries.first().and_then(|entry| entry.status.as_ref()))
    }
}

async fn in_time<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Miss> {
    match tokio::time::timeout(CALL_LIMIT, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(Miss::broken(&status)),
        Err(_) => Err(Miss::late()),
    }
}

fn check(status: Option<&v2::Status>) -> Result<(), Miss> {
    match status {
        Some(status) if status.code == OK => Ok(()),
        other => Err(Miss::refused(other)),
    }
}

fn handed(message: v2::Message) -> Handed {
    let system = message.system_properties.unwrap_or_default();
    let (mid, intact) = body::parse(&message.body);
    let delivery = Delivery {
        // The id beside the body must be the one inside it.
        intact: intact && system.message_id == mid,
        mid,
        queue: u32::try_from(system.queue_id).unwrap_or(u32::MAX),
        offset: system.queue_offset.and_then(|offset| u64::try_from(offset).ok()).unwrap_or(u64::MAX),
        attempt: system.delivery_attempt.and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0),
    };
    Handed { delivery, handle: system.receipt_handle.unwrap_or_default(), message_id: system.message_id }
}

fn resource(name: &str) -> v2::Resource {
    v2::Resource { resource_namespace: String::new(), name: name.to_owned() }
}

fn duration(value: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(value.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(value.subsec_nanos()).unwrap_or(0),
    }
}

fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(code: i32) -> &'static str {
        match Miss::refused(Some(&v2::Status { code, message: String::new() })) {
            Miss::Fail(_) => "fail",
            Miss::Unknown(_) => "unknown",
        }
    }

    #[test]
    fn only_refusals_before_proposing_are_certain() {
        for code in [40_000, 40_013, 40_402, 42_900, 50_002, 50_100, 50_500] {
            assert_eq!(class(code), "fail", "{code}");
        }
        for code in [0, 40_800, 50_000, 50_001, 50_400, 50_401, 60_000] {
            assert_eq!(class(code), "unknown", "{code}");
        }
    }
}
