//! ReceiveMessage. The stream is: status first, the messages, the time of the delivery last. An empty poll and a
//! poll that is cut short (leader change, shutdown) are answered alike: "nothing new".

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt as _, stream};
use mq_protocol::convert::timestamp;
use mq_protocol::names::{Field, Invalid, Problem, RETRY_PREFIX};
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_protocol::v2::receive_message_response::Content;
use mq_protocol::{token, v2};
use mq_store::Term;
use tonic::{Request, Response, Streaming};

use super::MessagingApi;
use super::context::CallContext;
use crate::api::status;
use crate::consume::{Filter, Receive};
use crate::error::BrokerError;
use crate::forward::{Answer, MESSAGE_BYTES_MAX, respond};
use crate::group::{BrokerGroup, Lookup};
use crate::produce::admit;
use crate::refusal::{CallError, Refusal};

/// Used when neither a poll time nor a deadline says how long the client waits beyond its poll.
const UNKNOWN_MARGIN: Duration = Duration::from_millis(1_500);
/// An empty poll ends this long before the client's deadline.
const ANSWER_MARGIN: Duration = Duration::from_millis(300);
/// Time that the answer of a poll without a deadline may take beyond the poll.
const BEYOND_POLL: Duration = Duration::from_secs(3);

/// The stream of one receive.
pub type ReceiveStream =
    Pin<Box<dyn Stream<Item = Result<v2::ReceiveMessageResponse, tonic::Status>> + Send>>;

/// An answer to a receive, made here or passed on from the leader.
#[derive(Debug)]
enum Received {
    /// Status and messages; the time of the delivery goes behind them.
    Here(Vec<v2::ReceiveMessageResponse>),
    /// The first item, which holds the status, and the stream behind it.
    There(Box<v2::ReceiveMessageResponse>, Box<Streaming<v2::ReceiveMessageResponse>>),
}

impl Received {
    fn status_mut(&mut self) -> Option<&mut v2::Status> {
        let first = match self {
            Self::Here(items) => items.first_mut()?,
            Self::There(first, _) => first,
        };
        match &mut first.content {
            Some(Content::Status(status)) => Some(status),
            _ => None,
        }
    }

    fn into_stream(self, now_ms: u64) -> ReceiveStream {
        match self {
            Self::Here(mut items) => {
                let now = timestamp(i64::try_from(now_ms).unwrap_or(i64::MAX));
                items.push(item(Content::DeliveryTimestamp(now)));
                Box::pin(stream::iter(items.into_iter().map(Ok)))
            }
            // A stream that breaks behind its status just ends: what was not seen comes again.
            Self::There(first, rest) => {
                let rest = rest.take_while(|item| std::future::ready(item.is_ok()));
                Box::pin(stream::once(std::future::ready(Ok(*first))).chain(rest))
            }
        }
    }
}

impl Answer for Received {
    fn refused(status: v2::Status) -> Self {
        // An unknown outcome of a receive takes nothing from the client: what was picked comes again.
        let status = match status.code == v2::Code::ProxyTimeout as i32 {
            true => nothing_new(),
            false => status,
        };
        Self::Here(vec![item(Content::Status(status))])
    }

    fn code(&self) -> i32 {
        let content = match self {
            Self::Here(items) => items.first().and_then(|first| first.content.as_ref()),
            Self::There(first, _) => first.content.as_ref(),
        };
        match content {
            Some(Content::Status(status)) => status.code,
            _ => 0,
        }
    }

    fn map_codes(&mut self, map: fn(i32) -> i32) {
        if let Some(status) = self.status_mut() {
            status.code = map(status.code);
        }
    }
}

fn item(content: Content) -> v2::ReceiveMessageResponse {
    v2::ReceiveMessageResponse { content: Some(content) }
}

fn nothing_new() -> v2::Status {
    v2::Status {
        code: v2::Code::MessageNotFound as i32,
        message: "no new message within the polling time".into(),
    }
}

/// A checked receive.
struct Checked<'a> {
    group: &'a v2::Resource,
    topic: &'a v2::Resource,
    filter: Filter,
    batch: usize,
    invisible: Option<Duration>,
    auto_renew: bool,
    attempt_id: &'a str,
    poll_until: Instant,
}

impl MessagingApi {
    pub(super) async fn receive_message_call(
        &self,
        request: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<ReceiveStream>, tonic::Status> {
        let call = match self.admitted::<_, Received>(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(refused.map(|refused| refused.into_stream(self.clock.wall_ms()))),
        };
        let request = request.into_inner();
        let began = Instant::now();
        let response = self.receive(call, &request).await;
        self.metrics.rpc("ReceiveMessage", response.get_ref().code(), true, began.elapsed());
        Ok(response.map(|received| received.into_stream(self.clock.wall_ms())))
    }

    async fn receive(
        &self,
        mut call: CallContext,
        request: &v2::ReceiveMessageRequest,
    ) -> Response<Received> {
        let checked = match self.check_receive(&call, request) {
            Ok(checked) => checked,
            Err(error) => return respond(&call, None, Err(error)),
        };
        if !call.has_deadline {
            call.deadline = checked.poll_until + BEYOND_POLL;
        }
        let Ok(_permit) = Arc::clone(&self.waiting).try_acquire_owned() else {
            let limit = self.limits.waiting_receives_max.into();
            let busy = BrokerError::Busy { what: "waiting receives", value: limit, limit };
            return respond(&call, None, Err(busy.into()));
        };
        let broker = request.message_queue.as_ref().and_then(|queue| queue.broker.as_ref());
        let broker = broker.map(|broker| broker.name.as_str()).filter(|name| !name.is_empty());
        let target = match self.target_of_topic(checked.topic, broker, call.answer_by()).await {
            Ok(target) => target,
            Err(error) => return respond(&call, None, Err(error)),
        };
        let (call_ref, checked) = (&call, &checked);
        let serving = self.forward.at_leader(
            &call,
            target.leadership(),
            |term| self.deliver(target.group(), call_ref, checked, term),
            |channel, headers| async move {
                let mut client =
                    MessagingServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                let request = Request::from_parts(headers, tonic::Extensions::new(), request.clone());
                let (metadata, mut stream, extensions) = client.receive_message(request).await?.into_parts();
                let first = stream.message().await?;
                let first = first.ok_or_else(|| tonic::Status::internal("the leader's answer is empty"))?;
                let received = Received::There(Box::new(first), Box::new(stream));
                Ok(Response::from_parts(metadata, received, extensions))
            },
        );
        let response = tokio::select! {
            response = serving => response,
            () = self.stopping.cancelled() => Response::new(Received::refused(nothing_new())),
        };
        self.after(&target, &response);
        response
    }

    async fn deliver(
        &self,
        group: Option<&Arc<BrokerGroup>>,
        call: &CallContext,
        checked: &Checked<'_>,
        term: Term,
    ) -> Result<Received, CallError> {
        let group = group.ok_or(BrokerError::NotLeader { leader: None })?;
        let deadline = self.commit_by(call);
        let lookup = |name: &'_ v2::Resource, create| OwnedLookup {
            namespace: name.resource_namespace.clone(),
            name: name.name.clone(),
            create,
            term,
            deadline,
        };
        let topic = lookup(checked.topic, self.auto.topics);
        let subscription = lookup(checked.group, self.auto.groups);
        let topic = group.require_topic(topic.borrow()).await?;
        group.require_subscription_group(subscription.borrow()).await?;
        let receive = Receive {
            namespace: checked.topic.resource_namespace.clone(),
            group: checked.group.name.clone(),
            topic: checked.topic.name.clone(),
            filter: checked.filter.clone(),
            batch: checked.batch,
            invisible: checked.invisible,
            auto_renew: checked.auto_renew,
            client_id: call.client_id.clone(),
            attempt_id: checked.attempt_id.to_owned(),
            poll_until: checked.poll_until,
            deadline: call.answer_by(),
        };
        let delivered = group.open()?.consumer.receive(receive).await?;
        if delivered.is_empty() {
            return Ok(Received::refused(nothing_new()));
        }
        let mut items = Vec::with_capacity(delivered.len() + 2);
        items.push(item(Content::Status(status::ok())));
        for delivered in delivered {
            self.metrics.delivered(&topic, &checked.group.name, &delivered.message);
            items.push(item(Content::Message(delivered.message)));
        }
        Ok(Received::Here(items))
    }

    fn check_receive<'a>(
        &self,
        call: &CallContext,
        request: &'a v2::ReceiveMessageRequest,
    ) -> Result<Checked<'a>, CallError> {
        let group = admit::present(request.group.as_ref(), Field::Group)?;
        admit::group_name(group)?;
        let queue = request.message_queue.as_ref();
        let topic = admit::present(queue.and_then(|queue| queue.topic.as_ref()), Field::Topic)?;
        admit::topic_name(topic)?;
        if topic.name.strip_prefix(RETRY_PREFIX).is_some_and(|owner| owner != group.name) {
            return Err(Refusal::from(Invalid::new(Field::Topic, &topic.name, Problem::Reserved)).into());
        }
        let filter = filter(request.filter_expression.as_ref())?;
        let batch = self.batch(request.batch_size)?;
        let invisible = self.invisible(request)?;
        let poll_until = self.poll_until(call, request)?;
        let attempt_id = request.attempt_id.as_deref().unwrap_or("");
        if attempt_id.len() > 255 {
            let text = format!("attempt id of {} bytes, the limit is 255", attempt_id.len());
            return Err(Refusal::BadRequest(text).into());
        }
        let auto_renew = request.auto_renew;
        Ok(Checked { group, topic, filter, batch, invisible, auto_renew, attempt_id, poll_until })
    }

    fn batch(&self, asked: i32) -> Result<usize, Refusal> {
        let most = self.limits.receive_batch_max as usize;
        match usize::try_from(asked) {
            Ok(0) => Ok(most),
            Ok(asked) => Ok(asked.min(most)),
            Err(_) => Err(Refusal::BadRequest(format!("batch size {asked}: it cannot be negative"))),
        }
    }

    /// The invisible time that the client asks for; `None` when the server renews it.
    fn invisible(&self, request: &v2::ReceiveMessageRequest) -> Result<Option<Duration>, Refusal> {
        if request.auto_renew {
            return Ok(None);
        }
        let (min, max) = (self.limits.invisible_ms_min, self.limits.invisible_ms_max);
        let Some(asked) = &request.invisible_duration else {
            // Left out means the server's default.
            return Ok(Some(
                Duration::from_secs(60).clamp(Duration::from_millis(min), Duration::from_millis(max)),
            ));
        };
        Ok(Some(duration_in(asked, min, max)?))
    }

    fn poll_until(
        &self,
        call: &CallContext,
        request: &v2::ReceiveMessageRequest,
    ) -> Result<Instant, Refusal> {
        let now = Instant::now();
        let left = call.deadline.saturating_duration_since(now);
        let most = Duration::from_millis(self.limits.poll_ms_max);
        let asked = match &request.long_polling_timeout {
            Some(asked) => {
                let ms = total_ms(asked);
                Duration::from_millis(u64::try_from(ms).map_err(|_| Refusal::PollingTime(ms))?)
            }
            None if call.has_deadline => left.saturating_sub(UNKNOWN_MARGIN),
            None => most,
        };
        let poll = asked.min(most);
        if !call.has_deadline {
            return Ok(now + poll);
        }
        Ok(now + poll.min(left.saturating_sub(ANSWER_MARGIN)))
    }
}

/// A name that outlives the closure which made it.
struct OwnedLookup {
    namespace: String,
    name: String,
    create: bool,
    term: Term,
    deadline: Instant,
}

impl OwnedLookup {
    fn borrow(&self) -> Lookup<'_> {
        let Self { namespace, name, create, term, deadline } = self;
        Lookup { namespace, name, create: *create, term: *term, deadline: *deadline }
    }
}

fn filter(expression: Option<&v2::FilterExpression>) -> Result<Filter, CallError> {
    let Some(expression) = expression else { return Ok(Filter::all()) };
    match v2::FilterType::try_from(expression.r#type) {
        Ok(v2::FilterType::Sql) => Err(Refusal::NotOffered("filtering by SQL".into()).into()),
        _ => Ok(Filter::tags(&expression.expression)?),
    }
}

/// A duration of the protocol in ms; may be negative.
pub(super) fn total_ms(duration: &prost_types::Duration) -> i64 {
    duration.seconds.saturating_mul(1_000).saturating_add(i64::from(duration.nanos) / 1_000_000)
}

/// An invisible duration within its limits (RB-70).
pub(super) fn duration_in(asked: &prost_types::Duration, min: u64, max: u64) -> Result<Duration, Refusal> {
    let value = total_ms(asked);
    match u64::try_from(value) {
        Ok(ms) if (min..=max).contains(&ms) => Ok(Duration::from_millis(ms)),
        _ => Err(Refusal::InvisibleTime { value, min, max }),
    }
}

/// The broker group that a handle names.
pub(super) fn group_of_handle(handle: &str) -> Result<String, Refusal> {
    let decoded = token::ReceiptHandle::decode(handle).map(|handle| handle.broker_group);
    decoded.map_err(|_| Refusal::Handle("it was not made here"))
}
