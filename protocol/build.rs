//! Compiles every .proto below `proto/` into `OUT_DIR`; needs no installed protoc.

use std::error::Error;
use std::path::{Path, PathBuf};

const ROOT: &str = "proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");
    let mut files = Vec::new();
    proto_files(Path::new(ROOT), &mut files)?;
    files.sort();
    let descriptors = protox::compile(&files, [ROOT])?;
    // Bodies and frames pass through as `Bytes`: no copy between the socket and the log.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}

fn proto_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
            proto_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
