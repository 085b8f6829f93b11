//! Hand-made histories: a script of calls one after the other, each a millisecond long.

use super::{Finding, check};
use crate::history::History;
use crate::history::record::{
    Ack, Call, Cause, Delivery, Header, Kind, Phase, Place, Process, Receive, Record, Role, SCHEMA, Send,
};

/// Builds a history call by call; every call uses a process number of its own.
pub(crate) struct Script {
    history: History,
    time: u64,
    process: u64,
    drained: bool,
}

/// A call that began and has not ended.
#[derive(Clone, Copy)]
pub(crate) struct Open(u64);

/// Names of all findings, in order.
pub(crate) fn names(script: &Script) -> Vec<&'static str> {
    script.findings().into_iter().map(|finding| finding.name).collect()
}

impl Script {
    pub(crate) fn new(groups: &[&str]) -> Self {
        let header = Header {
            schema: SCHEMA,
            run: "r".into(),
            seed: 1,
            workload: "queue".into(),
            faults: Vec::new(),
            topology: "ns3-b3".into(),
            groups: groups.iter().map(ToString::to_string).collect(),
            scanners: Vec::new(),
            planned_sends: 0,
            build: String::new(),
            command: String::new(),
        };
        let history = History { header, records: Vec::new(), footer: None };
        Self { history, time: 0, process: 0, drained: true }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut history = self.history.clone();
        if self.drained {
            let (i, t) = (history.records.len() as u64, self.time);
            let call = Call::Phase(Phase { name: "drained".into() });
            let p = Process::Role(Role::Harness);
            history.records.push(Record { i, t, w: 0, p, ty: Kind::Info, call, n: vec![], err: None });
        }
        check(&history).expect("a script keeps the rules").findings
    }

    pub(crate) fn history(&self) -> History {
        self.history.clone()
    }

    pub(crate) fn add(&mut self, p: Process, ty: Kind, call: Call) {
        self.time += 500_000;
        let code = match call {
            Call::Ack(_) => "40013",
            _ => "50002",
        };
        let err = (ty == Kind::Fail).then(|| Cause { code: code.into(), msg: String::new() });
        let i = self.history.records.len() as u64;
        self.history.records.push(Record { i, t: self.time, w: 0, p, ty, call, n: vec![], err });
    }

    pub(crate) fn remark(&mut self, role: Role, call: Call) -> &mut Self {
        self.add(Process::Role(role), Kind::Info, call);
        self
    }

    fn begin(&mut self, call: Call) -> Open {
        self.process += 1;
        self.add(Process::Worker(self.process), Kind::Invoke, call);
        Open(self.process)
    }

    fn whole(&mut self, begin: Call, ty: Kind, end: Call) -> &mut Self {
        let Open(process) = self.begin(begin);
        self.add(Process::Worker(process), ty, end);
        self
    }

    pub(crate) fn pause_ms(&mut self, ms: u64) -> &mut Self {
        self.time += ms * 1_000_000;
        self
    }

    pub(crate) fn not_drained(&mut self) -> &mut Self {
        self.drained = false;
        self
    }

    pub(crate) fn begin_send(&mut self, mid: &str) -> Open {
        self.begin(send(mid, None))
    }

    pub(crate) fn end_send(&mut self, Open(process): Open, mid: &str, queue: u32, offset: u64) -> &mut Self {
        let place = Place { queue: Some(queue), offset };
        self.add(Process::Worker(process), Kind::Ok, send(mid, Some(place)));
        self
    }

    pub(crate) fn sent(&mut self, mid: &str, queue: u32, offset: u64) -> &mut Self {
        self.whole(send(mid, None), Kind::Ok, send(mid, Some(Place { queue: Some(queue), offset })))
    }

    pub(crate) fn sent_somewhere(&mut self, mid: &str, offset: u64) -> &mut Self {
        self.whole(send(mid, None), Kind::Ok, send(mid, Some(Place { queue: None, offset })))
    }

    pub(crate) fn send_failed(&mut self, mid: &str) -> &mut Self {
        self.whole(send(mid, None), Kind::Fail, send(mid, None))
    }

    pub(crate) fn send_unknown(&mut self, mid: &str) -> &mut Self {
        self.whole(send(mid, None), Kind::Info, send(mid, None))
    }

    pub(crate) fn begin_receive(&mut self, group: &str) -> Open {
        self.begin(receive(group, Vec::new()))
    }

    pub(crate) fn end_receive(
        &mut self,
        Open(process): Open,
        group: &str,
        mid: &str,
        queue: u32,
        offset: u64,
        attempt: u32,
    ) -> &mut Self {
        let message = Delivery { mid: mid.into(), queue, offset, attempt, intact: true };
        self.add(Process::Worker(process), Kind::Ok, receive(group, vec![message]));
        self
    }

    pub(crate) fn delivered(
        &mut self,
        group: &str,
        mid: &str,
        queue: u32,
        offset: u64,
        attempt: u32,
    ) -> &mut Self {
        let open = self.begin_receive(group);
        self.end_receive(open, group, mid, queue, offset, attempt)
    }

    /// Damages the body of the last delivery.
    pub(crate) fn broken_body(&mut self) -> &mut Self {
        if let Some(Record { call: Call::Receive(receive), .. }) = self.history.records.last_mut() {
            receive.messages[0].intact = false;
        }
        self
    }

    pub(crate) fn receive_unknown(&mut self, group: &str) -> &mut Self {
        self.whole(receive(group, Vec::new()), Kind::Info, receive(group, Vec::new()))
    }

    /// An empty answer from a node whose leader went away meanwhile.
    pub(crate) fn receive_cut(&mut self, group: &str) -> &mut Self {
        let invisible_ms = 10_000;
        let end =
            Call::Receive(Receive { group: group.into(), invisible_ms, messages: Vec::new(), cut: true });
        self.whole(receive(group, Vec::new()), Kind::Ok, end)
    }

    pub(crate) fn acked(&mut self, group: &str, mid: &str) -> &mut Self {
        self.whole(ack(group, mid), Kind::Ok, ack(group, mid))
    }

    pub(crate) fn ack_failed(&mut self, group: &str, mid: &str) -> &mut Self {
        self.whole(ack(group, mid), Kind::Fail, ack(group, mid))
    }

    pub(crate) fn ack_unknown(&mut self, group: &str, mid: &str) -> &mut Self {
        self.whole(ack(group, mid), Kind::Info, ack(group, mid))
    }
}

fn send(mid: &str, place: Option<Place>) -> Call {
    Call::Send(Send { mid: mid.into(), place })
}

fn receive(group: &str, messages: Vec<Delivery>) -> Call {
    Call::Receive(Receive { group: group.into(), invisible_ms: 10_000, messages, cut: false })
}

fn ack(group: &str, mid: &str) -> Call {
    Call::Ack(Ack { group: group.into(), mid: mid.into(), attempt: 1 })
}
