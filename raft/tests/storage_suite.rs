//! openraft's own storage suite on the shipped CommitLog and writer.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_log_and_writer_pass_openrafts_storage_suite() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    mq_raft::testkit::storage_suite(dir.path().to_path_buf()).await.expect("no storage error");
}
