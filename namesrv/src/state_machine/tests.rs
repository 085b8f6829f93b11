use std::collections::BTreeMap;

use mq_protocol::cluster::{NameMember, NameReport};
use mq_store::{MemoryState, OsFileSystem};

use super::*;

const STATE_FAMILIES: &[&str] = FAMILIES;

fn report(term: u64, part: u32, of: u32, topics: &[&str]) -> NameReport {
    let topic = |name: &&str| NameTopic { name: (*name).into(), queues: 8, ..NameTopic::default() };
    NameReport {
        broker_group: "broker-a".into(),
        group_uuid: "uuid".into(),
        term,
        applied_index: 10 * term,
        leader_id: 1,
        members: vec![NameMember { node_id: 1, ..NameMember::default() }],
        full: Some(NameFull { to: 10 * term, part, of, topics: topics.iter().map(topic).collect() }),
        increment: None,
    }
}

fn apply(state: &MemoryState, shown: &mut Shown, report: NameReport) -> NameResult {
    let mut batch = WriteBatch::new();
    let id = EntryId::new(3, 4);
    let answer = apply_item(shown, Some(Command::Report(report)), id, &mut batch, &mut Vec::new());
    state.write(&batch).expect("write");
    NameResult::decode(answer).expect("an answer")
}

/// All rows of the state.
fn dump(state: &MemoryState) -> BTreeMap<(usize, Vec<u8>), Vec<u8>> {
    let mut rows = BTreeMap::new();
    for family in 0..FAMILIES.len() {
        let mut put =
            |key: &[u8], value: &[u8]| rows.insert((family, key.to_vec()), value.to_vec()).is_none();
        state.scan(family, &[], None, &mut put).expect("scan");
    }
    rows
}

#[test]
fn a_restart_finds_the_same_table_after_every_command() {
    let state = MemoryState::new(Arc::new(OsFileSystem), STATE_FAMILIES);
    let mut shown = Shown::default();
    let steps = [
        (report(1, 0, 1, &["a", "b"]), Outcome::Applied),
        (report(2, 0, 2, &["b"]), Outcome::Staged),
        (report(1, 0, 1, &["z"]), Outcome::Stale),
        (report(2, 1, 2, &["c"]), Outcome::Applied),
    ];
    for (report, expected) in steps {
        let result = apply(&state, &mut shown, report);
        assert_eq!(result.outcome(), expected);
        assert_eq!((result.term, result.index, result.has_view), (3, 4, true));
        assert_eq!(load(&state).expect("load"), shown.table);
    }
    assert!(shown.table.route("", "c").is_some());
    assert!(shown.table.route("", "a").is_none());
    assert_eq!(dump(&state).keys().filter(|(family, _)| *family == STAGED).count(), 0);
}

#[test]
fn the_same_commands_give_the_same_bytes() {
    let states: Vec<MemoryState> =
        (0..2).map(|_| MemoryState::new(Arc::new(OsFileSystem), STATE_FAMILIES)).collect();
    let (mut one, mut other) = (Shown::default(), Shown::default());
    let reports = [report(1, 0, 2, &["x", "y"]), report(1, 1, 2, &["z"]), report(2, 0, 2, &["y"])];
    for (place, report) in reports.into_iter().enumerate() {
        apply(&states[0], &mut one, report.clone());
        if place == 1 {
            // A replica that restarts in between goes on from what it kept.
            other.table = load(&states[1]).expect("load");
        }
        apply(&states[1], &mut other, report);
    }
    assert_eq!(dump(&states[0]), dump(&states[1]));
    assert!(!dump(&states[0]).is_empty());
}

#[test]
fn damaged_rows_are_named() {
    let state = MemoryState::new(Arc::new(OsFileSystem), STATE_FAMILIES);
    let mut batch = WriteBatch::new();
    batch.put(GROUPS, b"broker-a", &[0xff, 0xff]);
    state.write(&batch).expect("write");
    let error = load(&state).expect_err("unreadable").to_string();
    assert!(error.contains("groups") && error.contains("broker-a"), "{error}");
}
