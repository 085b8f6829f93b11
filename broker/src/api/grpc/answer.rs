//! Replies of the protocol seen as "a status and a body".

use mq_protocol::{cluster, v2};

use crate::forward::Answer;

fn map_status(status: &mut Option<v2::Status>, map: fn(i32) -> i32) {
    if let Some(status) = status {
        status.code = map(status.code);
    }
}

fn code_of(status: Option<&v2::Status>) -> i32 {
    status.map_or(0, |status| status.code)
}

/// Replies with one status: those that hold nothing else, and those that do.
macro_rules! plain {
    (bare: $($bare:ident),+; more: $($more:ident),+ $(,)?) => {
        $(plain!(@one $bare, status => Self { status: Some(status) });)+
        $(plain!(@one $more, status => Self { status: Some(status), ..Self::default() });)+
    };
    (@one $reply:ident, $status:ident => $refused:expr) => {
        impl Answer for v2::$reply {
            fn refused($status: v2::Status) -> Self {
                $refused
            }
            fn code(&self) -> i32 {
                code_of(self.status.as_ref())
            }
            fn map_codes(&mut self, map: fn(i32) -> i32) {
                map_status(&mut self.status, map);
            }
        }
    };
}

plain!(
    bare: HeartbeatResponse, ForwardMessageToDeadLetterQueueResponse, EndTransactionResponse,
        NotifyClientTerminationResponse, UpdateOffsetResponse, SyncLiteSubscriptionResponse;
    more: QueryRouteResponse, QueryAssignmentResponse, ChangeInvisibleDurationResponse, GetOffsetResponse,
        QueryOffsetResponse, RecallMessageResponse,
);

/// Replies that have a status per entry as well.
macro_rules! with_entries {
    ($($reply:ident),+ $(,)?) => {$(
        impl Answer for v2::$reply {
            fn refused(status: v2::Status) -> Self {
                Self { status: Some(status), ..Self::default() }
            }
            fn code(&self) -> i32 {
                code_of(self.status.as_ref())
            }
            fn map_codes(&mut self, map: fn(i32) -> i32) {
                map_status(&mut self.status, map);
                for entry in &mut self.entries {
                    map_status(&mut entry.status, map);
                }
            }
        }
    )+};
}

with_entries!(SendMessageResponse, AckMessageResponse);

fn admin_result(status: v2::Status) -> cluster::AdminResult {
    cluster::AdminResult { code: status.code, message: status.message, changed: false }
}

impl Answer for cluster::AdminResult {
    fn refused(status: v2::Status) -> Self {
        admin_result(status)
    }
    fn code(&self) -> i32 {
        self.code
    }
    fn map_codes(&mut self, _: fn(i32) -> i32) {}
}

/// Replies of the administrator's protocol that hold an `AdminResult`.
macro_rules! administrative {
    ($($reply:ident),+ $(,)?) => {$(
        impl Answer for cluster::$reply {
            fn refused(status: v2::Status) -> Self {
                Self { result: Some(admin_result(status)), ..Self::default() }
            }
            fn code(&self) -> i32 {
                self.result.as_ref().map_or(0, |result| result.code)
            }
            fn map_codes(&mut self, _: fn(i32) -> i32) {}
        }
    )+};
}

administrative!(ListTopicsResponse, ListSubscriptionGroupsResponse, MarkDigestResponse, ReadDigestResponse);
administrative!(ReadQueueResponse, QueueOffsetsResponse);
