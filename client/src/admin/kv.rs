//! Settings that the name servers keep: by namespace and key, each with the revision of its last change.
//!
//! A change whose outcome is unknown is never repeated here: meanwhile somebody else may have changed the key. Read it, and
//! go on from its revision.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::cluster;
use mq_protocol::cluster::kv_client::KvClient;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::{ANSWER_TIMEOUT, Admin, AdminError, CHANGE_TIMEOUT, PAUSE, check, said, unanswered};
use crate::core::CallError;
use crate::outcome::Verdict;

/// How a conditional change ended.
#[derive(Debug, Clone, PartialEq)]
pub enum KvChange {
    /// Done; the revision it made. A deletion of what was not there made none.
    Done {
        /// False: nothing was there to delete.
        changed: bool,
        /// Newest revision of all keys.
        revision: u64,
    },
    /// The key has another revision than the expected one; nothing was done.
    Conflict {
        /// What it holds; `None`: there is no such key.
        current: Option<cluster::KvEntry>,
    },
}

/// A listing, all of it at one revision.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KvListing {
    /// The revision.
    pub revision: u64,
    /// In the order of namespace and key.
    pub entries: Vec<cluster::KvEntry>,
}

impl Admin {
    /// Puts a value; with `expected` only if that is the key's revision (0: only if there is no such key).
    ///
    /// # Errors
    /// `Failed` with the words "outcome is unknown" if it may have been done.
    pub async fn put_kv(
        &self,
        namespace: &str,
        key: &str,
        value: impl Into<bytes::Bytes>,
        expected: Option<u64>,
    ) -> Result<KvChange, AdminError> {
        let (namespace, key) = (namespace.to_owned(), key.to_owned());
        let request = cluster::PutKvRequest { namespace, key, value: value.into(), expected };
        let put = |mut client: KvClient<Channel>, request| async move { client.put_kv(request).await };
        self.change_kv(|client| put(client, self.core.identity.request(request.clone(), CHANGE_TIMEOUT)))
            .await
    }

    /// Deletes a key; with `expected` only if that is its revision.
    ///
    /// # Errors
    /// As for [`Admin::put_kv`].
    pub async fn delete_kv(
        &self,
        namespace: &str,
        key: &str,
        expected: Option<u64>,
    ) -> Result<KvChange, AdminError> {
        let request =
            cluster::DeleteKvRequest { namespace: namespace.to_owned(), key: key.to_owned(), expected };
        let delete = |mut client: KvClient<Channel>, request| async move { client.delete_kv(request).await };
        self.change_kv(|client| delete(client, self.core.identity.request(request.clone(), CHANGE_TIMEOUT)))
            .await
    }

    /// Asks one name server after the other, as long as it is certain that nothing was done.
    async fn change_kv<R>(&self, call: impl Fn(KvClient<Channel>) -> R) -> Result<KvChange, AdminError>
    where
        R: Future<Output = Result<tonic::Response<cluster::ChangeKvResponse>, tonic::Status>>,
    {
        self.each_server(CHANGE_TIMEOUT, call, |answer: Result<cluster::ChangeKvResponse, _>, address| {
            let answer = match answer {
                Ok(answer) => answer,
                Err(error @ CallError::Lost(_)) => {
                    return ControlFlow::Break(Err(unknown(&unanswered(error, address))));
                }
                Err(error) => return ControlFlow::Continue(unanswered(error, address)),
            };
            let code = answer.result.as_ref().map_or(0, |result| result.code);
            if code == mq_protocol::v2::Code::PreconditionFailed as i32 {
                return ControlFlow::Break(Ok(KvChange::Conflict { current: answer.current }));
            }
            match (Verdict::of(code), check(answer.result.as_ref())) {
                (_, Ok(())) => {
                    let changed = answer.result.is_some_and(|result| result.changed);
                    ControlFlow::Break(Ok(KvChange::Done { changed, revision: answer.revision }))
                }
                (Verdict::NotLeader | Verdict::Busy, Err(error)) => ControlFlow::Continue(error),
                (Verdict::Unknown, Err(error)) => ControlFlow::Break(Err(unknown(&error))),
                (_, Err(error)) => ControlFlow::Break(Err(error)),
            }
        })
        .await
    }

    fn kv_servers(&self) -> Result<Arc<Vec<String>>, AdminError> {
        let servers = self.core.name_servers();
        if servers.is_empty() {
            return Err(AdminError::Invalid("this needs a name server's address".to_owned()));
        }
        Ok(servers)
    }

    /// What a key holds now, read behind everything that was confirmed before.
    ///
    /// # Errors
    /// `NotFound` if there is no such key.
    pub async fn get_kv(&self, namespace: &str, key: &str) -> Result<cluster::KvEntry, AdminError> {
        let request =
            cluster::GetKvRequest { namespace: namespace.to_owned(), key: key.to_owned(), local: false };
        let answer = self
            .ask_kv(|mut client| {
                let request = self.core.identity.request(request.clone(), ANSWER_TIMEOUT);
                async move { Ok(client.get_kv(request).await?.map(|answer| (answer.result.clone(), answer))) }
            })
            .await?;
        answer.entry.ok_or_else(|| AdminError::Failed(said(0, "answer without an entry")))
    }

    /// All keys of a namespace (of all for an empty one), at one revision.
    ///
    /// # Errors
    /// `NotFound` if so much was changed meanwhile that the revision of the first page is not kept any more.
    pub async fn list_kv(&self, namespace: &str) -> Result<KvListing, AdminError> {
        let mut listing = KvListing::default();
        loop {
            let last = listing.entries.last();
            let request = cluster::ListKvRequest {
                namespace: namespace.to_owned(),
                after_namespace: last.map(|last| last.namespace.clone()).unwrap_or_default(),
                after_key: last.map(|last| last.key.clone()).unwrap_or_default(),
                limit: 0,
                revision: listing.revision,
                local: false,
            };
            let page = self
                .ask_kv(|mut client| {
                    let request = self.core.identity.request(request.clone(), ANSWER_TIMEOUT);
                    async move { Ok(client.list_kv(request).await?.map(|page| (page.result.clone(), page))) }
                })
                .await?;
            listing.revision = page.revision;
            let more = page.more && !page.entries.is_empty();
            listing.entries.extend(page.entries);
            if !more {
                return Ok(listing);
            }
        }
    }

    /// Follows the changes of a namespace (of all for an empty one) behind a revision, or from now on. When a name server
    /// goes away, ask again with the last revision: no change is left out.
    ///
    /// # Errors
    /// No name server answers.
    pub async fn watch_kv(
        &self,
        namespace: &str,
        prefix: &str,
        after: Option<u64>,
    ) -> Result<tonic::Streaming<cluster::WatchKvResponse>, AdminError> {
        let request =
            cluster::WatchKvRequest { namespace: namespace.to_owned(), prefix: prefix.to_owned(), after };
        let mut last = AdminError::Unavailable(said(0, "no name server answers"));
        for address in self.kv_servers()?.iter() {
            let request = request.clone();
            let made = |channel| async move { KvClient::new(channel).watch_kv(request).await };
            match self.core.call(address, ANSWER_TIMEOUT, made).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last = unanswered(error, address),
            }
        }
        Err(last)
    }

    /// A question that any name server with contact to its leader answers, asked until the deadline.
    async fn ask_kv<T, R>(&self, call: impl Fn(KvClient<Channel>) -> R) -> Result<T, AdminError>
    where
        R: Future<Output = Result<tonic::Response<(Option<cluster::AdminResult>, T)>, tonic::Status>>,
    {
        self.each_server(
            ANSWER_TIMEOUT,
            call,
            |answer: Result<(Option<cluster::AdminResult>, T), _>, address| match answer {
                Ok((result, answer)) => match check(result.as_ref()) {
                    Ok(()) => ControlFlow::Break(Ok(answer)),
                    Err(error @ AdminError::Unavailable(_)) => ControlFlow::Continue(error),
                    Err(error) => ControlFlow::Break(Err(error)),
                },
                Err(error) => ControlFlow::Continue(unanswered(error, address)),
            },
        )
        .await
    }

    /// Asks one name server after the other, again and again, until `judge` has a last word or the time is over.
    async fn each_server<T, O, R>(
        &self,
        timeout: Duration,
        call: impl Fn(KvClient<Channel>) -> R,
        judge: impl Fn(Result<T, CallError>, &str) -> ControlFlow<Result<O, AdminError>, AdminError>,
    ) -> Result<O, AdminError>
    where
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let deadline = self.deadline()?;
        let mut last = AdminError::Unavailable(said(0, "no name server answers"));
        for address in self.kv_servers()?.iter().cycle() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let made = |channel| call(KvClient::new(channel));
            match judge(self.core.call(address, timeout.min(left), made).await, address) {
                ControlFlow::Break(outcome) => return outcome,
                ControlFlow::Continue(error) => last = error,
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(last)
    }
}

fn unknown(error: &AdminError) -> AdminError {
    AdminError::Failed(said(0, &format!("the outcome is unknown, read the key: {error}")))
}
