//! Changes of the members of running groups: each step is safe or is refused by its reason.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mq_raft::testkit::{Cluster, Options, common_log};
use mq_raft::{GroupState, Leadership, MemberError, TransferError};
use mq_store::Term;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn started(n: u64, dir: &tempfile::TempDir, options: Options) -> Cluster {
    let cluster = Cluster::started(n, dir.path().to_path_buf(), options).await.expect("all members start");
    let first = cluster.propose_anywhere(b"first").await.id.index.0;
    cluster.applied(first).await;
    cluster
}

fn voters(cluster: &Cluster, at: u64) -> BTreeSet<u64> {
    cluster.group(at).members().iter().filter(|member| member.voter).map(|member| member.id).collect()
}

fn others(n: u64, leader: u64) -> Vec<u64> {
    (1..=n).filter(|id| *id != leader).collect()
}

/// RB-5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_confirms_nothing_and_elects_nobody() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(3, &dir, Options::default()).await;
    let (leader, term) = cluster.leader().await;
    let [removed, kept] = others(3, leader)[..] else { panic!("three members") };
    cluster.group(leader).remove(removed, soon()).await.expect("a majority stays");
    assert_eq!(voters(&cluster, leader), BTreeSet::from([leader, kept]));
    cluster.propose(leader, term, b"by the two that are left").await.expect("confirmed");
    // The removed one and the leader were a majority of the old members.
    cluster.kill(kept).await;
    let alone = cluster.propose(leader, term, b"not by the removed one").await;
    assert!(alone.is_err(), "confirmed with a removed member: {alone:?}");
    // Started again, it still knows the old membership and would like to elect.
    cluster.kill(removed).await;
    cluster.start(removed).await.expect("its folder is whole");
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(2500) {
        assert!(cluster.views().iter().all(|(id, view)| *id != removed || !view.me), "it leads");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cluster.start(kept).await.expect("restart");
    let (leader, _) = cluster.leader().await;
    assert_ne!(leader, removed);
    cluster.propose_anywhere(b"again by the two").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_would_cost_the_majority_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(3, &dir, Options::default()).await;
    let (leader, term) = cluster.leader().await;
    let [up, down] = others(3, leader)[..] else { panic!("three members") };
    let refused = cluster.group(up).remove(down, soon()).await.expect_err("only the leader can");
    assert!(matches!(refused, MemberError::NotLeader { leader: Some(ref l) } if l.id == leader), "{refused}");
    let refused = cluster.group(leader).remove(leader, soon()).await.expect_err("it leads");
    assert_eq!(refused, MemberError::Leads { id: leader });
    cluster.kill(down).await;
    tokio::time::sleep(Options::default().timers.election_max * 3).await;
    for refused in
        [cluster.group(leader).remove(up, soon()).await, cluster.group(leader).demote(up, soon()).await]
    {
        assert_eq!(refused, Err(MemberError::MajorityAtRisk { current: 1, voters: 2, needed: 2 }));
    }
    assert_eq!(voters(&cluster, leader), BTreeSet::from([1, 2, 3]));
    cluster.group(leader).remove(down, soon()).await.expect("the one that is down may go");
    cluster.propose(leader, term, b"of two").await.expect("confirmed");
    cluster.group(leader).remove(up, soon()).await.expect("down to one");
    cluster.propose(leader, term, b"of one").await.expect("confirmed");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_learner_that_is_behind_gets_no_vote_and_one_that_is_current_does() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut options = Options::default();
    options.limits.apply_lag = 8;
    let mut cluster = started(3, &dir, options).await;
    let (leader, term) = cluster.leader().await;
    let learner = others(3, leader)[1];
    cluster.group(leader).demote(learner, soon()).await.expect("a majority stays");
    until("it learns", || cluster.group(learner).status().state == GroupState::Learner).await;
    cluster.cut(leader, learner);
    for number in 0..20u8 {
        cluster.propose(leader, term, &[number]).await.expect("confirmed without it");
    }
    let refused = cluster.group(leader).promote(learner, soon()).await.expect_err("behind");
    let MemberError::TargetBehind { id, behind, limit } = refused else { panic!("{refused}") };
    assert!(id == learner && behind > limit && limit == 8, "{behind} of {limit}");
    cluster.heal();
    let last = cluster.propose(leader, term, b"after").await.expect("confirmed").id.index.0;
    cluster.applied(last).await;
    let group = cluster.group(leader);
    let deadline = soon();
    while let Err(refused) = group.promote(learner, soon()).await {
        let waits = matches!(refused, MemberError::TargetBehind { .. } | MemberError::TargetSilent { .. });
        assert!(waits && Instant::now() < deadline, "{refused}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(voters(&cluster, leader), BTreeSet::from([1, 2, 3]));
    // Its vote counts: with it and without the third there is a majority.
    cluster.kill(others(3, leader)[0]).await;
    cluster.propose_anywhere(b"with its vote").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_changes_at_the_same_time_each_is_made_whole_or_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(5, &dir, Options::default()).await;
    let (leader, _) = cluster.leader().await;
    let targets = others(5, leader);
    let steps = targets.iter().map(|id| cluster.group(leader).demote(*id, soon()));
    let outcomes = futures::future::join_all(steps).await;
    let demoted: BTreeSet<_> =
        targets.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok()).map(|(id, _)| *id).collect();
    assert!(!demoted.is_empty(), "{outcomes:?}");
    for refused in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert!(refused.certainly_not_changed(), "{refused}");
    }
    let left: BTreeSet<_> = (1..=5).filter(|id| !demoted.contains(id)).collect();
    assert_eq!(voters(&cluster, leader), left);
    let last = cluster.propose_anywhere(b"after").await.id.index.0;
    cluster.applied(last).await;
    common_log(&cluster.logs(), last).expect("one log");
    cluster.stop().await;
}

/// RB-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_to_a_current_member_or_stays_with_a_reason() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(3, &dir, Options::default()).await;
    let (leader, term) = cluster.leader().await;
    let [behind, current] = others(3, leader)[..] else { panic!("three members") };
    cluster.cut(leader, behind);
    cluster.propose(leader, term, b"not on all").await.expect("confirmed by two");
    for (target, wait) in [(behind, 300), (9, 100)] {
        let deadline = Instant::now() + Duration::from_millis(wait);
        let refused = cluster.group(leader).transfer_leadership(Some(target), deadline).await;
        let Err(TransferError::NoTarget(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains(&format!("node {target}")), "{why}");
    }
    let began = Instant::now();
    cluster.propose(leader, term, b"it still leads").await.expect("confirmed");
    cluster.heal();
    cluster.group(leader).transfer_leadership(Some(current), soon()).await.expect("it is current");
    cluster.propose_anywhere(b"the next one").await;
    assert!(began.elapsed() < Duration::from_secs(2), "interrupted for {:?}", began.elapsed());
    assert_eq!(cluster.leader_after(term).await.0, current);
    cluster.stop().await;
}

/// RB-26: the gap that proposals see when the leader stops in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_stop_interrupts_for_less_than_300_ms() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(3, &dir, Options::default()).await;
    let mut gaps = Vec::new();
    for round in 0..5u8 {
        let (leader, term) = cluster.leader().await;
        cluster.propose(leader, term, &[round]).await.expect("confirmed");
        let before = Instant::now();
        let group = cluster.group(leader).clone();
        let stopping = tokio::runtime::Handle::current().spawn(async move { group.shutdown().await });
        let (next, newer) = cluster.leader_after(term).await;
        cluster.propose(next, newer, b"by the next").await.expect("confirmed");
        gaps.push(before.elapsed());
        stopping.await.expect("stopped");
        cluster.shutdown(leader).await;
        cluster.start(leader).await.expect("restart");
        let last = cluster.propose_anywhere(b"all are back").await.id.index.0;
        cluster.applied(last).await;
    }
    gaps.sort();
    println!("gaps of planned stops: {gaps:?}");
    assert!(gaps[4] < Duration::from_millis(300), "{gaps:?}");
    cluster.stop().await;
}

/// RB-18
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_alone_returns_without_a_change_of_the_leader() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(3, &dir, Options::default()).await;
    let (leader, term) = cluster.leader().await;
    let alone = others(3, leader)[0];
    cluster.isolate(alone);
    for number in 0..20u8 {
        cluster.propose(leader, term, &[number]).await.expect("confirmed without it");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cluster.heal();
    let last = cluster.propose(leader, term, b"healed").await.expect("confirmed").id.index.0;
    cluster.applied(last).await;
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(cluster.leader().await, (leader, term), "the leader changed");
    cluster.stop().await;
}

/// RB-27
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_members_work_with_two_of_them_down() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(5, &dir, Options::default()).await;
    let (leader, term) = cluster.leader().await;
    let follower = others(5, leader)[0];
    cluster.kill(follower).await;
    cluster.kill(leader).await;
    cluster.leader_after(term).await;
    let last = cluster.propose_anywhere(b"by three of five").await.id.index.0;
    cluster.applied(last).await;
    cluster.start(leader).await.expect("restart");
    cluster.start(follower).await.expect("restart");
    let last = cluster.propose_anywhere(b"by all").await.id.index.0;
    cluster.applied(last).await;
    common_log(&cluster.logs(), last).expect("one log");
    cluster.stop().await;
}

/// All (term, leader) that a member claims for itself from now on.
fn claims(cluster: &Cluster, id: u64, seen: &std::sync::Arc<parking_lot::Mutex<BTreeSet<(Term, u64)>>>) {
    let (mut leadership, seen) = (cluster.group(id).leadership(), seen.clone());
    tokio::runtime::Handle::current().spawn(async move {
        loop {
            let Leadership { term, me, .. } = leadership.borrow_and_update().clone();
            if me {
                seen.lock().insert((term, id));
            }
            if leadership.changed().await.is_err() {
                return;
            }
        }
    });
}

/// D10: answers to `LeaderGone` that are cut off or come late cost elections, never a second leader of a term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_elections_under_cuts_and_delays_never_make_two_leaders_of_a_term() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut cluster = started(5, &dir, Options::default()).await;
    let seen = std::sync::Arc::new(parking_lot::Mutex::new(BTreeSet::new()));
    (1..=5).for_each(|id| claims(&cluster, id, &seen));
    let mut confirmed = 1;
    for round in 0..4u64 {
        let (leader, term) = cluster.leader().await;
        let rest = others(5, leader);
        for (place, from) in rest.iter().enumerate() {
            let to = rest[(place + 1) % rest.len()];
            match (place as u64 + round) % 4 {
                0 => cluster.cut(*from, to),
                number => {
                    let faults = cluster.member(*from).transport.as_ref().expect("it runs").faults();
                    // Below, at and above the time for which a yes holds.
                    faults.delay(to, Duration::from_millis([0, 40, 99, 140][number as usize]));
                }
            }
        }
        cluster.kill(leader).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        cluster.heal();
        cluster.leader_after(term).await;
        cluster.start(leader).await.expect("restart");
        claims(&cluster, leader, &seen);
        let last = cluster.propose_anywhere(&round.to_le_bytes()).await.id.index.0;
        confirmed += 1;
        cluster.applied(last).await;
        common_log(&cluster.logs(), last).expect("one log");
    }
    let seen = seen.lock().clone();
    let terms: BTreeSet<_> = seen.iter().map(|(term, _)| *term).collect();
    assert!(terms.len() >= 5, "a leader per round: {seen:?}");
    assert_eq!(terms.len(), seen.len(), "two leaders in a term: {seen:?}");
    assert!(cluster.members.iter().all(|member| member.applied.items().len() >= confirmed));
    cluster.stop().await;
}
