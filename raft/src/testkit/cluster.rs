//! Members on loopback that can be cut off, killed and started again on the same folders.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_runtime::clock::{Clock, SystemClock};
use mq_runtime::random::Random;
use mq_store::Term;
use mq_store::fs::{FileSystem, OsFileSystem};
use mq_store::item::EncodedItem;
use parking_lot::Mutex;

use super::map_state::{AppliedLog, MapState};
use crate::apply::MakeApply;
use crate::config::{Deps, GroupConfig, Limits, MemberConfig, Role, Timers};
use crate::error::{Fatal, ProposeError, StartError};
use crate::group::RaftGroup;
use crate::network::transport::Transport;
use crate::proposer::Proposed;
use crate::view::Leadership;

/// What differs from a plain test cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// Cluster name.
    pub cluster: String,
    /// Bytes of a segment.
    pub segment_size: u64,
    /// Largest frame.
    pub frame_limit: u32,
    /// Timers.
    pub timers: Timers,
    /// Bounds.
    pub limits: Limits,
    /// File layers by member; the system's where none is given.
    pub file_systems: Vec<Arc<dyn FileSystem>>,
    /// Clocks by member; the system's where none is given.
    pub clocks: Vec<Arc<dyn Clock>>,
    /// Switches on what loses data (for the test that shows it).
    pub leader_restore: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster: "test".into(),
            segment_size: 1 << 20,
            frame_limit: 64 << 10,
            timers: Timers::test(),
            limits: Limits::default(),
            file_systems: Vec::new(),
            clocks: Vec::new(),
            leader_restore: false,
        }
    }
}

/// One member, running or not.
#[derive(Debug)]
pub struct Member {
    /// Its settings.
    pub config: GroupConfig,
    /// Its transport, while it runs.
    pub transport: Option<Arc<Transport>>,
    /// Its group, while it runs.
    pub group: Option<RaftGroup>,
    /// What its state machine has applied since its last start.
    pub applied: AppliedLog,
    /// What stopped it.
    pub fatal: Arc<Mutex<Option<Fatal>>>,
}

/// Members 1…n of one group.
#[derive(Debug)]
pub struct Cluster {
    /// By place: member id - 1.
    pub members: Vec<Member>,
    options: Options,
}

impl Cluster {
    /// Settings for `n` members below `root`, each with a port of its own; nothing runs yet.
    ///
    /// # Errors
    /// No port is free.
    pub async fn new(n: u64, root: PathBuf, options: Options) -> Result<Self, StartError> {
        let mut members = Vec::new();
        let mut transports = Vec::new();
        for id in 1..=n {
            let transport = Transport::bind("127.0.0.1:0").await?;
            members.push(MemberConfig {
                id,
                node: format!("b{id}"),
                raft_address: transport.local_addr().to_string(),
                api_address: format!("api-{id}"),
                client_address: format!("client-{id}"),
                role: Role::Data,
            });
            transports.push(transport);
        }
        let member = |(place, transport)| Member {
            config: GroupConfig {
                cluster: options.cluster.clone(),
                group: "g".into(),
                node_name: format!("b{}", place + 1),
                members: members.clone(),
                dir: root.join(format!("b{}", place + 1)).join("g"),
                segment_size: options.segment_size,
                frame_limit: options.frame_limit,
                timers: options.timers.clone(),
                limits: options.limits.clone(),
            },
            transport: Some(transport),
            group: None,
            applied: AppliedLog::default(),
            fatal: Arc::default(),
        };
        let members = transports.into_iter().enumerate().map(member).collect();
        Ok(Self { members, options })
    }

    /// The same, all started, with a leader that is ready.
    ///
    /// # Errors
    /// A member does not start.
    pub async fn started(n: u64, root: PathBuf, options: Options) -> Result<Self, StartError> {
        let mut cluster = Self::new(n, root, options).await?;
        for id in 1..=n {
            cluster.start(id).await?;
        }
        cluster.leader().await;
        Ok(cluster)
    }

    fn place(id: u64) -> usize {
        usize::try_from(id - 1).unwrap_or(usize::MAX)
    }

    /// Member `id`.
    #[must_use]
    pub fn member(&self, id: u64) -> &Member {
        &self.members[Self::place(id)]
    }

    /// The running group of member `id`.
    ///
    /// # Panics
    /// It does not run.
    #[must_use]
    pub fn group(&self, id: u64) -> &RaftGroup {
        self.member(id).group.as_ref().expect("the member runs")
    }

    /// Starts member `id` on its folder and port.
    ///
    /// # Errors
    /// What the group's start says.
    pub async fn start(&mut self, id: u64) -> Result<(), StartError> {
        let place = Self::place(id);
        let fs = self.options.file_systems.get(place).cloned();
        let fs = fs.unwrap_or_else(|| Arc::new(OsFileSystem));
        let clock = self.options.clocks.get(place).cloned();
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let leader_restore = self.options.leader_restore;
        let member = &mut self.members[place];
        let transport = match member.transport.take() {
            Some(transport) => transport,
            None => bind_again(&member.config.members[place].raft_address).await?,
        };
        member.transport = Some(transport.clone());
        let applied = AppliedLog::default();
        member.applied = applied.clone();
        member.fatal = Arc::default();
        let fatal = member.fatal.clone();
        let deps = Deps {
            fs,
            clock,
            random: Random::from_os(),
            on_fatal: Arc::new(move |why| *fatal.lock() = Some(why)),
        };
        let make: MakeApply = Arc::new(move |_| Ok(Box::new(MapState::forgotten(&applied))));
        let group =
            RaftGroup::start_with(member.config.clone(), transport, deps, make, leader_restore).await?;
        member.group = Some(group);
        Ok(())
    }

    /// The file layer of member `id` from its next start on.
    pub fn set_file_system(&mut self, id: u64, fs: Arc<dyn FileSystem>) {
        let place = Self::place(id);
        let plain = || Arc::new(OsFileSystem) as Arc<dyn FileSystem>;
        while self.options.file_systems.len() <= place {
            self.options.file_systems.push(plain());
        }
        self.options.file_systems[place] = fs;
    }

    /// Stops member `id` as a killed process would: connections break, its port refuses.
    pub async fn kill(&mut self, id: u64) {
        let member = &mut self.members[Self::place(id)];
        if let Some(transport) = member.transport.take() {
            transport.stop().await;
        }
        if let Some(group) = member.group.take() {
            group.kill().await;
        }
    }

    /// Stops member `id` in order.
    pub async fn shutdown(&mut self, id: u64) {
        let member = &mut self.members[Self::place(id)];
        if let Some(group) = member.group.take() {
            group.shutdown().await;
        }
        if let Some(transport) = member.transport.take() {
            transport.stop().await;
        }
    }

    /// Stops all members, one after the other.
    pub async fn stop(&mut self) {
        for id in 1..=self.members.len() as u64 {
            self.kill(id).await;
        }
    }

    /// Cuts member `id` off from all others, both ways.
    pub fn isolate(&self, id: u64) {
        for other in 1..=self.members.len() as u64 {
            if other != id {
                self.cut(id, other);
                self.cut(other, id);
            }
        }
    }

    /// Nothing from `from` reaches `to` any more.
    pub fn cut(&self, from: u64, to: u64) {
        if let Some(transport) = &self.member(from).transport {
            transport.faults().cut(to);
        }
    }

    /// All links work again.
    pub fn heal(&self) {
        for member in &self.members {
            if let Some(transport) = &member.transport {
                transport.faults().heal();
            }
        }
    }

    /// Leadership of each running member.
    #[must_use]
    pub fn views(&self) -> Vec<(u64, Leadership)> {
        let running = self.members.iter().enumerate().filter_map(|(place, member)| {
            let group = member.group.as_ref()?;
            Some((place as u64 + 1, group.leadership().borrow().clone()))
        });
        running.collect()
    }

    /// Waits for a leader that is ready and newer than `term`.
    ///
    /// # Panics
    /// There is none within ten seconds.
    pub async fn leader_after(&self, term: Term) -> (u64, Term) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let ready = self.views().into_iter().find(|(_, view)| view.ready && view.term > term);
            if let Some((id, view)) = ready {
                return (id, view.term);
            }
            assert!(Instant::now() < deadline, "no leader: {:?}", self.views());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits for a leader that is ready.
    pub async fn leader(&self) -> (u64, Term) {
        self.leader_after(Term(0)).await
    }

    /// Proposes one item with `body` at member `id` for `term`.
    ///
    /// # Errors
    /// What `propose` says.
    pub async fn propose(&self, id: u64, term: Term, body: &[u8]) -> Result<Proposed, ProposeError> {
        let item = EncodedItem::new(1, 0, 1, &[body]);
        let deadline = Instant::now() + Duration::from_secs(5);
        self.group(id).propose(term, vec![item], deadline).await
    }

    /// Proposes at whoever leads until it is confirmed; for bodies that may be stored twice.
    ///
    /// # Panics
    /// Not confirmed within ten seconds.
    pub async fn propose_anywhere(&self, body: &[u8]) -> Proposed {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let (id, term) = self.leader().await;
            match self.propose(id, term, body).await {
                Ok(proposed) => return proposed,
                Err(error) => assert!(Instant::now() < deadline, "not confirmed: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until every running member has applied entry `index`.
    ///
    /// # Panics
    /// Not within ten seconds.
    pub async fn applied(&self, index: u64) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let running: Vec<_> = self.members.iter().filter(|m| m.group.is_some()).collect();
        while !running.iter().all(|m| m.applied.applied().is_some_and(|id| id.index.0 >= index)) {
            let at: Vec<_> = running.iter().map(|m| m.applied.applied()).collect();
            assert!(Instant::now() < deadline, "entry {index} is not applied everywhere: {at:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Logs of all running members.
    #[must_use]
    pub fn logs(&self) -> Vec<mq_store::commit_log::CommitLog> {
        self.members.iter().filter_map(|m| m.group.as_ref()?.log()).collect()
    }
}

/// The port was this member's a moment ago.
async fn bind_again(address: &str) -> Result<Arc<Transport>, StartError> {
    let mut tries = 0;
    loop {
        match Transport::bind(address).await {
            Ok(transport) => return Ok(transport),
            Err(error) if tries == 100 => return Err(error),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
