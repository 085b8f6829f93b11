//! Settings: changes go to the leader, questions are answered here.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use mq_protocol::cluster::kv_client::KvClient;
use mq_protocol::cluster::kv_server::Kv as KvService;
use mq_protocol::cluster::name_kv_result::Outcome;
use mq_protocol::cluster::{
    ChangeKvResponse, DeleteKvRequest, GetKvRequest, GetKvResponse, KvEntry, ListKvRequest, ListKvResponse,
    NameKv, NameKvResult, PutKvRequest, WatchKvRequest, WatchKvResponse,
};
use tonic::{Request, Response, Status};

use super::call::Call;
use super::kv_watch::{self, Watched};
use super::registry::forwarded;
use super::report::forwarded_answer;
use super::status;
use crate::command::Command;
use crate::error::NameError;
use crate::kv::{BYTES_MAX, Entry, KEY_MAX, KEYS_MAX, NAMESPACE_MAX, Name, VALUE_MAX};
use crate::node::{Leader, Node};

/// Most entries in one answer.
const ENTRIES_MAX: usize = 1_000;

/// The service.
pub(crate) struct KvApi {
    pub node: Arc<Node>,
}

/// Refuses a name that no key may have.
pub(super) fn check_name(namespace: &str, key: &str) -> Result<(), NameError> {
    let bad = |text: String| Err(NameError::BadRequest(text));
    if namespace.is_empty() {
        return bad("the namespace is empty".to_owned());
    }
    check_namespace(namespace)?;
    if key.is_empty() || key.len() > KEY_MAX {
        return bad(format!("a key of {} bytes, it must have 1 to {KEY_MAX}", key.len()));
    }
    if key.chars().any(char::is_control) {
        return bad(format!("the key {key:?} holds a control character"));
    }
    Ok(())
}

/// The same for a namespace alone; an empty one stands for all.
pub(super) fn check_namespace(namespace: &str) -> Result<(), NameError> {
    if namespace.len() > NAMESPACE_MAX || !namespace.bytes().all(|byte| byte.is_ascii_graphic()) {
        let rule = format!("1 to {NAMESPACE_MAX} printable ASCII characters without blanks");
        return Err(NameError::BadRequest(format!("the namespace {namespace:?} is not {rule}")));
    }
    Ok(())
}

pub(super) fn entry_to_wire(name: &Name, entry: &Entry) -> KvEntry {
    let Entry { value, revision, created } = entry.clone();
    KvEntry { namespace: name.0.clone(), key: name.1.clone(), value, revision, created }
}

impl KvApi {
    /// Proposes a change where the leader is. `again` is the same call for another node.
    async fn change<R>(
        &self,
        call: &Call,
        command: NameKv,
        again: impl FnOnce(KvClient<tonic::transport::Channel>) -> R,
    ) -> Result<ChangeKvResponse, NameError>
    where
        R: Future<Output = Result<Response<ChangeKvResponse>, Status>>,
    {
        check_name(&command.namespace, &command.key)?;
        let size = command.value.as_ref().map_or(0, |value| value.len());
        if size > VALUE_MAX {
            return Err(NameError::TooLarge { value: size as u64, limit: VALUE_MAX as u64 });
        }
        match self.node.leader(call).await? {
            Leader::There(channel) => forwarded_answer(call, again(KvClient::new(channel))).await,
            Leader::Here(term) => {
                let (namespace, key) = (command.namespace.clone(), command.key.clone());
                let applied: NameKvResult =
                    self.node.propose(term, &Command::Kv(command), call.answer_by).await?;
                changed(namespace, key, applied)
            }
        }
    }

    /// What is read from this node's state: behind everything that was confirmed before, or of a bounded age.
    async fn readable(&self, local: bool, until: Instant) -> Result<(), NameError> {
        if local { self.node.fresh() } else { self.node.barrier(until).await }
    }

    async fn get(
        &self,
        call: Result<Call, NameError>,
        request: GetKvRequest,
    ) -> Result<GetKvResponse, NameError> {
        let GetKvRequest { namespace, key, local } = request;
        check_name(&namespace, &key)?;
        self.readable(local, call?.answer_by).await?;
        let name = (namespace, key);
        let shown = self.node.state.read();
        let entry = shown.kv.get(&name).map(|entry| entry_to_wire(&name, entry));
        let result = match &entry {
            Some(_) => Ok(false),
            None => Err(NameError::NotFound(format!("no key {} in namespace {}", name.1, name.0))),
        };
        Ok(GetKvResponse { result: Some(status::result(&result)), revision: shown.kv.revision(), entry })
    }

    async fn list(
        &self,
        call: Result<Call, NameError>,
        request: ListKvRequest,
    ) -> Result<ListKvResponse, NameError> {
        let ListKvRequest { namespace, after_namespace, after_key, limit, revision, local } = request;
        check_namespace(&namespace)?;
        self.readable(local, call?.answer_by).await?;
        let limit = if limit == 0 { ENTRIES_MAX } else { ENTRIES_MAX.min(limit as usize) };
        let shown = self.node.state.read();
        if revision > shown.kv.revision() {
            return Err(NameError::Behind { asked: revision, here: shown.kv.revision() });
        }
        let page = shown.kv.page(&namespace, &(after_namespace, after_key), limit, revision);
        let page =
            page.ok_or_else(|| NameError::NotFound(format!("revision {revision} is not kept any more")))?;
        let entries = page.entries.iter().map(|(name, entry)| entry_to_wire(name, entry)).collect();
        let result = Some(status::result(&Ok(false)));
        Ok(ListKvResponse { result, revision: page.revision, entries, more: page.more })
    }
}

/// What apply said, as an answer.
fn changed(namespace: String, key: String, applied: NameKvResult) -> Result<ChangeKvResponse, NameError> {
    let outcome = applied.outcome();
    let NameKvResult { outcome: _, revision, present, value, key_revision, created } = applied;
    let result = match outcome {
        Outcome::Applied => Ok(true),
        Outcome::Unchanged => Ok(false),
        Outcome::Mismatch => Err(NameError::OtherRevision { revision: key_revision }),
        Outcome::Full => Err(NameError::Full { keys: KEYS_MAX as u64, bytes: BYTES_MAX as u64 }),
        Outcome::Unspecified => return Err(NameError::Unknown("apply gave no answer")),
    };
    let current = present.then_some(KvEntry { namespace, key, value, revision: key_revision, created });
    Ok(ChangeKvResponse { result: Some(status::result(&result)), revision, current })
}

fn refused(error: NameError) -> ChangeKvResponse {
    ChangeKvResponse { result: Some(status::result(&Err(error))), ..ChangeKvResponse::default() }
}

#[tonic::async_trait]
impl KvService for KvApi {
    async fn put_kv(&self, request: Request<PutKvRequest>) -> Result<Response<ChangeKvResponse>, Status> {
        let call = Call::of(request.metadata());
        let request = request.into_inner();
        let PutKvRequest { namespace, key, value, expected } = request.clone();
        let command = NameKv { namespace, key, value: Some(value), expected };
        let outcome = match call {
            Ok(call) => {
                let passed_on = forwarded(&self.node, &call, request);
                let again = |mut client: KvClient<_>| async move { client.put_kv(passed_on).await };
                self.change(&call, command, again).await
            }
            Err(error) => Err(error),
        };
        Ok(Response::new(outcome.unwrap_or_else(refused)))
    }

    async fn delete_kv(
        &self,
        request: Request<DeleteKvRequest>,
    ) -> Result<Response<ChangeKvResponse>, Status> {
        let call = Call::of(request.metadata());
        let request = request.into_inner();
        let DeleteKvRequest { namespace, key, expected } = request.clone();
        let command = NameKv { namespace, key, value: None, expected };
        let outcome = match call {
            Ok(call) => {
                let passed_on = forwarded(&self.node, &call, request);
                let again = |mut client: KvClient<_>| async move { client.delete_kv(passed_on).await };
                self.change(&call, command, again).await
            }
            Err(error) => Err(error),
        };
        Ok(Response::new(outcome.unwrap_or_else(refused)))
    }

    async fn get_kv(&self, request: Request<GetKvRequest>) -> Result<Response<GetKvResponse>, Status> {
        let call = Call::of(request.metadata());
        let answer = self.get(call, request.into_inner()).await;
        Ok(Response::new(answer.unwrap_or_else(|error| GetKvResponse {
            result: Some(status::result(&Err(error))),
            ..GetKvResponse::default()
        })))
    }

    async fn list_kv(&self, request: Request<ListKvRequest>) -> Result<Response<ListKvResponse>, Status> {
        let call = Call::of(request.metadata());
        let answer = self.list(call, request.into_inner()).await;
        Ok(Response::new(answer.unwrap_or_else(|error| ListKvResponse {
            result: Some(status::result(&Err(error))),
            ..ListKvResponse::default()
        })))
    }

    type WatchKvStream = Pin<Box<dyn Stream<Item = Result<WatchKvResponse, Status>> + Send>>;

    async fn watch_kv(
        &self,
        request: Request<WatchKvRequest>,
    ) -> Result<Response<Self::WatchKvStream>, Status> {
        let WatchKvRequest { namespace, prefix, after } = request.into_inner();
        let began = check_namespace(&namespace).and_then(|()| {
            let place = self.node.watchers.clone().try_acquire_owned();
            place.map_err(|_| {
                let limit = kv_watch::WATCHERS_MAX as u64;
                NameError::Busy { what: "number of watchers", value: limit, limit }
            })
        });
        let stream: Self::WatchKvStream = match began {
            Ok(place) => {
                Box::pin(kv_watch::stream(self.node.clone(), Watched { namespace, prefix }, after, place))
            }
            Err(error) => Box::pin(tokio_stream::once(Ok(kv_watch::last(&error)))),
        };
        Ok(Response::new(stream))
    }
}

/// A watcher hears at least this often that nothing was changed.
pub(super) const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
