//! The program itself: settings that cannot be used end it with code 2 and a text for people; dev mode says where it
//! is, serves, and leaves nothing behind.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Client, free_ports, message, turn};

fn mqbroker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mqbroker"));
    command.env_remove("MQ_LOG").stdin(Stdio::null());
    command
}

const SETTINGS: &str = r#"
cluster = "c"
node = "b1"
data = "/nowhere"
[[broker.group]]
name = "broker-a"
members = [{ node = "b1", raft = "127.0.0.1:1", api = "127.0.0.1:2", client = "127.0.0.1:3" }]
"#;

fn refused(folder: &Path, text: &str) -> String {
    let file = folder.join("mq.toml");
    let mut out =
        std::fs::File::options().create(true).write(true).truncate(true).open(&file).expect("a file");
    out.write_all(text.as_bytes()).expect("written");
    let Output { status, stderr, .. } = mqbroker().arg("--config").arg(&file).output().expect("runs");
    let stderr = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(2), "{stderr}");
    stderr
}

#[test]
fn settings_that_cannot_be_used_are_named_with_their_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |line: &str| refused(folder.path(), &format!("{line}\n{SETTINGS}"));

    let text = with("client_lisen = \"127.0.0.1:0\"");
    assert!(text.contains("client_lisen") && text.contains("did you mean `client_listen`"), "{text}");
    assert!(text.contains("mq.toml:1"), "{text}");
    let text = refused(folder.path(), &format!("{SETTINGS}\n[limits]\nbody_bytes_max = 99999999"));
    assert!(
        text.contains("limits.body_bytes_max") && text.contains("99999999") && text.contains("4194304"),
        "{text}"
    );
    let text = refused(folder.path(), &SETTINGS.replace("\"b1\"\ndata", "\"b7\"\ndata"));
    assert!(text.contains("`b7`") && text.contains("b1"), "{text}");
    let text = refused(folder.path(), "");
    assert!(text.contains("cluster"), "{text}");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_mode_says_where_it_is_serves_and_leaves_nothing_behind() {
    let _turn = turn().await;
    let temporary = tempfile::tempdir().expect("a folder");
    let [client, api, raft, metrics, admin] = free_ports::<5>().map(|port| format!("127.0.0.1:{port}"));
    let mut command = mqbroker();
    command.args([
        "dev",
        "--memory",
        "--client-listen",
        &client,
        "--api-listen",
        &api,
        "--raft-listen",
        &raft,
    ]);
    command.args(["--metrics-listen", &metrics, "--admin-listen", &admin]);
    command.env("TMPDIR", temporary.path()).stdout(Stdio::piped());
    let mut process = Killed(command.spawn().expect("runs"));
    let lines = BufReader::new(process.0.stdout.take().expect("a pipe")).lines();
    let lines: Vec<_> = lines.take(4).map(|line| line.expect("text")).collect();
    assert!(lines[0].starts_with("endpoint") && lines[0].contains(&client), "{lines:?}");
    assert!(lines[1].contains(&api) && lines[2].contains(&admin) && lines[2].contains(&metrics), "{lines:?}");

    assert_eq!(Client::new(&client).store(message("first-use", "x")).await, 0);

    let pid = i32::try_from(process.0.id()).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("still there");
    let began = Instant::now();
    let status = loop {
        if let Some(status) = process.0.try_wait().expect("our child") {
            break status;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "SIGTERM does not end it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(status.code(), Some(0));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
}
