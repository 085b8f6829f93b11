//! `mqadmin` as scripts see it: exit codes, text, JSON.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::standin::services::ReceiveStep;
use crate::standin::{Standin, Step, TOPIC};

/// Runs it against the nodes; a call may last a second.
fn run_with(standin: &Standin, arguments: &[&str], input: &str) -> Output {
    let addresses: Vec<_> = (0..standin.count()).map(|node| standin.address(node)).collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_mqadmin"))
        .args(["--broker", &addresses.join(","), "--timeout", "1s"])
        .args(arguments)
        .env_remove("NAMESRV_ADDR")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mqadmin is built");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads its input");
    child.wait_with_output().expect("it ends")
}

fn run(standin: &Standin, arguments: &[&str]) -> Output {
    run_with(standin, arguments, "")
}

#[track_caller]
fn exits(output: &Output, code: i32) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}\n{errors}");
    text
}

#[track_caller]
fn json(output: &Output) -> Vec<serde_json::Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON value per line")).collect()
}

#[test]
fn status_is_10_when_something_is_wrong() {
    let mut standin = Standin::start();
    let text = exits(&run(&standin, &["status"]), 0);
    assert!(text.contains("leader *") && text.lines().count() == 4, "{text}");
    let values = json(&run(&standin, &["cluster", "--json"]));
    assert_eq!(values[0]["healthy"], true);
    assert_eq!(values[0]["broker_groups"][0]["leader"], "b1");
    assert_eq!(values[0]["broker_groups"][0]["members"].as_array().map(Vec::len), Some(3));
    standin.kill(1);
    let output = run(&standin, &["status"]);
    assert!(exits(&output, 10).contains("no answer"));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("unhealthy: broker-a: b2 does not answer"));
}

#[test]
fn queues_are_shown_by_position() {
    let standin = Standin::start();
    let rows = json(&run(&standin, &["topicStatus", "-t", TOPIC, "--json"]));
    assert_eq!(
        rows,
        [serde_json::json!([
            { "broker_group": "broker-a", "queue": 0, "min": 2, "max": 8, "last_stored_ms": 77 }
        ])]
    );
    let text = exits(&run(&standin, &["queryMsgByOffset", "-t", TOPIC, "-i", "0", "-o", "7"]), 0);
    assert!(text.ends_with("body         5 bytes\nseven\n"), "{text}");
    let output = run(&standin, &["queryMsgByOffset", "-t", TOPIC, "-i", "0", "-o", "8"]);
    exits(&output, 3);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("offset 8 of queue 0: it holds 2 to 8"), "{errors}");
    exits(&run(&standin, &["verify", "--no-name-servers"]), 0);
    exits(&run(&standin, &["digest", "--no-name-servers"]), 0);
}

#[test]
fn topics_are_created_listed_routed_and_deleted() {
    let standin = Standin::start();
    exits(&run(&standin, &["topic", "create", "-t", "t1", "--queues", "4", "--type", "DELAY"]), 0);
    assert!(exits(&run(&standin, &["topic", "create", "-t", "t1"]), 0).contains("unchanged"));
    let listed = exits(&run(&standin, &["topic", "list"]), 0);
    assert!(listed.starts_with("TOPIC") && listed.contains("t1") && listed.contains("DELAY"), "{listed}");
    let route = json(&run(&standin, &["topic", "route", "-t", "t1", "--json"]));
    assert_eq!(route[0]["groups"][0]["leader"], standin.address(0));
    exits(&run(&standin, &["topic", "delete", "-t", "t1"]), 0);
    exits(&run(&standin, &["topic", "delete", "-t", "t1"]), 3);
    exits(&run(&standin, &["topic", "route", "-t", "t1"]), 3);
}

#[test]
fn exit_codes_tell_why() {
    let mut standin = Standin::start();
    exits(&run(&standin, &["topic", "create", "-t", "a b"]), 2);
    exits(&run(&standin, &["topic", "create", "-t", "a", "--type", "NO"]), 2);
    exits(&run(&standin, &["topic"]), 2);
    exits(&run(&standin, &["no-such-command"]), 2);
    for (code, exit) in [(40_300, 5), (40_402, 3), (42_800, 1), (40_000, 2)] {
        standin.state.lock().admin.push_back(code);
        exits(&run(&standin, &["topic", "create", "-t", "a"]), exit);
    }
    standin.state.lock().admin.extend(vec![50_002; 1_000]);
    exits(&run(&standin, &["topic", "create", "-t", "a"]), 4);
    standin.state.lock().admin.clear();
    (0..3).for_each(|node| standin.kill(node));
    exits(&run(&standin, &["topic", "list"]), 4);
}

#[test]
fn a_change_waits_for_a_leader_within_its_time() {
    let standin = Standin::start();
    standin.state.lock().admin.extend([50_002, 50_002, 50_400]);
    exits(&run(&standin, &["topic", "create", "-t", "a"]), 0);
}

#[test]
fn tables_of_topics_and_groups_are_imported() {
    let standin = Standin::start();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::io::Write::write_all(&mut tempfile_at(&path), text.as_bytes()).expect("written");
        path.display().to_string()
    };
    let topics = file("topics.tsv", "name\ttype\tqueues\tused_by\nt1\tFIFO\t4\tx y\nt2\tNORMAL\t2\tz\n");
    exits(&run(&standin, &["topic", "create", "--from", &topics]), 0);
    let mut known: Vec<_> =
        standin.state.lock().topics.iter().map(|t| (t.name.clone(), t.message_type, t.queues)).collect();
    // Rows are created at the same time, in no order.
    known.sort();
    assert_eq!(known, [("t1".to_owned(), 2, 4), ("t2".to_owned(), 1, 2)]);
    let groups = file("groups.tsv", "name\tordered\tmax_attempts\ng1\tfalse\t17\ng2\ttrue\t2\n");
    exits(&run(&standin, &["group", "create", "--from", &groups]), 0);
    let mut known: Vec<_> =
        standin.state.lock().groups.iter().map(|g| (g.name.clone(), g.ordered, g.max_attempts)).collect();
    known.sort();
    assert_eq!(known, [("g1".to_owned(), false, 17), ("g2".to_owned(), true, 2)]);
    let wrong = file("wrong.tsv", "name\ttype\nt1\tFIF\n");
    let output = run(&standin, &["topic", "create", "--from", &wrong]);
    exits(&output, 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("wrong.tsv:2: type"));
}

#[expect(clippy::disallowed_methods, reason = "a test's input, not a file of the store")]
fn tempfile_at(path: &std::path::Path) -> std::fs::File {
    std::fs::File::create(path).expect("a new file")
}

#[test]
fn commands_have_their_rocketmq_names() {
    let standin = Standin::start();
    let update = ["updateTopic", "-t", "t1", "-r", "4", "-w", "4", "-a", "+message.type=FIFO", "-c", "any"];
    exits(&run(&standin, &update), 0);
    assert_eq!(standin.state.lock().topics[0].message_type, 2);
    exits(&run(&standin, &["updateTopic", "-t", "t1", "-r", "4", "-w", "8"]), 2);
    assert!(exits(&run(&standin, &["topicList"]), 0).contains("t1"));
    assert!(exits(&run(&standin, &["topicRoute", "-t", "t1"]), 0).contains(&standin.address(0)));
    exits(&run(&standin, &["updateSubGroup", "-g", "g1", "-r", "1", "-o", "true"]), 0);
    assert_eq!(standin.state.lock().groups[0].max_attempts, 2);
    exits(&run(&standin, &["deleteSubGroup", "-g", "g1"]), 0);
    exits(&run(&standin, &["deleteTopic", "-t", "t1"]), 0);
}

#[test]
fn lines_are_sent_and_counted() {
    let standin = Standin::start();
    let output = run_with(&standin, &["send", "-t", TOPIC], "one\n\ntwo\nthree");
    assert!(exits(&output, 0).starts_with("3 confirmed, 1 empty lines left out"));
    let mut log = standin.log();
    log.sort();
    assert_eq!(log, ["one", "three", "two"]);
    let output = run_with(&standin, &["send", "-t", TOPIC, "--json", "--rate", "1000"], "four\n");
    let values = json(&output);
    assert_eq!((&values[0]["outcome"], &values[0]["offset"]), (&"confirmed".into(), &3.into()));
    assert_eq!(values[1]["confirmed"], 1);
    exits(&run(&standin, &["send", "-t", "unknown", "--body", "x"]), 3);
    exits(&run(&standin, &["send", "-t", TOPIC, "/no/such/file"]), 2);
    standin.script([Step::Refuse(40_300, None)]);
    exits(&run(&standin, &["send", "-t", TOPIC, "--body", "x"]), 5);
    standin.script(vec![Step::Hang; 20]);
    exits(&run(&standin, &["send", "-t", TOPIC, "--body", "x", "--send-timeout", "300ms"]), 1);
}

#[test]
fn messages_are_printed_and_acknowledged() {
    let standin = Standin::start();
    standin.state.lock().receive.extend([ReceiveStep::Messages(vec!["one", "two"])]);
    let output = run(&standin, &["receive", "-t", TOPIC, "-g", "readers", "--wait", "50ms"]);
    assert_eq!(exits(&output, 0), "one\ntwo\n");
    assert_eq!(standin.state.lock().acked.len(), 2);
    standin.state.lock().receive.extend([ReceiveStep::Messages(vec!["three"])]);
    let arguments = ["receive", "-t", TOPIC, "-g", "readers", "--max", "1", "--no-ack", "--json"];
    let values = json(&run(&standin, &arguments));
    assert_eq!((&values[0]["body"], &values[0]["attempt"]), (&"three".into(), &1.into()));
    assert_eq!(standin.state.lock().acked.len(), 2);
    standin.state.lock().receive.extend([ReceiveStep::Say(40_403)]);
    exits(&run(&standin, &["receive", "-t", TOPIC, "-g", "nobody"]), 3);
}

#[test]
fn replicas_are_compared() {
    let mut standin = Standin::start();
    assert!(
        exits(&run(&standin, &["digest"]), 0).starts_with("broker-a: equal up to index 5, 3 of 3 members")
    );
    standin.state.lock().differs = Some(2);
    let text = exits(&run(&standin, &["digest"]), 1);
    assert!(text.contains("first difference: queue 1-0/0"), "{text}");
    let values = json(&run(&standin, &["digest", "--json"]));
    assert_eq!(values[0][0]["equal"], false);
    standin.state.lock().differs = None;
    standin.kill(2);
    exits(&run(&standin, &["digest"]), 4);
}

#[test]
fn leadership_is_handed_over() {
    let standin = Standin::start();
    exits(&run(&standin, &["transfer", "--to", "b3"]), 0);
    assert_eq!(standin.state.lock().leader, 2);
    exits(&run(&standin, &["transfer", "--to", "b9"]), 3);
    exits(&run(&standin, &["transfer", "--broker-group", "broker-x"]), 3);
}

#[test]
fn the_bench_measures_confirmed_sends() {
    let standin = Standin::start();
    let arguments = ["bench", "-t", TOPIC, "--in-flight", "1,8", "--duration", "200ms", "--warm-up", "50ms"];
    let text = exits(&run(&standin, &arguments), 0);
    assert!(text.lines().count() == 3 && text.starts_with("IN FLIGHT"), "{text}");
    let values = json(&run(&standin, &[&arguments[..], &["--json"]].concat()));
    assert!(values[1]["confirmed"].as_u64() > Some(0), "{values:?}");
    assert_eq!(values[1]["unknown"], 0);
}
