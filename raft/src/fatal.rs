//! The first reason why a group cannot go on, reported once.

use std::sync::Arc;

use mq_store::StoreError;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{ApplyError, Fatal};

type OnFatal = Arc<dyn Fn(Fatal) + Send + Sync>;

/// Shared by everything that may find the group unable to go on.
#[derive(Clone)]
pub(crate) struct FatalCell {
    group: Arc<str>,
    inner: Arc<Inner>,
}

struct Inner {
    first: Mutex<Option<Fatal>>,
    raised: Notify,
    on_fatal: OnFatal,
}

impl FatalCell {
    pub(crate) fn new(group: &str, on_fatal: OnFatal) -> Self {
        let inner = Inner { first: Mutex::new(None), raised: Notify::new(), on_fatal };
        Self { group: group.into(), inner: Arc::new(inner) }
    }

    /// Reports `fatal` if it is the first one.
    pub(crate) fn raise(&self, fatal: Fatal) {
        {
            let mut first = self.inner.first.lock();
            if first.is_some() {
                return;
            }
            *first = Some(fatal.clone());
        }
        tracing::error!(group = %self.group, "stopped: {fatal}");
        self.inner.raised.notify_waiters();
        (self.inner.on_fatal)(fatal);
    }

    pub(crate) fn raise_store(&self, error: &StoreError) {
        if !matches!(error, StoreError::Stopped) {
            self.raise(Fatal::of_store(&self.group, error));
        }
    }

    pub(crate) fn raise_apply(&self, error: &ApplyError) {
        self.raise(Fatal::of_apply(&self.group, error));
    }

    pub(crate) fn raise_identity(&self, error: impl ToString) {
        self.raise(Fatal::Identity { group: self.group.to_string(), error: error.to_string() });
    }

    pub(crate) fn raise_internal(&self, error: impl ToString) {
        self.raise(Fatal::Internal { group: self.group.to_string(), error: error.to_string() });
    }

    pub(crate) fn get(&self) -> Option<Fatal> {
        self.inner.first.lock().clone()
    }

    /// Returns when something was raised.
    pub(crate) async fn wait(&self) {
        let raised = self.inner.raised.notified();
        tokio::pin!(raised);
        raised.as_mut().enable();
        if self.get().is_none() {
            raised.await;
        }
    }
}
