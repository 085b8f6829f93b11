use mq_protocol::cluster::{NameIncrement, NameMember, TopicName};

use super::*;

fn member(id: u64) -> NameMember {
    NameMember {
        node_id: id,
        node: format!("b{id}"),
        client_address: format!("b{id}.example.net:8081"),
        role: "data".into(),
        voter: true,
        ..NameMember::default()
    }
}

fn report(term: u64, applied: u64) -> NameReport {
    NameReport {
        broker_group: "broker-a".into(),
        group_uuid: "uuid-a".into(),
        term,
        applied_index: applied,
        leader_id: term % 3 + 1,
        members: (1..=3).map(member).collect(),
        full: None,
        increment: None,
    }
}

fn topic(name: &str, queues: u32) -> NameTopic {
    NameTopic { name: name.into(), queues, permission: 6, message_type: 1, ..NameTopic::default() }
}

fn full(term: u64, to: u64, part: u32, of: u32, topics: &[&str]) -> NameReport {
    let topics = topics.iter().map(|name| topic(name, 8)).collect();
    NameReport { full: Some(NameFull { to, part, of, topics }), ..report(term, to) }
}

fn increment(term: u64, from: u64, to: u64, changed: &[&str], removed: &[&str]) -> NameReport {
    let increment = NameIncrement {
        from,
        to,
        changed: changed.iter().map(|name| topic(name, 8)).collect(),
        removed: removed
            .iter()
            .map(|name| TopicName { name: (*name).into(), ..TopicName::default() })
            .collect(),
    };
    NameReport { increment: Some(increment), ..report(term, to) }
}

/// A table beside the state that its changes wrote.
#[derive(Default)]
struct Kept {
    table: RouteTable,
    groups: BTreeMap<String, NameGroupRecord>,
    topics: BTreeMap<(String, String), NameTopic>,
    staged: BTreeMap<(String, u32), NameFull>,
}

impl Kept {
    fn apply(&mut self, report: &NameReport) -> Outcome {
        let applied = self.table.apply_report(report);
        self.keep(applied)
    }

    fn lose(&mut self, term: u64, applied: u64) -> Outcome {
        let applied = self.table.apply_lost(&NameLost {
            broker_group: "broker-a".into(),
            group_uuid: "uuid-a".into(),
            term,
            applied_index: applied,
        });
        self.keep(applied)
    }

    fn keep(&mut self, applied: Applied) -> Outcome {
        for change in applied.changes {
            match change {
                Change::Group(record) => {
                    self.groups.insert(record.broker_group.clone(), record);
                }
                Change::Topic { group, topic } => {
                    self.topics.insert((group, topic_key(&topic.namespace, &topic.name)), topic);
                }
                Change::TopicGone { group, key } => {
                    self.topics.remove(&(group, key)).expect("was there");
                }
                Change::Staged { group, full } => {
                    self.staged.insert((group, full.part), full);
                }
                Change::StagedGone { group, part } => {
                    self.staged.remove(&(group, part));
                }
            }
        }
        let loaded = RouteTable::load(
            self.groups.values().cloned().collect(),
            self.topics.iter().map(|((group, _), topic)| (group.clone(), topic.clone())).collect(),
            self.staged.iter().map(|((group, _), full)| (group.clone(), full.clone())).collect(),
        );
        assert_eq!(loaded, self.table, "what the state keeps is the table");
        applied.outcome
    }

    fn names(&self) -> Vec<String> {
        self.table
            .group("broker-a")
            .map(|group| group.topics().map(|t| t.name.clone()).collect())
            .unwrap_or_default()
    }

    fn leader(&self) -> u64 {
        self.table.group("broker-a").expect("known").record().leader_id
    }
}

#[test]
fn an_older_leader_never_replaces_a_newer_one() {
    let mut kept = Kept::default();
    assert_eq!(kept.apply(&full(5, 100, 0, 1, &["a"])), Outcome::Applied);
    assert_eq!(kept.leader(), 3);
    for stale in
        [report(4, 900), report(5, 99), increment(4, 100, 200, &["z"], &[]), full(4, 200, 0, 1, &["z"])]
    {
        assert_eq!(kept.apply(&stale), Outcome::Stale, "{stale:?}");
    }
    let impostor = NameReport { leader_id: 1, ..report(5, 200) };
    assert_eq!(kept.apply(&impostor), Outcome::Stale, "one leader per term");
    assert_eq!((kept.leader(), kept.names()), (3, vec!["a".to_owned()]));
    assert_eq!(kept.apply(&report(6, 100)), Outcome::Applied);
    assert_eq!((kept.leader(), kept.names()), (1, vec!["a".to_owned()]), "the topics stay");
    assert_eq!(kept.apply(&report(5, 500)), Outcome::Stale, "also after the change of leader");
}

#[test]
fn another_uuid_under_a_known_name_changes_nothing() {
    let mut kept = Kept::default();
    kept.apply(&full(5, 100, 0, 1, &["a"]));
    let other = NameReport { group_uuid: "uuid-b".into(), ..full(9, 900, 0, 1, &["b"]) };
    assert_eq!(kept.apply(&other), Outcome::OtherUuid);
    assert_eq!((kept.leader(), kept.names()), (3, vec!["a".to_owned()]));
}

#[test]
fn an_increment_must_begin_where_the_view_ends() {
    let mut kept = Kept::default();
    assert_eq!(kept.apply(&increment(1, 0, 10, &["a"], &[])), Outcome::Resync, "there is no view yet");
    kept.apply(&full(1, 10, 0, 1, &["a", "b"]));
    assert_eq!(kept.apply(&increment(1, 10, 20, &["c"], &["a"])), Outcome::Applied);
    assert_eq!(kept.names(), ["b", "c"]);
    assert_eq!(kept.apply(&increment(1, 10, 20, &["c"], &["a"])), Outcome::Unchanged, "sent again");
    assert_eq!(kept.apply(&increment(2, 25, 30, &["d"], &[])), Outcome::Resync, "20 to 25 is missing");
    assert_eq!(
        (kept.leader(), kept.names()),
        (3, vec!["b".into(), "c".into()]),
        "the leader is known all the same"
    );
    assert_eq!(kept.apply(&increment(2, 20, 30, &["d"], &[])), Outcome::Applied);
    assert_eq!(kept.names(), ["b", "c", "d"]);
}

#[test]
fn a_full_report_replaces_the_view_only_when_it_is_complete() {
    let mut kept = Kept::default();
    kept.apply(&full(1, 10, 0, 1, &["a", "b"]));
    assert_eq!(kept.apply(&full(2, 20, 1, 3, &["e"])), Outcome::Staged);
    assert_eq!(kept.apply(&full(2, 20, 0, 3, &["b", "c"])), Outcome::Staged);
    assert_eq!(kept.apply(&full(2, 20, 0, 3, &["b", "c"])), Outcome::Staged, "sent again");
    assert_eq!(kept.names(), ["a", "b"], "the old view until then");
    assert_eq!(kept.apply(&full(2, 20, 2, 3, &[])), Outcome::Applied);
    assert_eq!(kept.names(), ["b", "c", "e"]);
    assert_eq!(kept.table.group("broker-a").expect("known").record().view_index, 20);
    assert!(kept.staged.is_empty(), "staged parts are gone");
}

#[test]
fn parts_of_different_reports_never_mix() {
    let mut kept = Kept::default();
    kept.apply(&full(1, 10, 0, 2, &["old"]));
    assert_eq!(kept.apply(&full(2, 10, 1, 2, &["new-1"])), Outcome::Staged, "another term");
    assert_eq!(kept.apply(&full(2, 12, 0, 2, &["newer-0"])), Outcome::Staged, "another index");
    assert_eq!(kept.apply(&full(2, 12, 1, 2, &["newer-1"])), Outcome::Applied);
    assert_eq!(kept.names(), ["newer-0", "newer-1"]);
    assert_eq!(kept.apply(&full(2, 30, 0, 2, &["x"])), Outcome::Staged);
    assert_eq!(kept.apply(&increment(2, 12, 31, &["y"], &[])), Outcome::Applied);
    assert!(kept.staged.is_empty(), "an increment overtook the full report");
    assert_eq!(kept.apply(&full(2, 31, 0, 1, &[])), Outcome::Unchanged, "the view is there already");
    assert_eq!(kept.names(), ["newer-0", "newer-1", "y"]);
}

#[test]
fn insane_commands_are_answered_and_change_nothing() {
    let mut kept = Kept::default();
    let nameless = NameReport { broker_group: String::new(), ..report(1, 1) };
    let mut both = full(1, 1, 0, 1, &["a"]);
    both.increment = increment(1, 0, 1, &[], &[]).increment;
    for insane in [nameless, both, full(1, 1, 1, 1, &[]), full(1, 1, 0, 0, &[]), increment(1, 5, 4, &[], &[])]
    {
        assert_eq!(kept.apply(&insane), Outcome::Unknown, "{insane:?}");
    }
    assert_eq!(kept.table, RouteTable::default());
}

#[test]
fn a_lost_group_is_shown_as_such_until_it_reports_again() {
    let mut kept = Kept::default();
    assert_eq!(kept.lose(1, 10), Outcome::Stale, "nobody of that name");
    kept.apply(&full(1, 10, 0, 1, &["a"]));
    kept.apply(&report(2, 11));
    assert_eq!(kept.lose(1, 10), Outcome::Stale, "it registered meanwhile");
    assert_eq!(kept.lose(2, 11), Outcome::Applied);
    assert_eq!(kept.lose(2, 11), Outcome::Unchanged);
    assert!(kept.table.group("broker-a").expect("known").info("c").lost);
    let route = kept.table.route("", "a").expect("its last route is better than none");
    assert_eq!(route.groups.len(), 1);
    assert!(
        !kept.table.group("broker-a").expect("known").is_keep_alive(&report(2, 12)),
        "a sign of life is news"
    );
    assert_eq!(kept.apply(&report(2, 12)), Outcome::Applied);
    assert!(!kept.table.group("broker-a").expect("known").info("c").lost);
    assert!(kept.table.group("broker-a").expect("known").is_keep_alive(&report(2, 13)));
}

#[test]
fn routes_are_ordered_and_name_the_leader_of_each_group() {
    let mut kept = Kept::default();
    kept.apply(&full(4, 10, 0, 1, &["b", "a"]));
    let other = NameReport {
        broker_group: "broker-0".into(),
        group_uuid: "uuid-0".into(),
        members: vec![NameMember { client_address: "other:8081".into(), ..member(1) }],
        leader_id: 1,
        ..full(1, 5, 0, 1, &["b", "c"])
    };
    kept.apply(&other);
    let groups = |name| {
        let route = kept.table.route("", name).expect("known");
        let groups = route.groups.into_iter().map(|group| (group.broker_group, group.leader_client_address));
        groups.collect::<Vec<_>>()
    };
    let leader = ("broker-a".to_owned(), "b2.example.net:8081".to_owned());
    assert_eq!(groups("b"), [("broker-0".to_owned(), "other:8081".to_owned()), leader.clone()]);
    assert_eq!(groups("a"), vec![leader.clone()]);
    assert!(kept.table.route("ns", "b").is_none(), "namespaces are apart");
    let names = |after: &str, limit| {
        let (routes, more) = kept.table.routes(after, limit);
        (routes.into_iter().filter_map(|route| route.topic).map(|topic| topic.name).collect::<Vec<_>>(), more)
    };
    assert_eq!(names("", 2), (vec!["a".to_owned(), "b".to_owned()], true));
    assert_eq!(names("b", 2), (vec!["c".to_owned()], false));
    // A lost group is left out as long as another one has the topic.
    kept.table.apply_lost(&NameLost {
        broker_group: "broker-0".into(),
        group_uuid: "uuid-0".into(),
        term: 1,
        applied_index: 5,
    });
    let route = kept.table.route("", "b").expect("known");
    assert_eq!(route.groups.len(), 1);
    assert_eq!(route.groups[0].broker_group, "broker-a");
}

#[test]
fn topics_whose_texts_are_equal_are_two_topics() {
    let in_namespace =
        |namespace: &str, name: &str| NameTopic { namespace: namespace.into(), ..topic(name, 8) };
    let topics = vec![
        in_namespace("", "a%b"),
        in_namespace("a", "b"),
        in_namespace("a", "b%c"),
        in_namespace("a-b", "c"),
        in_namespace("", "%a"),
    ];
    assert_eq!(resource("", "a%b"), resource("a", "b"));
    let mut kept = Kept::default();
    let all = NameReport { full: Some(NameFull { to: 10, part: 0, of: 1, topics }), ..report(1, 10) };
    assert_eq!(kept.apply(&all), Outcome::Applied);
    assert_eq!((kept.topics.len(), kept.table.topic_count()), (5, 5));
    let mut listed = Vec::new();
    let mut start_after = String::new();
    loop {
        let (routes, more) = kept.table.routes(&start_after, 1);
        let found = routes.into_iter().filter_map(|route| route.topic).next().expect("a topic");
        // The text that brokers and administrators make of the last one seen.
        start_after = format!("{}%{}", found.namespace, found.name);
        listed.push((found.namespace, found.name));
        if !more {
            break;
        }
    }
    let expected = [("", "%a"), ("", "a%b"), ("a", "b"), ("a", "b%c"), ("a-b", "c")];
    assert_eq!(listed, expected.map(|(namespace, name)| (namespace.to_owned(), name.to_owned())));
    let removed = vec![TopicName { namespace: "a".into(), name: "b".into() }];
    let gone = NameIncrement { from: 10, to: 20, changed: Vec::new(), removed };
    assert_eq!(
        kept.apply(&NameReport { full: None, increment: Some(gone), ..report(1, 20) }),
        Outcome::Applied
    );
    assert!(kept.table.route("a", "b").is_none());
    assert!(kept.table.route("", "a%b").is_some(), "the other one stays");
}
