use super::*;

fn put(key: &str, value: &str, expected: Option<u64>) -> NameKv {
    let value = Some(Bytes::copy_from_slice(value.as_bytes()));
    NameKv { namespace: "ns".into(), key: key.into(), value, expected }
}

fn delete(key: &str, expected: Option<u64>) -> NameKv {
    NameKv { namespace: "ns".into(), key: key.into(), value: None, expected }
}

fn name(key: &str) -> Name {
    ("ns".into(), key.into())
}

fn keys(page: &Page) -> Vec<(&str, u64)> {
    page.entries.iter().map(|((_, key), entry)| (key.as_str(), entry.revision)).collect()
}

#[test]
fn of_two_changes_that_expect_the_same_revision_one_is_done() {
    let mut table = KvTable::default();
    assert_eq!(table.apply(&put("a", "1", Some(0))), Outcome::Applied);
    assert_eq!(table.apply(&put("a", "2", Some(0))), Outcome::Mismatch);
    assert_eq!(table.apply(&put("a", "2", Some(1))), Outcome::Applied);
    assert_eq!(table.apply(&put("a", "3", Some(1))), Outcome::Mismatch);
    assert_eq!(table.apply(&delete("a", Some(1))), Outcome::Mismatch);
    let entry = table.get(&name("a")).expect("there");
    assert_eq!((&entry.value[..], entry.revision, entry.created), (&b"2"[..], 2, 1));
    assert_eq!(table.apply(&delete("a", Some(2))), Outcome::Applied);
    assert_eq!(table.apply(&delete("a", None)), Outcome::Unchanged);
    assert_eq!(table.apply(&delete("a", Some(2))), Outcome::Mismatch, "it is gone");
    assert_eq!(table.revision(), 3, "what changed nothing has no revision");
    assert_eq!(table.apply(&put("a", "4", Some(0))), Outcome::Applied);
    assert_eq!(table.get(&name("a")).map(|entry| entry.created), Some(4), "another life");
}

#[test]
fn bounds_are_bounds_and_deleting_makes_room() {
    let mut table = KvTable::default();
    let large = "x".repeat(VALUE_MAX);
    let mut count = 0;
    while table.apply(&put(&format!("k{count}"), &large, None)) == Outcome::Applied {
        count += 1;
    }
    assert!(table.bytes() <= BYTES_MAX && count >= BYTES_MAX / (VALUE_MAX + 8), "{count}");
    assert_eq!(table.apply(&put("k0", &large, None)), Outcome::Applied, "no more than before");
    assert_eq!(table.apply(&delete("k1", None)), Outcome::Applied);
    assert_eq!(table.apply(&put("again", &large[..VALUE_MAX - 8], None)), Outcome::Applied);
    for key in table.entries.keys().cloned().collect::<Vec<_>>() {
        table.apply(&delete(&key.1, None));
    }
    assert_eq!((table.len(), table.bytes()), (0, 0));
}

#[test]
fn all_pages_of_a_listing_show_one_revision() {
    let mut table = KvTable::default();
    for key in ["a", "b", "c", "d"] {
        table.apply(&put(key, "1", None));
    }
    table.apply(&NameKv { namespace: "other".into(), ..put("z", "1", None) });
    let first = table.page("ns", &Name::default(), 2, 0).expect("kept");
    assert_eq!((keys(&first), first.more, first.revision), (vec![("a", 1), ("b", 2)], true, 5));
    table.apply(&put("d", "2", None));
    table.apply(&delete("c", None));
    table.apply(&put("e", "1", None));
    table.apply(&put("d", "3", None));
    let second = table.page("ns", &name("b"), 2, first.revision).expect("kept");
    assert_eq!((keys(&second), second.more, second.revision), (vec![("c", 3), ("d", 4)], false, 5));
    let newest = table.page("ns", &Name::default(), 10, 0).expect("kept");
    assert_eq!(keys(&newest), [("a", 1), ("b", 2), ("d", 9), ("e", 8)]);
    let all = table.page("", &name("d"), 10, 0).expect("kept");
    assert_eq!(keys(&all), [("e", 8), ("z", 5)], "all namespaces");
    assert_eq!(table.page("aaa", &Name::default(), 10, 0).expect("kept").entries, []);
}

#[test]
fn what_is_not_kept_is_said_and_not_left_out() {
    let mut table = KvTable::load(vec![(name("a"), NameKvRecord::default())], 7);
    assert!(table.history().behind(6).is_none(), "before this process");
    assert_eq!(table.history().behind(7).expect("kept").count(), 0);
    assert!(table.page("ns", &Name::default(), 1, 6).is_none());
    for n in 0..10_010 {
        table.apply(&put("a", &n.to_string(), None));
    }
    assert!(table.history().behind(16).is_none());
    let revisions: Vec<u64> = table.history().behind(17).expect("kept").map(|event| event.revision).collect();
    assert_eq!(revisions, (18..=10_017).collect::<Vec<u64>>(), "in order, without a gap");
    assert_eq!(table.history().behind(10_016).expect("kept").count(), 1);
    assert_eq!(table.history().behind(20_000).expect("nothing yet").count(), 0);
}
