//! The primitives of the sandbox, each with its probe. The tests that work run this file again inside; without root
//! they cannot run and say so by failing.

#![expect(clippy::disallowed_methods, reason = "the disk under test is written the plain way")]

use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mq_jepsen::generator::stream;
use mq_jepsen::sys::disk::{Disk, lost_bytes};
use mq_jepsen::sys::sandbox;
use mq_jepsen::sys::switch::{NETWORK, Switch, name};

fn run_inside(test: &str) {
    let program = std::env::current_exe().expect("own path");
    let mut command = sandbox::command(&program).expect("root");
    command.args(["--exact", test, "--ignored", "--test-threads", "1", "--nocapture"]);
    let output = command.output().expect("unshare");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn cuts_bite_in_their_direction_only_and_heal() {
    run_inside("inside_cuts");
}

#[test]
fn a_power_cut_takes_what_was_not_synced_and_nothing_else() {
    run_inside("inside_power_cut");
}

#[test]
fn a_frozen_disk_blocks_writes_and_a_full_one_refuses_them() {
    run_inside("inside_frozen_and_full");
}

struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A listener in the namespace of a site: this file again.
fn listener(site: u8) -> Listening {
    let program = std::env::current_exe().expect("own path");
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", name(site))).arg(program);
    command.args(["--exact", "inside_listener", "--ignored"]).env("SITE", site.to_string());
    Listening(command.stdout(Stdio::null()).spawn().expect("nsenter"))
}

#[test]
#[ignore = "started by the test of the cuts"]
fn inside_listener() {
    let site: u8 = std::env::var("SITE").expect("SITE").parse().expect("a number");
    let address = SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, site), 4_000);
    let listener = std::net::TcpListener::bind(address).expect("the site's address");
    for connection in listener.incoming() {
        drop(connection.expect("a connection"));
    }
}

#[tokio::test]
#[ignore = "runs inside the sandbox"]
async fn inside_cuts() {
    sandbox::furnish().expect("sandbox");
    let switch = Switch::make(3).expect("switch");
    assert!(NETWORK.starts_with("198.18."));
    let _listening: Vec<Listening> = (1..=3).map(listener).collect();
    for (from, to) in [(1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)] {
        let end = Instant::now() + Duration::from_secs(10);
        while !switch.connects(from, to, 4_000).await.expect("probe") {
            assert!(Instant::now() < end, "{from} to {to} before any cut");
        }
    }
    assert_eq!(switch.dropped().expect("counter"), 0);
    switch.isolate(1).expect("cut");
    for (from, to, passes) in [(1, 2, false), (2, 1, false), (1, 3, false), (3, 1, false), (2, 3, true)] {
        assert_eq!(switch.connects(from, to, 4_000).await.expect("probe"), passes, "{from} to {to}");
    }
    assert!(switch.dropped().expect("counter") > 0);
    switch.heal(1).expect("heal");
    for (from, to) in [(1, 2), (3, 1), (2, 3)] {
        assert!(switch.connects(from, to, 4_000).await.expect("probe"), "{from} to {to} after the heal");
    }
    switch.cut(2, 3).expect("cut");
    assert!(!switch.connects(2, 3, 4_000).await.expect("probe"));
    assert!(switch.connects(1, 3, 4_000).await.expect("probe"), "another pair");
    switch.heal_all().expect("heal");
    assert!(switch.connects(2, 3, 4_000).await.expect("probe"));
}

fn disk() -> Disk {
    sandbox::furnish().expect("sandbox");
    Disk::make(Path::new("/run/image"), Path::new("/run/disk"), 64).expect("disk")
}

#[test]
#[ignore = "runs inside the sandbox"]
fn inside_power_cut() {
    let disk = disk();
    let path = disk.folder().join("log");
    let mut file = File::create_new(&path).expect("file");
    file.write_all(&[0; 8_192]).expect("zeroes");
    file.sync_all().expect("sync");
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4_096], 0).expect("first half");
    file.sync_data().expect("sync");
    std::os::unix::fs::FileExt::write_all_at(&file, &[2; 4_096], 4_096).expect("second half");
    std::fs::write(disk.folder().join("new"), b"never synced").expect("a new file");
    let before = disk.view().expect("view");
    disk.shut_down().expect("shutdown");
    assert!(std::fs::write(disk.folder().join("after"), b"x").is_err(), "a dead disk takes nothing");
    drop(file);
    disk.revive().expect("mount");
    let after = disk.view().expect("view");
    assert_eq!(lost_bytes(&before, &after), 4_096 + 12, "the unsynced half and the new file");
    assert_eq!(std::fs::read(&path).expect("file")[..4_096], [1; 4_096], "what was synced stays");
    let restored = disk.tear(&before, &mut stream(7, "torn")).expect("tear");
    assert!((1..8).contains(&restored), "some of eight sectors, not all: {restored}");
    let torn = disk.view().expect("view");
    assert_eq!(lost_bytes(&before, &torn), (8 - restored as u64) * 512 + 12);
}

#[test]
#[ignore = "runs inside the sandbox"]
fn inside_frozen_and_full() {
    let disk = disk();
    let path = disk.folder().join("log");
    disk.freeze().expect("freeze");
    let (told, done) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        let written = std::fs::write(path, b"later").is_ok();
        told.send(written).expect("the test waits");
    });
    assert!(done.recv_timeout(Duration::from_millis(300)).is_err(), "blocked while frozen");
    disk.thaw().expect("thaw");
    assert_eq!(done.recv_timeout(Duration::from_secs(10)), Ok(true), "goes on when thawed");
    writer.join().expect("writer");
    disk.fill(0).expect("fill");
    let error = std::fs::write(disk.folder().join("more"), vec![1; 4 << 20]).expect_err("no space");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    disk.empty().expect("space is back");
    std::fs::write(disk.folder().join("more"), vec![1; 4 << 20]).expect("fits again");
}
