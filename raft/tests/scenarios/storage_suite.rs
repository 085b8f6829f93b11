//! openraft's own storage suite on the shipped CommitLog and writer.

use std::path::Path;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_log_and_writer_pass_openrafts_storage_suite() {
    // It opens some sixty logs and proves nothing about disks: memory will do where there is some.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a temporary folder");
    mq_raft::testkit::storage_suite(dir.path().to_path_buf()).await.expect("no storage error");
}
